"""3×3 convolutions by Winograd's algorithm, with a quarter of the multiplications, by the extension in C (`native.py`).

As exact as PyTorch's (`winograd.py` says how it works).

Dimensions: B batch, C channels, D output channels, H W grid, T tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.nn.ops.channel_sums import channel_sums
from boxwright.nn.ops.native import call, dense, new_maps, numbers, register, register_gradients, vector

_OUT, _POINTS = 4, 36  # a tile's outputs along each side; the numbers of a transformed tile
_PANEL = 32  # output channels that lie together in a packed kernel, as in native/winograd_inference.c
# Numbers between the 36 planes: in steps of whole pages, a tile's 36 numbers share one set of the cache's lines, and
# storing them takes up to twice as long.
_APART = 16
_MOST_NUMBERS = 2**24  # in the tiles of images that are convolved together in a step
# Tiles that a thread transforms before it multiplies them: the size of a kernel over this number, since the kernel is
# read again for each such block, and the block's numbers should stay in the cache.
_BLOCK_PER, _FEWEST, _MOST = 320, 48, 256


def conv_3x3(maps: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """Return a zero-padded convolution of stride 1, with gradients.

    Args:
        maps: float32 [B, C, H, W].
        kernel: float32 [D, C, 3, 3].
        bias: float32 [D], or None.

    Returns:
        float32 [B, D, H, W], channels last.
    """
    outputs: Tensor = torch.ops.boxwright.conv_3x3.default(maps, kernel, bias)
    return outputs


def conv_3x3_packed(maps: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Return the same with a kernel that was transformed in advance, without gradients.

    Some tiles after the others are transformed, multiplied and read off, while caches hold them.

    Args:
        maps: float32 [B, C, H, W].
        kernel: As `packed_kernel` returns it.
        bias: float32 [D].

    Returns:
        float32 [B, D, H, W], channels last.
    """
    outputs: Tensor = torch.ops.boxwright.conv_3x3_packed.default(maps, kernel, bias)
    return outputs


