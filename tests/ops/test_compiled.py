"""Kernels in C whatever PyTorch's default dtype and device are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from boxwright.models.fused_convolution import DepthwiseConv2d, fuse_convolutions
from boxwright.models.layers import Conv2d
from boxwright.models.winograd import WinogradConv2d
from boxwright.ops.depthwise import Window, act_depthwise, depthwise_act, taps_of
from boxwright.ops.norm_act import Pointwise, norm_act, norm_add_act
from boxwright.ops.winograd import transformed_kernel
from boxwright.ops.winograd_tiles import ChannelScale, conv_3x3, conv_3x3_packed, conv_3x3_transformed, packed_kernel


def made(*size: int) -> Tensor:
    """Return random float32 on the CPU; maps are channels last."""
    generator = torch.Generator().manual_seed(len(size))
    numbers = torch.randn(size, generator=generator, dtype=torch.float32, device="cpu")
    return numbers.to(memory_format=torch.channels_last) if len(size) == 4 else numbers


MAPS, KERNEL, DEPTHWISE, VECTOR = made(2, 16, 9, 7), made(16, 16, 3, 3), made(16, 1, 3, 3), made(16)
WINDOW, RELU = Window(3, 1, 1, 1, 9, 7), Pointwise(low=0.0)


def with_gradient(compute: Callable[[Tensor], Tensor]) -> Tensor:
    leaf = MAPS.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    outputs = compute(leaf)
    (gradient,) = torch.autograd.grad(outputs, leaf, torch.ones_like(outputs))
    return torch.stack((outputs.detach(), gradient))


KERNELS: dict[str, Callable[[], Tensor]] = {
    "Winograd, packed": lambda: conv_3x3_packed(
        [MAPS], packed_kernel(transformed_kernel(KERNEL)), [ChannelScale(VECTOR)]
    )[0],
    "Winograd, transformed": lambda: conv_3x3_transformed(MAPS, transformed_kernel(KERNEL), None),
    "Winograd": lambda: with_gradient(lambda maps: conv_3x3(maps, KERNEL, None)),
    "depthwise": lambda: depthwise_act(MAPS, taps_of(DEPTHWISE), VECTOR, RELU, WINDOW),
    "depthwise, learning": lambda: with_gradient(lambda maps: act_depthwise(maps, RELU, DEPTHWISE, WINDOW)),
    "normalization": lambda: with_gradient(lambda maps: norm_act(maps, VECTOR, VECTOR, 1e-3, RELU)[0]),
    "normalization and sum": lambda: with_gradient(
        lambda maps: norm_add_act(maps, VECTOR, VECTOR, 1e-3, MAPS, RELU)[0]
    ),
}


@pytest.fixture(params=[torch.float64, torch.float16, "meta"], ids=str)
def other_defaults(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    def change() -> None:
        if request.param == "meta":
            torch.set_default_device("meta")
        else:
            torch.set_default_dtype(request.param)

    yield change
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


@pytest.mark.parametrize("name", KERNELS)
def test_defaults_change_nothing(name: str, other_defaults: Callable[[], None]) -> None:
    expected = KERNELS[name]()
    assert bool(expected.isfinite().all())
    other_defaults()
    found = KERNELS[name]()
    assert found.dtype == torch.float32
    assert found.device.type == "cpu"
    assert torch.equal(found, expected)


def test_a_bias_that_is_made_up_has_the_weights_type(other_defaults: Callable[[], None]) -> None:
    wide = Conv2d(16, 16, 3).requires_grad_(requires_grad=False)
    depthwise = nn.Sequential(Conv2d(16, 16, 3, groups=16).requires_grad_(requires_grad=False))
    other_defaults()
    assert fuse_convolutions(depthwise) == 1
    assert isinstance(depthwise[0], DepthwiseConv2d)
    for bias in (WinogradConv2d(wide).bias, depthwise[0].offset):
        assert bias.dtype == torch.float32
        assert bias.device.type == "cpu"
        assert bias.tolist() == [0.0] * 16


def test_maps_of_other_channels_than_the_kernel_are_refused() -> None:
    kernel = packed_kernel(transformed_kernel(KERNEL))
    with pytest.raises(ValueError, match="8 channels for a kernel of 16"):
        conv_3x3_packed([MAPS[:, :8]], kernel, [ChannelScale(VECTOR)])
