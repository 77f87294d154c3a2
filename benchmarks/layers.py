"""What layers cost that look at large maps as seldom as they can, against PyTorch's, forward and backward.

    python benchmarks/layers.py [--rounds 15] [--threads 2]

ReLU6 in place, zeros around a map of stride 2, normalization with ReLU6, and a 1×1 convolution with its normalization:
at the sizes of MobileNetV2 at 320×320, eight pictures, channels last. Then, forward alone and of one picture, 3×3 and
depthwise convolutions of an optimized detector, the latter with ReLU6, 1×1 convolutions with packed kernels, and those
with a sum and its ReLU6, as in residual blocks, against oneDNN's sum. Last, the resizing of one image of bytes. In
interleaved rounds of one process.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.activations import ReLU6
from boxwright.nn.batch_norm import BatchNorm2d
from boxwright.nn.compiled_norm import kernel_of, normalize_and_activate
from boxwright.nn.expansion import expand_normalized
from boxwright.nn.fused_convolution import fuse_convolutions
from boxwright.nn.layers import Conv2d
from boxwright.nn.onednn_convolution import (
    convolve,
    convolve_add_and_activate,
    convolve_and_activate,
    pack_kernels,
)
from boxwright.nn.ops.add_act import add_act_
from boxwright.nn.ops.padding import zero_padded
from boxwright.nn.ops.resize import resize_bilinear
from boxwright.nn.winograd import WinogradConv2d
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.runtime.measure import measure

BATCH = 8
# Channels in, channels out, side.
EXPANSIONS = ((16, 96, 160), (24, 144, 80), (32, 192, 40), (64, 384, 20), (96, 576, 20))
WIDE = (
    (16, 16, 80),
    (32, 32, 80),
    (64, 64, 160),
    (128, 128, 80),
    (256, 256, 40),
    (256, 24, 40),
    (512, 512, 20),
    (256, 256, 10),
)
# Channels, side of the map, side of the kernel, stride.
DEPTHWISE = ((32, 160, 3, 1), (96, 160, 3, 2), (144, 80, 3, 2), (192, 40, 3, 1), (576, 20, 3, 1), (672, 32, 5, 1))

# Channels in, channels out, side.
POINTWISE = ((24, 144, 80), (96, 576, 20), (576, 96, 20), (960, 320, 10), (1280, 546, 10), (1024, 256, 40))
SUMS = ((192, 32, 40), (960, 160, 10), (64, 256, 160), (128, 512, 80), (256, 1024, 40), (512, 2048, 20))
# Height, width, new side.
IMAGES = ((480, 640, 320), (480, 640, 640), (1080, 1920, 640))


def maps(channels: int, side: int, batch: int = BATCH) -> Tensor:
    """Make up feature maps."""
    return torch.randn(batch, channels, side, side).to(memory_format=torch.channels_last)


def interpolated(images: Tensor, side: int) -> Tensor:
    """Resize images [B, H, W, C] by PyTorch's function."""
    return F.interpolate(images.float().permute(0, 3, 1, 2), (side, side), mode="bilinear")