def packed_kernel(kernel: Tensor) -> Tensor:
    """Return a kernel [D, C, 3, 3] transformed, in panels of 32 output channels: float32 [36 × panels, C, 32]."""
    outs, ins = kernel.shape[:2]
    panels = -(-outs // _PANEL)
    padded = F.pad(_transformed_kernel(kernel), (0, 0, 0, panels * _PANEL - outs))
    # Three dimensions: `to(memory_format=torch.channels_last)` changes a module's tensors of four.
    return padded.view(_POINTS * panels, _PANEL, ins).mT.contiguous()


def _conv_3x3(maps: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    maps, transformed = dense(maps), _transformed_kernel(kernel)
    _check_channels(maps, kernel.shape[1])
    shift = numbers(len(kernel)).zero_() if bias is None else vector(bias, len(kernel))
    outputs = new_maps(maps, len(kernel))
    for images in _image_chunks(maps, max(kernel.shape[:2])):
        products, target = torch.bmm(_tiles("winograd_inputs_to_tiles", maps[images]), transformed.mT), outputs[images]
        call("winograd_tiles_to_outputs", **_grid(target, products), source=products, bias=shift, target=target)
    return outputs


def _conv_3x3_backward(gradient: Tensor, maps: Tensor, kernel: Tensor, needed: list[bool]) -> list[Tensor]:
    """Return the gradients of the maps and of the kernel; one that is not needed is empty."""
    gradient, maps = dense(gradient), dense(maps)
    transformed = _transformed_kernel(kernel) if needed[0] else None
    to_maps = new_maps(maps, maps.shape[1]) if needed[0] else numbers(0)
    to_transformed = _planes(*kernel.shape[:2]).zero_() if needed[1] else None
    for images in _image_chunks(maps, max(kernel.shape[:2])):
        to_products = _tiles("winograd_outputs_to_tiles", gradient[images])
        if to_transformed is not None:
            to_transformed.baddbmm_(to_products.mT, _tiles("winograd_inputs_to_tiles", maps[images]))
        if transformed is not None:
            tiles, target = torch.bmm(to_products, transformed), to_maps[images]
            call("winograd_tiles_to_inputs", **_grid(target, tiles), source=tiles, target=target)
    if to_transformed is None:
        return [to_maps, numbers(0)]
    to_kernel = _new_kernel(kernel)
    call("winograd_kernel_backward", **_strides(to_kernel, to_transformed), source=to_transformed, target=to_kernel)
    return [to_maps, to_kernel]


def _keep_for_conv_3x3(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs[:2])


def _conv_3x3_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    needed = list(ctx.needs_input_grad)
    to_maps, to_kernel = torch.ops.boxwright.conv_3x3_backward.default(gradient, *ctx.saved_tensors, needed[:2])
    to_bias = channel_sums(gradient) if needed[2] else None
    return to_maps if needed[0] else None, to_kernel if needed[1] else None, to_bias


def _conv_3x3_packed(maps: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    if kernel.dtype != torch.float32 or not kernel.is_contiguous():
        raise TypeError("expected a kernel as packed_kernel returns it")
    (_, ins, _), outs, threads = kernel.shape, len(bias), torch.get_num_threads()
    maps, bias = dense(maps), vector(bias, outs)
    _check_channels(maps, ins)
    images, _, height, width = maps.shape
    down, across = _tile_grid(maps)
    blocks = _divided(images * down * across, ins, outs, threads)
    of_block = -(-images * down * across // max(blocks.count, 1))
    transformed = numbers(blocks.together, _POINTS, of_block * ins + _APART)
    products = numbers(threads, _POINTS, of_block * blocks.panels * _PANEL + _APART)
    outputs = new_maps(maps, outs)
    call(
        "winograd_convolve",
        images=images,
        height=height,
        width=width,
        down=down,
        across=across,
        ins=ins,
        outs=outs,
        blocks=blocks.count,
        tiles_plane=transformed.stride(1),
        products_plane=products.stride(1),
        by_channels=blocks.by_channels,
        maps=maps,
        kernel=kernel,
        bias=bias,
        transformed=transformed,
        products=products,
        outputs=outputs,
    )
    return outputs


@dataclass(frozen=True)
class _Blocks:
    """How tiles and channels are divided among threads.

    Attributes:
        count: Blocks of tiles.
        together: Of them, those that are transformed at the same time.
        panels: Panels of output channels that a thread computes of a block.
        by_channels: Whether threads compute some channels of each block, rather than all of some blocks.
    """

    count: int
    together: int
    panels: int
    by_channels: bool


def _divided(tiles: int, ins: int, outs: int, threads: int) -> _Blocks:
    """Let threads read parts of the kernel for all tiles, or all of it for parts of the tiles.

    The first takes 0.65 to 0.95 of the time where a block would hold all tiles, and as long or longer elsewhere.
    """
    panels, of_block = -(-outs // _PANEL), ins * outs // _BLOCK_PER
    balanced = panels % threads == 0 or panels >= 8 * threads
    if threads > 1 and balanced and tiles <= of_block:
        return _Blocks(-(-tiles // _MOST), 1, -(-panels // threads), by_channels=True)
    most = threads * min(max(of_block, _FEWEST), _MOST)
    return _Blocks(threads * -(-tiles // most), threads, panels, by_channels=False)


def _check_channels(maps: Tensor, channels: int) -> None:
    if maps.shape[1] != channels:
        raise ValueError(f"maps of {maps.shape[1]} channels for a kernel of {channels}")


def _tile_grid(maps: Tensor) -> tuple[int, int]:
    """Return how many tiles maps have along each side, the last perhaps only in part."""
    return -(-maps.shape[2] // _OUT), -(-maps.shape[3] // _OUT)


def _image_chunks(maps: Tensor, channels: int) -> list[slice]:
    """Return slices of a batch whose tiles fit in caches, with at least one image each."""
    down, across = _tile_grid(maps)
    at_once = max(1, _MOST_NUMBERS // max(1, _POINTS * down * across * channels))
    return [slice(start, start + at_once) for start in range(0, len(maps), at_once)]


def _tiles(function: str, maps: Tensor) -> Tensor:
    """Return maps [B, C, H, W] as transformed tiles [36, T, C]."""
    down, across = _tile_grid(maps)
    tiles = _planes(len(maps) * down * across, maps.shape[1])
    call(function, **_grid(maps, tiles), source=maps, target=tiles)
    return tiles


def _transformed_kernel(kernel: Tensor) -> Tensor:
    """Return a kernel [D, C, 3, 3] transformed, [36, D, C]."""
    if kernel.dtype != torch.float32 or kernel.shape[2:] != (3, 3):
        raise TypeError(f"expected a float32 kernel of 3×3, got {kernel.dtype} {list(kernel.shape)}")
    kernel = kernel if kernel.stride(2) == 3 * kernel.stride(3) else kernel.contiguous()
    transformed = _planes(*kernel.shape[:2])
    call("winograd_kernel", **_strides(kernel, transformed), source=kernel, target=transformed)
    return transformed


def _new_kernel(like: Tensor) -> Tensor:
    """Return memory for a kernel's gradient, whose taps lie at equal distances."""
    layout = torch.contiguous_format if like.is_contiguous() else torch.channels_last
    return torch.empty_like(like, memory_format=layout)


def _planes(rows: int, channels: int) -> Tensor:
    """Return memory for float32 [36, rows, channels], dense but between the 36."""
    count = rows * channels
    return numbers(_POINTS, count + _APART)[:, :count].view(_POINTS, rows, channels)


def _grid(maps: Tensor, tiles: Tensor) -> dict[str, int]:
    images, channels, height, width = maps.shape
    down, across = _tile_grid(maps)
    size = {"images": images, "height": height, "width": width, "channels": channels}
    return {**size, "down": down, "across": across, "plane": tiles.stride(0)}


def _strides(kernel: Tensor, transformed: Tensor) -> dict[str, int]:
    strides = {"row_stride": kernel.stride(0), "channel_stride": kernel.stride(1), "tap_stride": kernel.stride(3)}
    return {"rows": len(kernel), "channels": kernel.shape[1], "plane": transformed.stride(0), **strides}


def _conv_3x3_backward_shapes(_: Tensor, maps: Tensor, kernel: Tensor, needed: list[bool]) -> list[Tensor]:
    to_maps = new_maps(maps, maps.shape[1]) if needed[0] else maps.new_empty(0)
    return [to_maps, _new_kernel(kernel) if needed[1] else maps.new_empty(0)]


register(
    "conv_3x3(Tensor maps, Tensor kernel, Tensor? bias) -> Tensor",
    _conv_3x3,
    lambda maps, kernel, bias: new_maps(maps, len(kernel)),
)
register(
    "conv_3x3_backward(Tensor gradient, Tensor maps, Tensor kernel, bool[2] needed) -> Tensor[]",
    _conv_3x3_backward,
    _conv_3x3_backward_shapes,
)
register_gradients("conv_3x3", _keep_for_conv_3x3, _conv_3x3_gradients)
register(
    "conv_3x3_packed(Tensor maps, Tensor kernel, Tensor bias) -> Tensor",
    _conv_3x3_packed,
    lambda maps, kernel, bias: new_maps(maps, len(bias)),
)
