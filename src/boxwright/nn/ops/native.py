"""The optional extension in C, and the operator of it that normalizes.

Its operators are registered with PyTorch as `boxwright::…`, with shapes and gradients, for float32 maps on a CPU that
have channels last in memory. The sources are in `native/`; a build without a compiler makes no extension, and callers
ask `is_usable` before each call. Results equal PyTorch's up to float32 rounding and do not depend on the number of
threads.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

Activation = Literal["none", "relu", "relu6", "swish"]

_INTERFACE = 1  # as in native/level.c
_PARTS, _MOST_CHANNELS = 16, 8192  # sums are taken of so many parts, whose channels are on the stack
ACTIVATIONS: dict[str, tuple[int, float, float]] = {
    "none": (0, -math.inf, math.inf),
    "relu": (0, 0.0, math.inf),
    "relu6": (0, 0.0, 6.0),
    "swish": (1, -math.inf, math.inf),
}
"""Activations by name: a kind, clamp or Swish, and the clamp's bounds."""


def structure(**names: str) -> type[ctypes.Structure]:
    """Return a structure of the C sources from its fields' names by type; "address" is that of a tensor, or null."""
    types = {"long": ctypes.c_long, "int": ctypes.c_int, "float": ctypes.c_float, "double": ctypes.c_double}
    fields = [(name, types.get(kind, ctypes.c_void_p)) for kind, given in names.items() for name in given.split()]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


_NORM_ACT = structure(
    long="rows channels",
    int="threads kind",
    float="low high",
    double="epsilon",
    address="maps gain bias shortcut sums statistics outputs",
)
_NORM_ACT_BACKWARD = structure(
    long="rows channels",
    int="threads kind",
    float="low high",
    address="gradient maps statistics outputs sums slopes to_parameters to_maps to_shortcut",
)
_TILES = structure(long="images height width down across channels plane", int="threads", address="source bias target")
_KERNEL = structure(
    long="rows channels plane row_stride channel_stride tap_stride", int="threads", address="source target"
)
_CONV = structure(
    long="images height width down across ins outs blocks tiles_plane products_plane",
    int="threads by_channels",
    address="maps kernel bias transformed products outputs",
)
_ARGUMENTS: dict[str, type[ctypes.Structure]] = {
    "norm_act": _NORM_ACT,
    "norm_act_backward": _NORM_ACT_BACKWARD,
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
    """Return the extension, or None where the build made none.

    Args:
        level: The instructions to use; None for the best.

    Raises:
        ImportError: If it was built from other sources than these, or cannot be loaded.
    """
    if not path.is_file():
        return None
    try:
        # The functions of OpenMP that it calls are those of the library that PyTorch has loaded.
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"{error}; without that file PyTorch's operators compute") from None
    if library.boxwright_interface() != _INTERFACE:
        raise ImportError(f"{path} was built from other sources: install the package again, or delete that file")
    library.boxwright_level.restype = ctypes.c_char_p
    level = level or library.boxwright_level().decode()
    functions = {}
    for name, arguments in _ARGUMENTS.items():
        functions[name] = getattr(library, f"{name}_{level}")
        functions[name].argtypes, functions[name].restype = (ctypes.POINTER(arguments),), None
    return Extension(level, functions)


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


def call(name: str, **arguments: object) -> None:
    """Call a function of the extension.

    Args:
        arguments: The fields of its structure but for the number of threads. Tensors are as dense as it expects.
    """
    if EXTENSION is None:
        raise RuntimeError(f"{name} needs the native extension, which this installation lacks")
    values = {key: value.data_ptr() if isinstance(value, Tensor) else value for key, value in arguments.items()}
    EXTENSION.functions[name](_ARGUMENTS[name](threads=torch.get_num_threads(), **values))


def dense(maps: Tensor) -> Tensor:
    """Return float32 [B, C, H, W] with channels last."""
    if maps.dtype != torch.float32 or maps.dim() != 4:
        raise TypeError(f"expected float32 maps of 4 dimensions, got {maps.dtype} {list(maps.shape)}")
    return maps.contiguous(memory_format=torch.channels_last)


def vector(values: Tensor, channels: int) -> Tensor:
    """Return float32 [C], dense."""
    if values.dtype != torch.float32 or values.shape != (channels,):
        raise TypeError(f"expected {channels} float32 numbers, got {values.dtype} {list(values.shape)}")
    return values.contiguous()