def both_ways(layer: Callable[[Tensor], Tensor], given: Tensor, weights: Sequence[Tensor]) -> Callable[[], object]:
    """Return what computes a layer and its gradients; what is given may be changed in place."""
    leaf = given.requires_grad_()
    with torch.no_grad():
        upstream = torch.randn_like(layer(leaf.clone()))
    return lambda: torch.autograd.grad(layer(leaf), (leaf, *weights), upstream)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    wide = maps(96, 160)
    rows: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        # After a multiplication, as neither may change a leaf; it costs both the same.
        "ReLU6, 96 of 160": (
            both_ways(lambda one: F.relu6(one * 1, inplace=True), wide, []),
            both_ways(lambda one: ReLU6()(one * 1), wide, []),
        ),
        "zeros around 96 of 160": (
            both_ways(lambda one: F.pad(one, (0, 1, 0, 1)), wide, []),
            both_ways(lambda one: zero_padded(one, (0, 1, 0, 1)), wide, []),
        ),
    }
    for side in (160, 80, 40, 20, 10):
        norm, maps_in = BatchNorm2d(96), maps(96, side)
        gains = [norm.weight, norm.bias]
        rows[f"normalization and ReLU6, 96 of {side}"] = (
            both_ways(lambda one, norm=norm: ReLU6()(norm(one)), maps_in, gains),  # type: ignore[misc]
            both_ways(lambda one, norm=norm: normalize_and_activate(one, norm, ReLU6()), maps_in, gains),  # type: ignore[misc]
        )
    for channels, out, side in EXPANSIONS:
        conv, norm, given = nn.Conv2d(channels, out, 1, bias=False), BatchNorm2d(out), maps(channels, side)
        weights = [conv.weight, norm.weight, norm.bias]
        rows[f"expansion, {channels} to {out} of {side}"] = (
            both_ways(lambda one, conv=conv, norm=norm: norm(conv(one)), given, weights),  # type: ignore[misc]
            both_ways(lambda one, conv=conv, norm=norm: expand_normalized(one, conv, norm), given, weights),  # type: ignore[misc]
        )
    for channels, out, side in WIDE:
        conv = Conv2d(channels, out, 3).requires_grad_(requires_grad=False).to(memory_format=torch.channels_last)
        given, transformed = maps(channels, side, 1), WinogradConv2d(conv)
        rows[f"3x3 for inference, {channels} to {out} of {side}"] = (
            lambda conv=conv, given=given: conv(given),  # type: ignore[misc]
            lambda conv=transformed, given=given: conv(given),  # type: ignore[misc]
        )
    activation = ReLU6()
    for channels, side, kernel, stride in DEPTHWISE:
        conv = Conv2d(channels, channels, kernel, stride=stride, groups=channels, bias=True)
        layer = nn.Sequential(conv.requires_grad_(requires_grad=False).to(memory_format=torch.channels_last))
        ours = copy.deepcopy(layer)
        fuse_convolutions(ours)
        given = maps(channels, side, 1)
        rows[f"{kernel}x{kernel} depthwise, stride {stride}, {channels} of {side}"] = (
            lambda conv=conv, given=given: convolve_and_activate(given, conv, activation),  # type: ignore[misc]
            torch.no_grad()(lambda conv=ours[0], given=given: conv.activated(given, activation)),
        )
    for channels, out, side in POINTWISE:
        conv = Conv2d(channels, out, 1, bias=True).requires_grad_(requires_grad=False)
        conv = conv.to(memory_format=torch.channels_last)
        given, packed = maps(channels, side, 1), copy.deepcopy(conv)
        pack_kernels(packed, {packed: given.shape})
        rows[f"1x1 for inference, {channels} to {out} of {side}"] = (
            torch.no_grad()(lambda conv=conv, given=given: convolve_and_activate(given, conv, activation)),
            torch.no_grad()(lambda conv=packed, given=given: convolve_and_activate(given, conv, activation)),
        )
    for channels, out, side in SUMS:
        conv = Conv2d(channels, out, 1, bias=True).requires_grad_(requires_grad=False)
        conv = conv.to(memory_format=torch.channels_last)
        given, other = maps(channels, side, 1), maps(out, side, 1)
        pack_kernels(nn.Sequential(conv), {conv: given.shape})
        rows[f"1x1 with a sum, {channels} to {out} of {side}"] = (
            torch.no_grad()(
                lambda conv=conv, given=given, other=other: convolve_add_and_activate(given, conv, other, activation)
            ),
            torch.no_grad()(
                lambda conv=conv, given=given, other=other: add_act_(
                    convolve(given, conv), other, kernel_of(activation)
                )
            ),
        )
    for height, width, side in IMAGES:
        image = (255 * torch.rand(1, height, width, 3)).byte()
        rows[f"resizing {height}x{width} to {side}"] = (
            partial(interpolated, image, side),
            partial(resize_bilinear, image, side, side),
        )
    for name, (plain, faster) in rows.items():
        first, second = measure({"plain": plain, "ours": faster}, BATCH, arguments.rounds)
        print(
            f"{name:40}{first.least_ms:8.2f} {second.least_ms:8.2f} ms   ratio of least "
            f"{second.least_ms / first.least_ms:.2f}, median {second.ratio:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
