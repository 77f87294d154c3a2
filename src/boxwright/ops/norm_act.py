"""Batch normalization and its activation in one pass over a map, by a kernel in C that is compiled where it runs.

PyTorch's operators read and write a map thirteen times for normalization, activation and their gradients; this does so
eight times. Equal up to float32 rounding; the results do not depend on the number of threads.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from boxwright.base.c_compiler import CompilerError, compiled_library

_SOURCE = Path(__file__).with_suffix(".c")
_PARTS = 16  # as in the source
_CLAMP, _SWISH = 0, 1


@dataclass(frozen=True)
class Pointwise:
    """An activation that the kernel computes: a clamp to bounds, or Swish."""

    low: float = -math.inf
    high: float = math.inf
    swish: bool = False


class _Shape(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_long),
        ("channels", ctypes.c_long),
        ("threads", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


@cache
def kernels() -> ctypes.CDLL | CompilerError:
    """Return the compiled functions, or why there are none; compiles at the first call where the cache lacks them."""
    try:
        return compiled_library(_SOURCE)
    except CompilerError as error:
        return error


def norm_act(
    inputs: Tensor, weight: Tensor, bias: Tensor, epsilon: float, activation: Pointwise
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize with the batch's statistics, and activate.

    Args:
        inputs: float32 [B, C, H, W] on the CPU, channels last in memory.
        weight: The gain, [C].

    Returns:
        float32 [B, C, H, W], channels last; the batch's mean and (biased) variance, float32 [C], without gradients.

    Raises:
        CompilerError: If there are no kernels here.
    """
    found: tuple[Tensor, Tensor, Tensor] = _NormAct.apply(inputs, weight, bias, epsilon, activation)
    return found


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, inputs: Tensor, weight: Tensor, bias: Tensor, epsilon: float, activation: Pointwise
    ) -> tuple[Tensor, Tensor, Tensor]:
        shape = _shape(inputs, activation)
        sums = torch.empty(_PARTS, 2, shape.channels, dtype=torch.float64)
        _call("norm_act_moments", shape, inputs, sums)
        first, second = sums.sum(0) / shape.rows
        # Of differences from the first row's values: a mean of squares loses digits where the mean is large.
        mean, variance = inputs[0, :, 0, 0] + first, second - first * first
        inverse = torch.rsqrt(variance + epsilon)
        scale = weight * inverse
        vectors = (scale, bias - mean * scale, mean, inverse)
        scale, offset, center, inverse = (vector.float() for vector in vectors)
        outputs = torch.empty_like(inputs)
        _call("norm_act_apply", shape, inputs, scale, offset, outputs)
        context.save_for_backward(inputs, scale, offset, center, inverse)
        context.activation = activation
        statistics = center, variance.float()
        context.mark_non_differentiable(*statistics)
        return outputs, *statistics

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        inputs, scale, offset, mean, inverse = context.saved_tensors
        shape = _shape(inputs, context.activation)
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        sums = torch.empty(_PARTS, 2, shape.channels, dtype=torch.float64)
        _call("norm_act_sums", shape, gradient, inputs, scale, offset, mean, sums)
        to_bias, along = sums.sum(0)
        to_weight = along * inverse
        level, slope = (scale * to_bias / shape.rows).float(), (scale * inverse * to_weight / shape.rows).float()
        to_inputs = torch.empty_like(inputs)
        _call("norm_act_back", shape, gradient, inputs, scale, offset, mean, level, slope, to_inputs)
        return to_inputs, to_weight.float(), to_bias.float(), None, None


def _shape(inputs: Tensor, activation: Pointwise) -> _Shape:
    batch, channels, height, width = inputs.shape
    kind = _SWISH if activation.swish else _CLAMP
    rows = batch * height * width
    return _Shape(rows, channels, torch.get_num_threads(), kind, activation.low, activation.high)


def _call(name: str, shape: _Shape, *tensors: Tensor) -> None:
    library = kernels()
    if isinstance(library, CompilerError):
        raise library
    getattr(library, name)(ctypes.byref(shape), *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors))
