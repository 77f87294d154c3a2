"""Winograd's convolution whose linear steps a kernel in C computes, each in one pass over its map.

For inference a kernel computes the whole convolution.

A step of such a convolution takes 0.8 to 0.95 of the time that it takes with products by small matrices
(`ops/winograd.py`). Equal up to float32 rounding; the results do not depend on the number of threads.

Dimensions: B batch, C input channels, D output channels, H W grid, T tiles.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.ops.channel_sums import channel_sums
from boxwright.nn.ops.compiled import call, compiled, new_maps, new_numbers
from boxwright.nn.ops.winograd import image_chunks, tile_grid

_SOURCE = Path(__file__).with_suffix(".c")
_POINTS = 36
# Numbers between the 36 planes: in steps of whole pages, a tile's 36 numbers share one set of the cache's lines, and
# storing them takes up to twice as long.
_APART = 16
# Tiles that a thread evaluates before it multiplies them: as many as a kernel's size divided by this number, since the
# kernel is read again for each such block, and the block's numbers should stay in the cache.
_BLOCK_PER, _FEWEST, _MOST = 320, 48, 256


# Maps, and the tiles along each side.
_GRID = tuple((name, ctypes.c_long) for name in ("images", "height", "width", "down", "across"))


class _Shape(ctypes.Structure):
    _fields_ = (
        *_GRID,
        ("channels", ctypes.c_long),
        ("plane", ctypes.c_long),
        ("threads", ctypes.c_int),
    )


class _Level(ctypes.Structure):
    _fields_ = (
        *_GRID,
        ("end", ctypes.c_long),
        ("maps", ctypes.c_void_p),
        ("gain", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("into", ctypes.c_void_p),
    )


class _ConvShape(ctypes.Structure):
    _fields_ = (
        ("levels", ctypes.POINTER(_Level)),
        ("count", ctypes.c_long),
        ("ins", ctypes.c_long),
        ("outs", ctypes.c_long),
        ("blocks", ctypes.c_long),
        ("tiles_plane", ctypes.c_long),
        ("products_plane", ctypes.c_long),
        ("threads", ctypes.c_int),
        ("by_channels", ctypes.c_int),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_long),
        ("channels", ctypes.c_long),
        ("plane", ctypes.c_long),
        ("of_row", ctypes.c_long),
        ("of_channel", ctypes.c_long),
        ("of_tap", ctypes.c_long),
        ("threads", ctypes.c_int),
    )


def kernels() -> ctypes.CDLL | CompilerError:
    """Return the compiled functions, or why there are none."""
    return compiled(_SOURCE)


def conv_3x3(inputs: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """Return a zero-padded convolution of stride 1, with gradients.

    Args:
        inputs: float32 [B, C, H, W] on the CPU, channels last in memory.
        kernel: float32 [D, C, 3, 3], contiguous or channels last.
        bias: [D], or None.

    Returns:
        float32 [B, D, H, W], channels last.

    Raises:
        CompilerError: If there are no kernels here.
    """
    found: Tensor = _Conv.apply(inputs, kernel, bias)
    return found


def conv_3x3_transformed(inputs: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """Return a zero-padded convolution of stride 1, without gradients.

    Args:
        inputs: float32 [B, C, H, W] on the CPU, channels last.
        kernel: As `ops/winograd.py transformed_kernel` returns it, [36, C, D].
        bias: [D], or None.

    Returns:
        float32 [B, D, H, W], channels last.

    Raises:
        CompilerError: If there are no kernels here.
    """
    batch, _, height, width = inputs.shape
    outs = kernel.shape[2]
    shift = new_numbers(outs).zero_() if bias is None else bias.contiguous()
    outputs = new_maps(batch, outs, height, width)
    for images in image_chunks(inputs, max(kernel.shape[1:])):
        products = torch.bmm(_tiles("winograd_evaluate", inputs[images]), kernel)
        into = outputs[images]
        call(kernels(), "winograd_read", _shape(into, products), products, shift, into)
    return outputs


def packed_kernel(kernel: Tensor) -> Tensor:
    """Return a transformed kernel [36, C, D] in panels of as many output channels as two vectors hold.

    Returns:
        float32 [36, panels, C, 8, 16 or 32], zeros after the last output channel.

    Raises:
        CompilerError: If there are no kernels here.
    """
    library = kernels()
    if isinstance(library, CompilerError):
        raise library
    points, ins, outs = kernel.shape
    together = library.winograd_panel()
    panels = -(-outs // together)
    padded = functional.pad(kernel, (0, panels * together - outs))
    return padded.view(points, ins, panels, together).transpose(1, 2).contiguous()


def unpacked_kernel(packed: Tensor, outs: int) -> Tensor:
    """Return the transformed kernel [36, C, D] of a packed one."""
    return packed.transpose(1, 2).flatten(2)[..., :outs]


@dataclass(frozen=True)
class ChannelScale:
    """What each output channel is multiplied by, and what is added then.

    Attributes:
        shift: float32 [D].
        gain: float32 [D]; None for 1.
    """

    shift: Tensor
    gain: Tensor | None = None


def conv_3x3_packed(
    levels: Sequence[Tensor],
    packed: Tensor,
    scales: Sequence[ChannelScale],
    low: float = -math.inf,
    high: float = math.inf,
) -> list[Tensor]:
    """Return for each level its convolution by the same kernel, scaled and activated, without gradients.

    A thread evaluates, multiplies and reads off some tiles after the others, which caches hold meanwhile; of few tiles
    all channels, or of all tiles some channels. Small levels cost less together, as the kernel is read less often.

    Args:
        levels: float32 [B, C, H, W] each, on the CPU, channels last; at least one.
        packed: As `packed_kernel` returns it.
        scales: One for each level.
        low: No value is below it.
        high: No value is above it.

    Returns:
        float32 [B, D, H, W] each, channels last.

    Raises:
        CompilerError: If there are no kernels here.
        ValueError: If a level has other channels than the kernel.
    """
    ins, outs, threads = packed.shape[2], len(scales[0].shift), torch.get_num_threads()
    described, outputs, count = (_Level * len(levels))(), [], 0
    for place, (maps, scale) in enumerate(zip(levels, scales, strict=True)):
        batch, channels, height, width = maps.shape
        if channels != ins:
            raise ValueError(f"maps of {channels} channels for a kernel of {ins}")
        down, across = tile_grid(height, width)
        count += batch * down * across
        into = new_maps(batch, outs, height, width)
        addresses = [None if one is None else one.data_ptr() for one in (maps, scale.gain, scale.shift, into)]
        described[place] = _Level(batch, height, width, down, across, count, *addresses)
        outputs.append(into)
    panels, wide = packed.shape[1], packed.shape[3]
    a_block = ins * outs // _BLOCK_PER
    by_channels = _divides_channels(count, a_block, panels, threads)
    if by_channels:
        together, most, own = 1, _MOST, -(-panels // threads)
    else:
        together, most, own = threads, min(max(a_block, _FEWEST), _MOST), panels
    blocks = together * -(-count // (together * most))
    of_block = -(-count // max(blocks, 1))
    evaluated = new_numbers(together, _POINTS, of_block * ins + _APART)
    products = new_numbers(threads, _POINTS, of_block * own * wide + _APART)
    planes = evaluated.stride(1), products.stride(1)
    shape = _ConvShape(described, count, ins, outs, blocks, *planes, threads, by_channels, low, high)
    call(kernels(), "winograd_convolve", shape, packed, evaluated, products)
    return outputs


def _divides_channels(tiles: int, a_block: int, panels: int, threads: int) -> bool:
    """Return whether threads read parts of the kernel for all tiles, rather than all of it for parts of the tiles.

    That takes 0.65 to 0.95 of the time where a block would hold all tiles, and as long or longer elsewhere.
    """
    balanced = panels % threads == 0 or panels >= 8 * threads
    return threads > 1 and balanced and tiles <= a_block


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(inputs, kernel)
        return conv_3x3_transformed(inputs, _evaluated_kernel(kernel).mT, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, kernel = context.saved_tensors
        to_inputs, to_kernel, to_bias = context.needs_input_grad
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        evaluated = _evaluated_kernel(kernel) if to_inputs else None
        found = torch.empty_like(inputs, memory_format=torch.channels_last) if to_inputs else None
        of_kernel: Tensor | None = None
        for images in image_chunks(inputs, max(kernel.shape[:2])):
            of_products = _tiles("winograd_unread", gradient[images])
            if to_kernel:
                tiles = _tiles("winograd_evaluate", inputs[images])
                product = torch.bmm(of_products.mT, tiles)
                of_kernel = product if of_kernel is None else of_kernel.add_(product)
            if found is not None and evaluated is not None:
                tiles = torch.bmm(of_products, evaluated)
                into = found[images]
                call(kernels(), "winograd_overlap", _shape(into, tiles), tiles, into)
        back = None
        if to_kernel:
            back = torch.empty_like(kernel)
            if of_kernel is None:
                back.zero_()
            else:
                call(kernels(), "winograd_kernel_back", _kernel(back, of_kernel), of_kernel, back)
        return found, back, channel_sums(gradient) if to_bias else None


def _tiles(function: str, maps: Tensor) -> Tensor:
    """Return maps [B, C, H, W] as evaluated tiles [36, T, C]."""
    images, channels, height, width = maps.shape
    down, across = tile_grid(height, width)
    tiles = _planes(images * down * across, channels)
    call(kernels(), function, _shape(maps, tiles), maps, tiles)
    return tiles


def _evaluated_kernel(kernel: Tensor) -> Tensor:
    """Return a kernel [D, C, 3, 3] evaluated at all pairs of points, [36, D, C]."""
    evaluated = _planes(*kernel.shape[:2])
    call(kernels(), "winograd_kernel", _kernel(kernel, evaluated), kernel, evaluated)
    return evaluated


def _planes(rows: int, channels: int) -> Tensor:
    """Return memory for float32 [36, rows, channels], dense but between the 36."""
    count = rows * channels
    return new_numbers(_POINTS, count + _APART)[:, :count].view(_POINTS, rows, channels)


def _shape(maps: Tensor, tiles: Tensor) -> _Shape:
    images, channels, height, width = maps.shape
    grid = tile_grid(height, width)
    return _Shape(images, height, width, *grid, channels, tiles.stride(0), torch.get_num_threads())


def _kernel(kernel: Tensor, evaluated: Tensor) -> _Kernel:
    rows, channels = kernel.shape[:2]
    strides = (kernel.stride(0), kernel.stride(1), kernel.stride(3))
    return _Kernel(rows, channels, evaluated.stride(0), *strides, torch.get_num_threads())