def numbers(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return memory on the CPU, whatever PyTorch's default device and dtype are."""
    return torch.empty(size, dtype=dtype, device="cpu")


def new_maps(like: Tensor, channels: int) -> Tensor:
    """Return memory for maps [B, channels, H, W] with channels last; they may have a shape alone, as others have."""
    size = (like.shape[0], channels, *like.shape[2:])
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


_LIBRARY = torch.library.Library("boxwright", "FRAGMENT")


def register(schema: str, compute: Callable[..., Any], shapes: Callable[..., Any]) -> None:
    """Register an operator with PyTorch.

    Args:
        compute: Computes on the CPU.
        shapes: Returns tensors of the same shapes and strides, for graphs.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, compute, "CPU")
    torch.library.register_fake(f"boxwright::{name}", shapes, lib=_LIBRARY)


def register_gradients(name: str, keep: Callable[..., None], gradients: Callable[..., Any]) -> None:
    """Register what an operator keeps for its gradients, and how they are computed.

    A function of autograd costs a call a third of what `torch.library.register_autograd` does.
    """
    operator = getattr(torch.ops.boxwright, name).default

    class Gradients(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                outputs = operator(*inputs)
            keep(ctx, inputs, outputs)
            return outputs

        @staticmethod
        def backward(ctx: Any, *given: Tensor) -> Any:
            if torch.is_grad_enabled():
                raise NotImplementedError(f"boxwright::{name} has no second derivatives (create_graph=True)")
            return gradients(ctx, *given)

    _LIBRARY.impl(name, Gradients.apply, "Autograd")


def norm_act(
    maps: Tensor, gain: Tensor, bias: Tensor, shortcut: Tensor | None, epsilon: float, activation: Activation
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize with the batch's statistics, add a shortcut, and activate.

    PyTorch's operators read and write a map thirteen times for normalization, activation and their gradients; this does
    so eight times.

    Args:
        maps: float32 [B, C, H, W].
        gain: float32 [C]; so is the bias.
        shortcut: As the maps, or None; not before Swish, whose gradient needs more than its result.
        epsilon: Added to the variance.

    Returns:
        float32 [B, C, H, W], channels last; the batch's mean and (biased) variance, float32 [C], without gradients.
    """
    outputs, statistics = torch.ops.boxwright.norm_act.default(maps, gain, bias, shortcut, epsilon, activation)
    return outputs, statistics[2], statistics[4]


def _norm_act(
    maps: Tensor, gain: Tensor, bias: Tensor, shortcut: Tensor | None, epsilon: float, activation: str
) -> tuple[Tensor, Tensor]:
    maps, shortcut = dense(maps), None if shortcut is None else dense(shortcut)
    channels = maps.shape[1]
    rows = maps.numel() // max(channels, 1)
    if rows < 2 or channels > _MOST_CHANNELS or (shortcut is not None and shortcut.shape != maps.shape):
        raise ValueError(f"no normalization of maps {list(maps.shape)} by their own statistics")
    if shortcut is not None and activation == "swish":
        raise ValueError("a shortcut before Swish has no gradient here")
    outputs, statistics = new_maps(maps, channels), numbers(5, channels)
    kind, low, high = ACTIVATIONS[activation]
    call(
        "norm_act",
        rows=rows,
        channels=channels,
        kind=kind,
        low=low,
        high=high,
        epsilon=epsilon,
        maps=maps,
        gain=vector(gain, channels),
        bias=vector(bias, channels),
        shortcut=shortcut,
        sums=numbers(_PARTS, 2, channels, dtype=torch.float64),
        statistics=statistics,
        outputs=outputs,
    )
    return outputs, statistics


def _norm_act_backward(
    gradient: Tensor, maps: Tensor, outputs: Tensor | None, statistics: Tensor, activation: str
) -> list[Tensor]:
    """Return the gradients of the maps, of gain and bias [2, C], and, if outputs are given, of the shortcut."""
    gradient, maps = dense(gradient), dense(maps)
    channels = maps.shape[1]
    to_maps, to_parameters = new_maps(maps, channels), numbers(2, channels)
    to_shortcut = None if outputs is None else new_maps(maps, channels)
    kind, low, high = ACTIVATIONS[activation]
    call(
        "norm_act_backward",
        rows=maps.numel() // channels,
        channels=channels,
        kind=kind,
        low=low,
        high=high,
        gradient=gradient,
        maps=maps,
        statistics=statistics,
        outputs=outputs,
        sums=numbers(_PARTS, 2, channels, dtype=torch.float64),
        slopes=numbers(2, channels),
        to_parameters=to_parameters,
        to_maps=to_maps,
        to_shortcut=to_shortcut,
    )
    return [to_maps, to_parameters] if to_shortcut is None else [to_maps, to_parameters, to_shortcut]


def _keep_for_norm_act(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    maps, _, _, shortcut, _, ctx.activation = inputs
    outputs, statistics = output
    ctx.save_for_backward(maps, statistics, None if shortcut is None else outputs)
    ctx.mark_non_differentiable(statistics)


def _norm_act_gradients(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    maps, statistics, outputs = ctx.saved_tensors
    to_maps, to_parameters, *to_shortcut = torch.ops.boxwright.norm_act_backward.default(
        gradient, maps, outputs, statistics, ctx.activation
    )
    return to_maps, *to_parameters.unbind(), *(to_shortcut or [None]), None, None


def _norm_act_shapes(maps: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return new_maps(maps, maps.shape[1]), maps.new_empty(5, maps.shape[1])


def _norm_act_backward_shapes(_: Tensor, maps: Tensor, outputs: Tensor | None, *__: object) -> list[Tensor]:
    shapes = [new_maps(maps, maps.shape[1]), maps.new_empty(2, maps.shape[1])]
    return shapes if outputs is None else [*shapes, new_maps(maps, maps.shape[1])]


register(
    "norm_act(Tensor maps, Tensor gain, Tensor bias, Tensor? shortcut, float epsilon, str activation)"
    " -> (Tensor, Tensor)",
    _norm_act,
    _norm_act_shapes,
)
register(
    "norm_act_backward(Tensor gradient, Tensor maps, Tensor? outputs, Tensor statistics, str activation) -> Tensor[]",
    _norm_act_backward,
    _norm_act_backward_shapes,
)
register_gradients("norm_act", _keep_for_norm_act, _norm_act_gradients)
