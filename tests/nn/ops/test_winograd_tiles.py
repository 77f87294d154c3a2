"""Winograd's convolution by the kernels in C, against the definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.nn.ops import winograd, winograd_tiles
from boxwright.nn.ops.winograd_tiles import (
    ChannelScale,
    conv_3x3,
    conv_3x3_packed,
    conv_3x3_transformed,
    packed_kernel,
    unpacked_kernel,
)
from tests.nn.ops.test_norm_act import threads
from tests.nn.ops.test_winograd import SIZES, error, given


def computed(inputs: Tensor, kernel: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Return a convolution, and its gradients for one upstream gradient."""
    leaves = [one.detach().requires_grad_() for one in (inputs, kernel, bias) if one is not None]
    found = conv_3x3(leaves[0], leaves[1], leaves[2] if bias is not None else None)
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    return [found.detach(), *torch.autograd.grad(found, leaves, upstream)]


def defined(inputs: Tensor, kernel: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Return the same from PyTorch's operator, in float64."""
    leaves = [one.detach().double().requires_grad_() for one in (inputs, kernel, bias) if one is not None]
    found = F.conv2d(leaves[0], leaves[1], leaves[2] if bias is not None else None, padding=1)
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    return [found.detach(), *torch.autograd.grad(found, leaves, upstream.double())]


@pytest.mark.parametrize("channels", [(5, 7), (16, 32), (33, 20)], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_values_and_gradients_are_those_of_the_definition(
    height: int, width: int, layout: torch.memory_format, channels: tuple[int, int]
) -> None:
    inputs, kernel, bias = given(height, width, ins=channels[0], outs=channels[1])
    kernel = kernel.to(memory_format=layout)
    for shift in (bias, None):
        ours, exact = computed(inputs, kernel, shift), defined(inputs, kernel, shift)
        assert ours[0].is_contiguous(memory_format=torch.channels_last)
        assert ours[2].is_contiguous(memory_format=layout)
        for mine, theirs in zip(ours, exact, strict=True):
            assert mine.shape == theirs.shape
            assert error(mine, theirs) < 5e-6


def packed(kernel: Tensor) -> Tensor:
    return packed_kernel(winograd.transformed_kernel(kernel))


def convolved(inputs: Tensor, kernel: Tensor, bias: Tensor, low: float = -torch.inf, high: float = torch.inf) -> Tensor:
    """Return the packed convolution of one level."""
    return conv_3x3_packed([inputs], packed(kernel), [ChannelScale(bias)], low, high)[0]


@pytest.mark.parametrize("channels", [(5, 7), (16, 32), (33, 20), (24, 97)], ids=str)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_packed_kernels_convolve_as_defined(height: int, width: int, channels: tuple[int, int]) -> None:
    inputs, kernel, bias = given(height, width, batch=3, ins=channels[0], outs=channels[1])
    found = convolved(inputs, kernel, bias)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert error(found, F.conv2d(inputs.double(), kernel.double(), bias.double(), padding=1)) < 5e-6
    assert torch.equal(unpacked_kernel(packed(kernel), len(bias)), winograd.transformed_kernel(kernel))


@pytest.mark.parametrize("most", [1, 2, 3, 5, 13, 200])
def test_blocks_of_any_number_of_tiles(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, kernel, bias = given(38, 45, ins=20, outs=17)
    expected = F.conv2d(inputs.double(), kernel.double(), bias.double(), padding=1)
    for name in ("_FEWEST", "_MOST"):
        monkeypatch.setattr(winograd_tiles, name, most)
    results = []
    for count in (1, 2, 5):
        with threads(count):
            results.append(convolved(inputs, kernel, bias))
    assert error(results[0], expected) < 5e-6
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("most", [3, 128])
@pytest.mark.parametrize("outs", [40, 270, 64])
def test_threads_divide_tiles_or_channels(outs: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, kernel, bias = given(17, 22, batch=2, ins=33, outs=outs)
    expected = F.conv2d(inputs.double(), kernel.double(), bias.double(), padding=1)
    monkeypatch.setattr(winograd_tiles, "_MOST", most)
    results = []
    for by_channels in (False, True):
        monkeypatch.setattr(winograd_tiles, "_divides_channels", lambda *_, how=by_channels: how)
        for count in (1, 2, 3):
            with threads(count):
                results.append(convolved(inputs, kernel, bias))
    assert error(results[0], expected) < 5e-6
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_few_tiles_of_wide_maps_are_divided_by_channels() -> None:
    divides = winograd_tiles._divides_channels
    assert divides(100, 128, panels=16, threads=2)
    assert divides(100, 128, panels=17, threads=2)  # one more of seventeen is no great difference
    assert not divides(100, 128, panels=16, threads=1)
    assert not divides(100, 128, panels=5, threads=2)
    assert not divides(400, 128, panels=16, threads=2)


@pytest.mark.parametrize("by_channels", [False, True])
@pytest.mark.parametrize("most", [3, 128])
def test_levels_of_any_sizes_have_scales_of_their_own(
    most: int, by_channels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd_tiles, "_MOST", most)
    monkeypatch.setattr(winograd_tiles, "_divides_channels", lambda *_: by_channels)
    sizes = {(9, 14): 2, (23, 4): 2, (3, 3): 0, (1, 1): 2, (5, 31): 1}
    levels = [given(*size, batch=batch, ins=20, outs=41)[0] for size, batch in sizes.items()]
    _, kernel, bias = given(8, 8, ins=20, outs=41)
    scales = [ChannelScale(bias + place, torch.linspace(-2, place, 41)) for place in range(4)] + [ChannelScale(bias)]
    for low, high in ((-torch.inf, torch.inf), (0.0, 6.0)):
        for count in (1, 2, 3):
            with threads(count):
                found = conv_3x3_packed(levels, packed(kernel), scales, low, high)
            assert len(found) == len(levels)
            for ours, maps, scale in zip(found, levels, scales, strict=True):
                exact = F.conv2d(maps.double(), kernel.double(), padding=1)
                gain = 1 if scale.gain is None else scale.gain[:, None, None]
                exact = (exact * gain + scale.shift[:, None, None]).clamp(low, high)
                assert ours.shape == exact.shape
                assert ours.is_contiguous(memory_format=torch.channels_last)
                assert not ours.numel() or error(ours, exact) < 5e-6


@pytest.mark.parametrize(("low", "high"), [(0.0, 6.0), (0.0, float("inf")), (-1.0, 0.5)])
def test_packed_kernels_activate(low: float, high: float) -> None:
    inputs, kernel, bias = given(9, 14, ins=20, outs=17)
    plain = convolved(inputs, kernel, bias)
    bounded = convolved(inputs, kernel, bias, low, high)
    assert torch.equal(bounded, plain.clamp(low, high))
    assert not torch.equal(bounded, plain)
    inputs[0, 0, 2, 2] = torch.nan
    assert bool(convolved(inputs, kernel, bias, low, high)[0, :, 1:4, 1:4].isnan().all())


def test_packed_kernels_of_no_images() -> None:
    _, kernel, bias = given(8, 8)
    assert convolved(torch.zeros(0, 5, 8, 8), kernel, bias).shape == (0, 7, 8, 8)


def test_no_more_is_lost_in_rounding_than_in_the_direct_way() -> None:
    inputs, kernel, _ = given(40, 40, batch=1, ins=256, outs=256)
    exact = F.conv2d(inputs.double(), kernel.double(), padding=1)
    ours = (conv_3x3(inputs, kernel, None).double() - exact).square().mean().sqrt()
    in_advance = (convolved(inputs, kernel, torch.zeros(256)).double() - exact).square().mean().sqrt()
    direct = (F.conv2d(inputs, kernel, padding=1).double() - exact).square().mean().sqrt()
    assert ours < 5 * direct
    assert in_advance < 5 * direct


def test_the_number_of_threads_changes_nothing() -> None:
    inputs, kernel, bias = given(13, 22, batch=3, ins=20, outs=17)
    results = []
    for count in (1, 2, 5):
        with threads(count):
            results.append(computed(inputs, kernel, bias)[:2])
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_a_batch_in_parts_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = given(13, 10, batch=5)
    whole = computed(*numbers)
    monkeypatch.setattr(winograd, "_MOST_NUMBERS", 1)
    for one, other in zip(computed(*numbers), whole, strict=True):
        assert error(one, other.double()) < 5e-6  # sums of parts are rounded otherwise


def test_a_kernel_transformed_in_advance() -> None:
    inputs, kernel, bias = given(19, 33, ins=20, outs=17)
    in_advance = conv_3x3_transformed(inputs, winograd.transformed_kernel(kernel), bias)
    assert error(in_advance, conv_3x3(inputs, kernel, bias).double()) < 1e-6


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 8)])
def test_what_comes_out_may_be_changed_in_place(height: int, width: int) -> None:
    inputs, kernel, bias = given(height, width, batch=1)
    inputs.requires_grad_()
    conv_3x3(inputs, kernel, bias).relu_().sum().backward()
    assert inputs.grad is not None


def test_gradients_of_what_is_wanted_alone() -> None:
    inputs, kernel, bias = given(8, 8)
    kernel.requires_grad_()
    (alone,) = torch.autograd.grad(conv_3x3(inputs, kernel, bias).sum(), kernel)
    inputs.requires_grad_()
    both = torch.autograd.grad(conv_3x3(inputs, kernel, bias).sum(), (inputs, kernel))
    assert torch.equal(alone, both[1])
    (alone,) = torch.autograd.grad(conv_3x3(inputs, kernel.detach(), bias).sum(), inputs)
    assert torch.equal(alone, both[0])


def test_no_images_give_none() -> None:
    _, kernel, bias = given(8, 8)
    found, to_inputs, to_kernel, to_bias = computed(torch.zeros(0, 5, 8, 8), kernel, bias)
    assert (found.shape, to_inputs.shape) == ((0, 7, 8, 8), (0, 5, 8, 8))
    assert not to_kernel.any()
    assert not to_bias.any()


def test_what_is_not_finite_stays_near() -> None:
    inputs, kernel, _ = given(40, 40, batch=1)
    inputs[0, 0, 2, 2] = torch.nan
    found = conv_3x3(inputs, kernel, None)
    assert bool(found[:, :, 1:4, 1:4].isnan().all())
    assert not bool(found[:, :, 8:].isnan().any())
    assert not bool(found[..., 8:].isnan().any())
