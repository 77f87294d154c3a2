"""The optional extension in C: 3×3 convolutions by Winograd's algorithm, with a quarter of the multiplications.

Its operators are registered with PyTorch as `boxwright::…`, with shapes and gradients, for float32 maps on a CPU that
have channels last in memory. The sources are in `native/`; a build without a compiler makes no extension, and callers
ask `is_usable` before each call. Results are as exact as PyTorch's (`winograd.py` says how the algorithm works) and do
not depend on the number of threads, but for the gradients of kernels, whose products are PyTorch's.

Dimensions: B batch, C channels, D output channels, H W grid, T tiles.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_INTERFACE = 1  # as in native/level.c
_OUT, _POINTS = 4, 36  # a tile's outputs along each side; the numbers of a transformed tile
_PANEL = 32  # output channels that lie together in a packed kernel, as in native/winograd_inference.c
# Numbers between the 36 planes: in steps of whole pages, a tile's 36 numbers share one set of the cache's lines, and
# storing them takes up to twice as long.
_APART = 16
_MOST_NUMBERS = 2**24  # in the tiles of images that are convolved together in a step
# Tiles that a thread transforms before it multiplies them: the size of a kernel over this number, since the kernel is
# read again for each such block, and the block's numbers should stay in the cache.
_BLOCK_PER, _FEWEST, _MOST = 320, 48, 256


def _structure(**names: str) -> type[ctypes.Structure]:
    """Return a structure of the C sources from its fields' names by type; "address" is that of a tensor, or null."""
    types = {"long": ctypes.c_long, "int": ctypes.c_int}
    fields = [(name, types.get(kind, ctypes.c_void_p)) for kind, given in names.items() for name in given.split()]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


_TILES = _structure(long="images height width down across channels plane", int="threads", address="source bias target")
_KERNEL = _structure(
    long="rows channels plane row_stride channel_stride tap_stride", int="threads", address="source target"
)
_CONV = _structure(
    long="images height width down across ins outs blocks tiles_plane products_plane",
    int="threads by_channels",
    address="maps kernel bias transformed products outputs",
)
_ARGUMENTS: dict[str, type[ctypes.Structure]] = {
    "winograd_inputs_to_tiles": _TILES,
    "winograd_outputs_to_tiles": _TILES,
    "winograd_tiles_to_outputs": _TILES,
    "winograd_tiles_to_inputs": _TILES,
    "winograd_kernel": _KERNEL,
    "winograd_kernel_backward": _KERNEL,
    "winograd_convolve": _CONV,
}


@dataclass(frozen=True)
class Extension:
    """The loaded extension.

    Attributes:
        level: The instructions that it uses, the best of this processor's: "portable", "avx2" or "avx512".
        functions: Its functions for that level.
    """

    level: str
    functions: dict[str, Callable[[ctypes.Structure], None]]


def load_extension(path: Path, level: str | None = None) -> Extension | None:
    """Return the extension, or None where the build made none, or, with a warning, one that does not fit.

    Args:
        level: The instructions to use; None for the best.
    """
    if not path.is_file():
        return None
    try:
        # The functions of OpenMP that it calls are those of the library that PyTorch has loaded.
        library = ctypes.CDLL(str(path))
    except OSError as error:
        _warn(f"it cannot be loaded ({error})")
        return None
    if library.boxwright_interface() != _INTERFACE:
        _warn(f"{path} was built from other sources; install the package again")
        return None
    library.boxwright_level.restype = ctypes.c_char_p
    level = level or library.boxwright_level().decode()
    functions = {}
    for name, arguments in _ARGUMENTS.items():
        functions[name] = getattr(library, f"{name}_{level}")
        functions[name].argtypes, functions[name].restype = (ctypes.POINTER(arguments),), None
    return Extension(level, functions)


def _warn(reason: str) -> None:
    warnings.warn(f"PyTorch's operators compute without the native extension: {reason}", RuntimeWarning, stacklevel=3)


EXTENSION = load_extension(Path(__file__).parents[2] / "_native.so")
"""The extension of this installation, if it has one."""


def is_readable(tensor: Tensor) -> bool:
    """Return whether a tensor has float32 numbers on the CPU; other types only have a shape, or count memory."""
    return type(tensor) in (Tensor, nn.Parameter) and tensor.is_cpu and tensor.dtype == torch.float32


