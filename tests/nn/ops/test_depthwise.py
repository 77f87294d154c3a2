"""An activation and a depthwise convolution in one pass: as layer by layer in float64, whatever the number of threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.nn.ops.depthwise import LEAST_CHANNELS, Window, act_depthwise, depthwise_act, norm_act_depthwise, taps_of
from boxwright.nn.ops.norm_act import Pointwise
from tests.nn.ops.test_norm_act import ACTIVATIONS, EPSILON, maps, threads, vectors

Padding = tuple[int, int, int, int]
# Left, right, above, below.
SAME_OF_EVEN, EXPLICIT, NONE = (0, 1, 0, 1), (1, 1, 1, 1), (0, 0, 0, 0)
CASES = [
    ((2, 32, 9, 7), 3, 1, EXPLICIT),
    ((2, 32, 10, 8), 3, 2, SAME_OF_EVEN),
    ((1, 16, 9, 7), 3, 2, EXPLICIT),
    ((3, 7, 6, 5), 3, 1, EXPLICIT),  # channels that fill no vector
    ((2, 35, 8, 6), 3, 2, SAME_OF_EVEN),
    ((2, 24, 11, 9), 5, 1, (2, 2, 2, 2)),
    ((1, 40, 10, 12), 5, 2, (1, 2, 1, 2)),
    ((2, 16, 7, 7), 3, 1, NONE),
    # Rows of more pixels than are summed at once.
    ((1, 18, 9, 37), 5, 1, (2, 2, 2, 2)),
    ((1, 16, 10, 38), 5, 2, (1, 2, 1, 2)),
    ((2, 9, 5, 35), 3, 2, EXPLICIT),
    ((1, 17, 1, 2), 3, 1, EXPLICIT),
    ((4, 16, 2, 3), 5, 1, (2, 2, 2, 2)),
    ((1, 16, 40, 30), 3, 1, (3, 1, 0, 2)),  # more on one side than on the other
]


def kernel(channels: int, side: int) -> Tensor:
    return torch.randn(channels, 1, side, side, generator=torch.Generator().manual_seed(8))


def window_of(shape: tuple[int, ...], side: int, stride: int, padding: Padding) -> Window:
    left, right, above, below = padding
    height, width = shape[2] + above + below, shape[3] + left + right
    return Window(side, stride, above, left, (height - side) // stride + 1, (width - side) // stride + 1)


def gradients(outputs: Tensor, given: list[Tensor]) -> list[Tensor]:
    upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(6)).to(outputs)
    return [one.double() for one in (outputs.detach(), *torch.autograd.grad(outputs, given, upstream))]


def given_in(dtype: torch.dtype, *tensors: Tensor) -> list[Tensor]:
    return [one.to(dtype, copy=True, memory_format=torch.preserve_format).requires_grad_() for one in tensors]


def normalized(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = values.mean((0, 2, 3), keepdim=True)
    variance = (values - mean).square().mean((0, 2, 3), keepdim=True)
    found = (values - mean) / (variance + EPSILON).sqrt() * weight[:, None, None] + bias[:, None, None]
    nearest = torch.minimum(found.detach().abs(), (found.detach() - 6).abs()).min()
    assert nearest > 1e-7, "a value at a bound, where the gradient jumps: choose another seed"
    return found


def check(ours: list[Tensor], expected: list[Tensor], names: tuple[str, ...]) -> None:
    for name, one, other in zip(names, ours, expected, strict=True):
        assert (one - other).abs().max() <= 3e-6 * max(float(other.abs().max()), 1e-3), name


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("shape", "side", "stride", "padding"), CASES)
def test_normalized_as_layer_by_layer_in_float64(
    name: str, shape: tuple[int, int, int, int], side: int, stride: int, padding: Padding
) -> None:
    ours, activation = ACTIVATIONS[name]
    tensors = (maps(shape), *vectors(shape[1]), kernel(shape[1], side))
    window = window_of(shape, side, stride, padding)
    given = given_in(torch.float32, *tensors)
    outputs, mean, variance = norm_act_depthwise(*given[:3], EPSILON, ours, given[3], window)
    assert outputs.is_contiguous(memory_format=torch.channels_last)
    assert not mean.requires_grad
    exact = given_in(torch.float64, *tensors)
    active = activation(normalized(*exact[:3]))
    expected = F.conv2d(F.pad(active, padding), exact[3], stride=stride, groups=shape[1])
    names = ("outputs", "to inputs", "to gain", "to bias", "to kernel")
    check(gradients(outputs, given), gradients(expected, exact), names)
    torch.testing.assert_close(mean.double(), exact[0].detach().mean((0, 2, 3)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance.double(), exact[0].detach().var((0, 2, 3), correction=0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("shape", "side", "stride", "padding"), CASES)
def test_activated_as_layer_by_layer_in_float64(
    name: str, shape: tuple[int, int, int, int], side: int, stride: int, padding: Padding
) -> None:
    ours, activation = ACTIVATIONS[name]
    tensors = (maps(shape, seed=9), kernel(shape[1], side))
    given, exact = given_in(torch.float32, *tensors), given_in(torch.float64, *tensors)
    outputs = act_depthwise(given[0], ours, given[1], window_of(shape, side, stride, padding))
    expected = F.conv2d(F.pad(activation(exact[0]), padding), exact[1], stride=stride, groups=shape[1])
    check(gradients(outputs, given), gradients(expected, exact), ("outputs", "to inputs", "to kernel"))


WIDE = [case for case in CASES if case[0][1] >= LEAST_CHANNELS]
BEYOND = ((1, 16, 4, 4), 3, 2, (3, 3, 4, 4))  # windows that lie in the padding alone


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("shape", "side", "stride", "padding"), [*WIDE, BEYOND])
def test_convolved_and_activated_as_layer_by_layer_in_float64(
    name: str, shape: tuple[int, int, int, int], side: int, stride: int, padding: Padding
) -> None:
    ours, activation = ACTIVATIONS[name]
    inputs, weights, bias = maps(shape, seed=9), kernel(shape[1], side), vectors(shape[1])[1]
    window = window_of(shape, side, stride, padding)
    found = []
    for count in (1, 2, 5):
        with threads(count):
            found.append(depthwise_act(inputs, taps_of(weights), bias, ours, window))
    padded = F.pad(inputs.double(), padding)
    expected = activation(F.conv2d(padded, weights.double(), bias.double(), stride, groups=shape[1]))
    assert found[0].shape == expected.shape
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    check([found[0].double()], [expected], ("outputs",))
    assert all(torch.equal(one, found[0]) for one in found)


def test_cases_of_whole_vectors() -> None:
    assert len(WIDE) == 12


def test_too_few_channels() -> None:
    with pytest.raises(ValueError, match="15 channels: expected at least 16"):
        depthwise_act(
            maps((1, 15, 4, 4)),
            taps_of(kernel(15, 3)),
            torch.zeros(15),
            Pointwise(),
            window_of((1, 15, 4, 4), 3, 1, EXPLICIT),
        )


def results(shape: tuple[int, int, int, int]) -> list[Tensor]:
    given = given_in(torch.float32, maps(shape), *vectors(shape[1]), kernel(shape[1], 3))
    window = window_of(shape, 3, 1, EXPLICIT)
    outputs, *_ = norm_act_depthwise(*given[:3], EPSILON, Pointwise(low=0.0, high=6.0), given[3], window)
    return gradients(outputs, given)


@pytest.mark.parametrize("shape", [(2, 20, 33, 17), (1, 64, 3, 3)])
def test_the_number_of_threads_changes_no_bit(shape: tuple[int, int, int, int]) -> None:
    found = []
    for count in (1, 2, 3, 16):
        with threads(count):
            found.append(results(shape))
    assert all(torch.equal(one, first) for result in found[1:] for one, first in zip(result, found[0], strict=True))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_is_not_a_number_stays_it(name: str) -> None:
    inputs = maps((1, 18, 6, 6))
    inputs[0, 3, 2, 2] = torch.nan
    outputs = act_depthwise(inputs, ACTIVATIONS[name][0], kernel(18, 3), window_of(inputs.shape, 3, 1, EXPLICIT))
    missing = outputs.isnan()
    assert bool(missing[0, 3, 1:4, 1:4].all())  # where the kernel covers it
    assert int(missing.sum()) == 9


def test_gradients_that_are_not_channels_last() -> None:
    inputs, weights = maps((2, 8, 5, 5)), kernel(8, 3)
    window = window_of(inputs.shape, 3, 1, EXPLICIT)
    upstream = torch.randn(2, 8, 5, 5)

    def to_inputs(gradient: Tensor) -> Tensor:
        given = inputs.clone(memory_format=torch.preserve_format).requires_grad_()
        return torch.autograd.grad(act_depthwise(given, Pointwise(), weights, window), given, gradient)[0]

    assert torch.equal(to_inputs(upstream), to_inputs(upstream.contiguous(memory_format=torch.channels_last)))
