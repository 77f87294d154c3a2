"""Normalization and activation in one pass: as layer by layer in float64, whatever the number of threads."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.nn.ops.norm_act import Pointwise, norm_act, norm_act_affine, norm_add_act

EPSILON = 1e-3
ACTIVATIONS: dict[str, tuple[Pointwise, Callable[[Tensor], Tensor]]] = {
    "none": (Pointwise(), lambda maps: maps),
    "ReLU": (Pointwise(low=0.0), F.relu),
    "ReLU6": (Pointwise(low=0.0, high=6.0), F.relu6),
    "Swish": (Pointwise(swish=True), F.silu),
}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def maps(shape: tuple[int, int, int, int], mean: float = 0.0, seed: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-1, 1, shape[1])[:, None, None]
    return (torch.randn(shape, generator=generator) * scales + mean).to(memory_format=torch.channels_last)


def vectors(channels: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return 0.5 + torch.rand(channels, generator=generator), torch.randn(channels, generator=generator)


def gradients(outputs: Tensor, given: list[Tensor]) -> list[Tensor]:
    upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(6)).to(outputs)
    return [one.double() for one in (outputs.detach(), *torch.autograd.grad(outputs, given, upstream))]


def ours(inputs: Tensor, activation: Pointwise) -> list[Tensor]:
    given = [
        one.clone(memory_format=torch.preserve_format).requires_grad_() for one in (inputs, *vectors(inputs.shape[1]))
    ]
    outputs, mean, variance = norm_act(*given, EPSILON, activation)
    assert outputs.is_contiguous(memory_format=torch.channels_last)
    assert not mean.requires_grad
    return [*gradients(outputs, given), mean.double(), variance.double()]


def layer_by_layer(inputs: Tensor, activation: Callable[[Tensor], Tensor]) -> list[Tensor]:
    given = [one.double().requires_grad_() for one in (inputs, *vectors(inputs.shape[1]))]
    values, weight, bias = given
    mean = values.mean((0, 2, 3), keepdim=True)
    variance = (values - mean).square().mean((0, 2, 3), keepdim=True)
    normalized = (values - mean) / (variance + EPSILON).sqrt() * weight[:, None, None] + bias[:, None, None]
    nearest = torch.minimum(normalized.detach().abs(), (normalized.detach() - 6).abs()).min()
    assert nearest > 1e-6, "a value at a bound, where the gradient jumps: choose another seed"
    return [*gradients(activation(normalized), given), mean.detach().flatten(), variance.detach().flatten()]


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(2, 24, 9, 7), (1, 7, 5, 3), (3, 1, 4, 4), (1, 33, 1, 2), (2, 70, 21, 20)])
@pytest.mark.parametrize("mean", [0.0, 50.0])
def test_all_is_as_computed_layer_by_layer_in_float64(name: str, shape: tuple[int, int, int, int], mean: float) -> None:
    kernel, activation = ACTIVATIONS[name]
    inputs = maps(shape, mean)
    names = ("outputs", "to inputs", "to gain", "to bias", "mean", "variance")
    for what, one, expected in zip(names, ours(inputs, kernel), layer_by_layer(inputs, activation), strict=True):
        # The statistics keep the digits that a mean of 500 deviations takes; float32 maps have them no longer.
        limit = 3e-6 if mean == 0 or what in ("mean", "variance") else 1e-3
        assert (one - expected).abs().max() <= limit * max(float(expected.abs().max()), 1e-3), what


def added(inputs: Tensor, other: Tensor, activation: Pointwise) -> list[Tensor]:
    given = [
        one.clone(memory_format=torch.preserve_format).requires_grad_()
        for one in (inputs, *vectors(inputs.shape[1]), other)
    ]
    outputs, mean, variance = norm_add_act(*given[:3], EPSILON, given[3], activation)
    assert outputs.is_contiguous(memory_format=torch.channels_last)
    return [*gradients(outputs, given), mean.double(), variance.double()]


def added_layer_by_layer(inputs: Tensor, other: Tensor, activation: Callable[[Tensor], Tensor]) -> list[Tensor]:
    given = [one.double().requires_grad_() for one in (inputs, *vectors(inputs.shape[1]), other)]
    values, weight, bias, shortcut = given
    normalized = F.batch_norm(values, None, None, weight, bias, training=True, eps=EPSILON)
    variance, mean = torch.var_mean(values.detach(), (0, 2, 3), correction=0)
    total = normalized + shortcut
    nearest = torch.minimum(total.detach().abs(), (total.detach() - 6).abs()).min()
    assert nearest > 1e-6, "a value at a bound, where the gradient jumps: choose another seed"
    return [*gradients(activation(total), given), mean, variance]


@pytest.mark.parametrize("name", ["none", "ReLU", "ReLU6"])
@pytest.mark.parametrize("shape", [(2, 24, 9, 7), (1, 7, 5, 3), (3, 1, 4, 4), (2, 70, 21, 20)])
def test_the_end_of_a_residual_block_is_as_computed_layer_by_layer_in_float64(
    name: str, shape: tuple[int, int, int, int]
) -> None:
    kernel, activation = ACTIVATIONS[name]
    inputs, other = maps(shape), maps(shape, seed=7)
    names = ("outputs", "to inputs", "to gain", "to bias", "to other", "mean", "variance")
    results = (added(inputs, other, kernel), added_layer_by_layer(inputs, other, activation))
    for what, one, expected in zip(names, *results, strict=True):
        assert (one - expected).abs().max() <= 3e-6 * max(float(expected.abs().max()), 1e-3), what


def scaled(inputs: Tensor, gain: float, activation: Pointwise) -> list[Tensor]:
    given = [
        one.clone(memory_format=torch.preserve_format).requires_grad_()
        for one in (inputs, *vectors(inputs.shape[1]), torch.tensor([gain]), torch.tensor([0.3]))
    ]
    outputs, mean, variance = norm_act_affine(*given[:3], EPSILON, given[3], given[4], activation)
    assert outputs.is_contiguous(memory_format=torch.channels_last)
    return [*gradients(outputs, given), mean.double(), variance.double()]


def scaled_layer_by_layer(inputs: Tensor, gain: float, activation: Callable[[Tensor], Tensor]) -> list[Tensor]:
    factors = (torch.tensor([gain]), torch.tensor([0.3]))
    given = [one.double().requires_grad_() for one in (inputs, *vectors(inputs.shape[1]), *factors)]
    values, weight, bias, factor, shift = given
    normalized = F.batch_norm(values, None, None, weight, bias, training=True, eps=EPSILON)
    variance, mean = torch.var_mean(values.detach(), (0, 2, 3), correction=0)
    assert torch.minimum(normalized.detach().abs(), (normalized.detach() - 6).abs()).min() > 1e-6
    return [*gradients(activation(normalized) * factor + shift, given), mean, variance]


@pytest.mark.parametrize("name", ["ReLU", "ReLU6"])
@pytest.mark.parametrize("gain", [1.0, 0.7, -1.3, 0.0])
@pytest.mark.parametrize("shape", [(2, 24, 9, 7), (1, 7, 5, 3), (2, 70, 21, 20)])
def test_a_scale_of_all_values_is_as_computed_layer_by_layer_in_float64(
    name: str, gain: float, shape: tuple[int, int, int, int]
) -> None:
    kernel, activation = ACTIVATIONS[name]
    inputs = maps(shape)
    names = ("outputs", "to inputs", "to weight", "to bias", "to gain", "to shift", "mean", "variance")
    results = (scaled(inputs, gain, kernel), scaled_layer_by_layer(inputs, gain, activation))
    for what, one, expected in zip(names, *results, strict=True):
        assert one.shape == expected.shape
        assert (one - expected).abs().max() <= 5e-6 * max(float(expected.abs().max()), 1e-3), what


def test_the_number_of_threads_changes_no_bit() -> None:
    inputs = maps((2, 20, 33, 17))
    results = []
    for count in (1, 2, 3, 16):
        with threads(count):
            results.append(ours(inputs, Pointwise(low=0.0, high=6.0)))
            results[-1] += added(inputs, inputs.flip(0), Pointwise(low=0.0))
            results[-1] += scaled(inputs, 0.7, Pointwise(low=0.0))
    assert all(torch.equal(one, first) for result in results[1:] for one, first in zip(result, results[0], strict=True))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_is_not_a_number_stays_it(name: str) -> None:
    inputs = maps((1, 18, 6, 6))
    inputs[0, 3, 2, 2] = torch.nan
    outputs, _, variance = norm_act(inputs, *vectors(18), EPSILON, ACTIVATIONS[name][0])
    others = [channel for channel in range(18) if channel != 3]
    assert bool(outputs[:, 3].isnan().all())
    assert bool(variance[3].isnan())
    assert bool(outputs[:, others].isfinite().all())
    if not ACTIVATIONS[name][0].swish:
        total, _, _ = norm_add_act(inputs, *vectors(18), EPSILON, inputs, ACTIVATIONS[name][0])
        assert torch.equal(total.isnan(), outputs.isnan())


@pytest.mark.parametrize("value", [-3e4, -89.0, -20.0, 0.0, 20.0, 89.0, 3e4])
def test_swish_far_from_0(value: float) -> None:
    inputs = torch.zeros(1, 16, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    bias = torch.full((16,), value, requires_grad=True)
    outputs, _, _ = norm_act(inputs, torch.ones(16), bias, EPSILON, Pointwise(swish=True))
    expected = F.silu(torch.full((16,), value, dtype=torch.float64))
    torch.testing.assert_close(outputs[0, :, 0, 0].double(), expected, rtol=1e-6, atol=1e-30)
    (slope,) = torch.autograd.grad(outputs.sum() / 16, bias)
    reference = torch.full((16,), value, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(
        slope.double(), torch.autograd.grad(F.silu(reference).sum(), reference)[0], rtol=1e-5, atol=1e-6
    )


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="flags of other processors")
def test_no_denormal_numbers_come_up_in_swish() -> None:
    """They take ten times as long; vectors' lanes that are computed and not used count, too."""
    mathematics, underflow = ctypes.CDLL("libm.so.6"), 0x10
    inputs = torch.rand(1, 96, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    gain, bias = torch.ones(96), torch.zeros(96)
    with threads(1):
        mathematics.feclearexcept(underflow)
        _ = torch.full((16,), 1e-30) * 1e-10
        assert mathematics.fetestexcept(underflow)
        mathematics.feclearexcept(underflow)
        outputs, _, _ = norm_act(inputs, gain, bias, EPSILON, Pointwise(swish=True))
        torch.autograd.grad(outputs, inputs, torch.ones_like(outputs))
        assert not mathematics.fetestexcept(underflow)


def test_gradients_that_are_not_channels_last_and_a_gain_that_does_not_learn() -> None:
    inputs = maps((2, 8, 5, 5)).requires_grad_()
    weight, bias = vectors(8)
    outputs, _, _ = norm_act(inputs, weight, bias.requires_grad_(), EPSILON, Pointwise(low=0.0))
    upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(outputs, (inputs, bias), upstream, retain_graph=True)
    again = torch.autograd.grad(outputs, (inputs, bias), upstream.to(memory_format=torch.channels_last))
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