def is_usable(maps: Tensor) -> bool:
    """Return whether the operators can compute with maps [B, C, H, W] here, and no graph is being made of them."""
    return (
        EXTENSION is not None
        # Graphs consist of PyTorch's operators alone. This is asked first: sizes may be symbols in one.
        and not (torch.compiler.is_compiling() or torch._C._is_tracing())
        and not torch._C._are_functorch_transforms_active()  # as of `torch.func.vmap`, for which there is no rule
        and is_readable(maps)
        and maps.is_contiguous(memory_format=torch.channels_last)
        and not torch.is_autocast_enabled("cpu")
    )


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


def _call(name: str, **arguments: object) -> None:
    """Call a function of the extension.

    Args:
        arguments: The fields of its structure but for the number of threads. Tensors are as dense as it expects.
    """
    if EXTENSION is None:
        raise RuntimeError(f"{name} needs the native extension, which this installation lacks")
    values = {key: value.data_ptr() if isinstance(value, Tensor) else value for key, value in arguments.items()}
    EXTENSION.functions[name](_ARGUMENTS[name](threads=torch.get_num_threads(), **values))


def _dense(maps: Tensor) -> Tensor:
    """Return float32 [B, C, H, W] with channels last."""
    if maps.dtype != torch.float32 or maps.dim() != 4:
        raise TypeError(f"expected float32 maps of 4 dimensions, got {maps.dtype} {list(maps.shape)}")
    return maps.contiguous(memory_format=torch.channels_last)


def _vector(values: Tensor, channels: int) -> Tensor:
    """Return float32 [C], dense."""
    if values.dtype != torch.float32 or values.shape != (channels,):
        raise TypeError(f"expected {channels} float32 numbers, got {values.dtype} {list(values.shape)}")
    return values.contiguous()


def _numbers(*size: int) -> Tensor:
    """Return memory on the CPU, whatever PyTorch's default device and dtype are."""
    return torch.empty(size, dtype=torch.float32, device="cpu")


def _new_maps(like: Tensor, channels: int) -> Tensor:
    """Return memory for maps [B, channels, H, W] with channels last; they may have a shape alone, as others have."""
    size = (like.shape[0], channels, *like.shape[2:])
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _conv_3x3(maps: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    maps, transformed = _dense(maps), _transformed_kernel(kernel)
    _check_channels(maps, kernel.shape[1])
    shift = _numbers(len(kernel)).zero_() if bias is None else _vector(bias, len(kernel))
    outputs = _new_maps(maps, len(kernel))
    for images in _image_chunks(maps, max(kernel.shape[:2])):
        products, target = torch.bmm(_tiles("winograd_inputs_to_tiles", maps[images]), transformed.mT), outputs[images]
        _call("winograd_tiles_to_outputs", **_grid(target, products), source=products, bias=shift, target=target)
    return outputs


def _conv_3x3_backward(gradient: Tensor, maps: Tensor, kernel: Tensor, needed: list[bool]) -> list[Tensor]:
    """Return the gradients of the maps and of the kernel; one that is not needed is empty."""
    gradient, maps = _dense(gradient), _dense(maps)
    transformed = _transformed_kernel(kernel) if needed[0] else None
    to_maps = _new_maps(maps, maps.shape[1]) if needed[0] else _numbers(0)
    to_transformed = _planes(*kernel.shape[:2]).zero_() if needed[1] else None
    for images in _image_chunks(maps, max(kernel.shape[:2])):
        to_products = _tiles("winograd_outputs_to_tiles", gradient[images])
        if to_transformed is not None:
            to_transformed.baddbmm_(to_products.mT, _tiles("winograd_inputs_to_tiles", maps[images]))
        if transformed is not None:
            tiles, target = torch.bmm(to_products, transformed), to_maps[images]
            _call("winograd_tiles_to_inputs", **_grid(target, tiles), source=tiles, target=target)
    if to_transformed is None:
        return [to_maps, _numbers(0)]
    to_kernel = _new_kernel(kernel)
    _call("winograd_kernel_backward", **_strides(to_kernel, to_transformed), source=to_transformed, target=to_kernel)
    return [to_maps, to_kernel]


class _Conv3x3(torch.autograd.Function):
    """The convolution with its gradients; costs a call a third of what `torch.library.register_autograd` does."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(maps, kernel)
        with torch._C._AutoDispatchBelowAutograd():
            outputs: Tensor = torch.ops.boxwright.conv_3x3.default(maps, kernel, bias)
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError("boxwright::conv_3x3 has no second derivatives (create_graph=True)")
        needed = list(ctx.needs_input_grad)
        to_maps, to_kernel = torch.ops.boxwright.conv_3x3_backward.default(gradient, *ctx.saved_tensors, needed[:2])
        to_bias = channel_sums(gradient) if needed[2] else None
        return to_maps if needed[0] else None, to_kernel if needed[1] else None, to_bias


def channel_sums(maps: Tensor) -> Tensor:
    """Return the sums [C] of [B, C, H, W], by a product with ones: on a CPU twice as fast as `sum`."""
    rows = maps.permute(0, 2, 3, 1).flatten(0, 2)
    return (rows.new_ones(1, len(rows)) @ rows)[0]


def _conv_3x3_packed(maps: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    if kernel.dtype != torch.float32 or not kernel.is_contiguous():
        raise TypeError("expected a kernel as packed_kernel returns it")
    (_, ins, _), outs, threads = kernel.shape, len(bias), torch.get_num_threads()
    maps, bias = _dense(maps), _vector(bias, outs)
    _check_channels(maps, ins)
    images, _, height, width = maps.shape
    down, across = _tile_grid(maps)
    blocks = _divided(images * down * across, ins, outs, threads)
    of_block = -(-images * down * across // max(blocks.count, 1))
    transformed = _numbers(blocks.together, _POINTS, of_block * ins + _APART)
    products = _numbers(threads, _POINTS, of_block * blocks.panels * _PANEL + _APART)
    outputs = _new_maps(maps, outs)
    _call(
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
    _call(function, **_grid(maps, tiles), source=maps, target=tiles)
    return tiles


def _transformed_kernel(kernel: Tensor) -> Tensor:
    """Return a kernel [D, C, 3, 3] transformed, [36, D, C]."""
    if kernel.dtype != torch.float32 or kernel.shape[2:] != (3, 3):
        raise TypeError(f"expected a float32 kernel of 3×3, got {kernel.dtype} {list(kernel.shape)}")
    kernel = kernel if kernel.stride(2) == 3 * kernel.stride(3) else kernel.contiguous()
    transformed = _planes(*kernel.shape[:2])
    _call("winograd_kernel", **_strides(kernel, transformed), source=kernel, target=transformed)
    return transformed


def _new_kernel(like: Tensor) -> Tensor:
    """Return memory for a kernel's gradient, whose taps lie at equal distances."""
    layout = torch.contiguous_format if like.is_contiguous() else torch.channels_last
    return torch.empty_like(like, memory_format=layout)


def _planes(rows: int, channels: int) -> Tensor:
    """Return memory for float32 [36, rows, channels], dense but between the 36."""
    count = rows * channels
    return _numbers(_POINTS, count + _APART)[:, :count].view(_POINTS, rows, channels)


def _grid(maps: Tensor, tiles: Tensor) -> dict[str, int]:
    images, channels, height, width = maps.shape
    down, across = _tile_grid(maps)
    size = {"images": images, "height": height, "width": width, "channels": channels}
    return {**size, "down": down, "across": across, "plane": tiles.stride(0)}


def _strides(kernel: Tensor, transformed: Tensor) -> dict[str, int]:
    strides = {"row_stride": kernel.stride(0), "channel_stride": kernel.stride(1), "tap_stride": kernel.stride(3)}
    return {"rows": len(kernel), "channels": kernel.shape[1], "plane": transformed.stride(0), **strides}


def _conv_3x3_backward_shapes(_: Tensor, maps: Tensor, kernel: Tensor, needed: list[bool]) -> list[Tensor]:
    to_maps = _new_maps(maps, maps.shape[1]) if needed[0] else maps.new_empty(0)
    return [to_maps, _new_kernel(kernel) if needed[1] else maps.new_empty(0)]


_LIBRARY = torch.library.Library("boxwright", "FRAGMENT")


def _register(schema: str, compute: Callable[..., Any], shapes: Callable[..., Any]) -> None:
    """Register an operator with PyTorch.

    Args:
        compute: Computes on the CPU.
        shapes: Returns tensors of the same shapes and strides, for graphs.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, compute, "CPU")
    torch.library.register_fake(f"boxwright::{name}", shapes, lib=_LIBRARY)


_register(
    "conv_3x3(Tensor maps, Tensor kernel, Tensor? bias) -> Tensor",
    _conv_3x3,
    lambda maps, kernel, bias: _new_maps(maps, len(kernel)),
)
_register(
    "conv_3x3_backward(Tensor gradient, Tensor maps, Tensor kernel, bool[2] needed) -> Tensor[]",
    _conv_3x3_backward,
    _conv_3x3_backward_shapes,
)
_LIBRARY.impl("conv_3x3", _Conv3x3.apply, "Autograd")
_register(
    "conv_3x3_packed(Tensor maps, Tensor kernel, Tensor bias) -> Tensor",
    _conv_3x3_packed,
    lambda maps, kernel, bias: _new_maps(maps, len(bias)),
)
