"""Batch normalization and its activation in one pass over a map, by a kernel in C that is compiled where it runs.

PyTorch's operators read and write a map thirteen times for normalization, activation and their gradients; this does so
eight times. Equal up to float32 rounding; the results do not depend on the number of threads.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.ops.compiled import call, compiled, new_numbers

_SOURCE = Path(__file__).with_suffix(".c")
_PARTS = 16  # as in the source
_CLAMP, _SWISH = 0, 1


@dataclass(frozen=True)
class Pointwise:
    """An activation that the kernel computes: a clamp to bounds, or Swish."""

    low: float = -math.inf
    high: float = math.inf
    swish: bool = False


def kind_of(activation: Pointwise) -> int:
    """Return an activation's number in the sources (`pointwise.h`)."""
    return _SWISH if activation.swish else _CLAMP


class _Shape(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_long),
        ("channels", ctypes.c_long),
        ("threads", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


class _Sums(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_long),
        ("channels", ctypes.c_long),
        ("parts", ctypes.c_int),
        ("of_part", ctypes.c_int),
        ("epsilon", ctypes.c_double),
    )


def kernels() -> ctypes.CDLL | CompilerError:
    """Return the compiled functions, or why there are none."""
    return compiled(_SOURCE)


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


def norm_add_act(
    inputs: Tensor, weight: Tensor, bias: Tensor, epsilon: float, other: Tensor, activation: Pointwise
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize with the batch's statistics, add another map, and clamp: the end of a residual block.

    Args:
        other: As the inputs, float32 [B, C, H, W] on the CPU, channels last in memory.
        activation: Not Swish, whose gradient needs more than its result.

    Returns:
        As `norm_act`.

    Raises:
        CompilerError: If there are no kernels here.
    """
    found: tuple[Tensor, Tensor, Tensor] = _NormAddAct.apply(inputs, weight, bias, epsilon, other, activation)
    return found


def norm_act_affine(
    inputs: Tensor, weight: Tensor, bias: Tensor, epsilon: float, gain: Tensor, shift: Tensor, activation: Pointwise
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize with the batch's statistics, clamp, then scale and shift the whole map.

    Args:
        inputs: float32 [B, C, H, W] on the CPU, channels last in memory.
        gain: Of all values alike, [1]; so is the shift.
        activation: Not Swish.

    Returns:
        As `norm_act`.

    Raises:
        CompilerError: If there are no kernels here.
    """
    found: tuple[Tensor, Tensor, Tensor] = _NormActAffine.apply(inputs, weight, bias, epsilon, gain, shift, activation)
    return found


@dataclass(frozen=True)
class BatchScale:
    """A normalization with a batch's statistics, as x × scale + offset, float32 [C] each.

    Attributes:
        inverse: Of the standard deviation with epsilon.
        variance: Biased.
    """

    scale: Tensor
    offset: Tensor
    mean: Tensor
    inverse: Tensor
    variance: Tensor


def batch_scale(inputs: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> BatchScale:
    """Return the normalization of float32 [B, C, H, W] on the CPU, channels last, with gain and bias [C]."""
    shape = _shape(inputs, Pointwise())
    sums = new_numbers(_PARTS, 2, shape.channels, dtype=torch.float64)
    vectors = new_numbers(5, shape.channels)
    call(kernels(), "norm_act_moments", shape, inputs, sums)
    about = _Sums(shape.rows, shape.channels, _PARTS, 2, epsilon)
    call(kernels(), "norm_act_scale", about, sums, inputs, weight, bias, vectors)
    return BatchScale(*vectors.unbind())


def center_gradient(
    gradient: Tensor, inputs: Tensor, scale: Tensor, mean: Tensor, inverse: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """Turn the gradient of a normalized map, channels last, into that of the inputs, in place.

    Args:
        sums: Of the gradient, and of the gradient times the inputs less their mean, float64 [2, C].

    Returns:
        The gradients of the normalization's gain and bias, float32 [C].
    """
    shape = _shape(inputs, Pointwise())
    to_weight, to_bias, level, slope = _slopes(shape.rows, sums[None], scale, inverse)
    call(kernels(), "norm_act_center", shape, inputs, scale, mean, level, slope, gradient)
    return to_weight, to_bias


def _slopes(
    rows: int, sums: Tensor, scale: Tensor, inverse: Tensor, factor: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the gradients of gain and bias, and what normalization takes from a gradient: its mean, its slope.

    Args:
        sums: Of each part of the rows, the first two as for `center_gradient`, float64 [parts, n, C].
        factor: Times the sums, [1]; None for 1.
    """
    parts, of_part, channels = sums.shape
    vectors = new_numbers(4, channels)
    about = _Sums(rows, channels, parts, of_part, 0.0)
    factor = scale.new_ones(1) if factor is None else factor
    call(kernels(), "norm_act_slopes", about, sums, factor, scale, inverse, vectors)
    return vectors.unbind()


def _passed_back(
    shape: _Shape,
    gradient: Tensor,
    inputs: Tensor,
    vectors: tuple[Tensor, ...],
    sums: Tensor,
    factor: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the inputs, the gain and the bias.

    Args:
        vectors: Scale, offset, mean and inverse deviation.
        sums: As for `_slopes`; so is the factor, which is also the gradient's.
    """
    scale, offset, mean, inverse = vectors
    to_weight, to_bias, level, slope = _slopes(shape.rows, sums, scale, inverse, factor)
    to_inputs = torch.empty_like(inputs)
    steep = scale if factor is None else factor * scale
    call(kernels(), "norm_act_back", shape, gradient, inputs, scale, offset, mean, steep, level, slope, to_inputs)
    return to_inputs, to_weight, to_bias


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, inputs: Tensor, weight: Tensor, bias: Tensor, epsilon: float, activation: Pointwise
    ) -> tuple[Tensor, Tensor, Tensor]:
        shape = _shape(inputs, activation)
        scaled = batch_scale(inputs, weight, bias, epsilon)
        outputs = torch.empty_like(inputs)
        call(kernels(), "norm_act_apply", shape, inputs, scaled.scale, scaled.offset, outputs)
        context.save_for_backward(inputs, scaled.scale, scaled.offset, scaled.mean, scaled.inverse)
        context.activation = activation
        context.mark_non_differentiable(scaled.mean, scaled.variance)
        return outputs, scaled.mean, scaled.variance

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        inputs, *vectors = context.saved_tensors
        shape = _shape(inputs, context.activation)
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        sums = new_numbers(_PARTS, 2, shape.channels, dtype=torch.float64)
        call(kernels(), "norm_act_sums", shape, gradient, inputs, *vectors[:3], sums)
        return *_passed_back(shape, gradient, inputs, tuple(vectors), sums), None, None


class _NormAddAct(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, inputs: Tensor, weight: Tensor, bias: Tensor, epsilon: float, other: Tensor, activation: Pointwise
    ) -> tuple[Tensor, Tensor, Tensor]:
        shape = _shape(inputs, activation)
        scaled = batch_scale(inputs, weight, bias, epsilon)
        outputs = torch.empty_like(inputs)
        call(kernels(), "norm_act_add", shape, inputs, scaled.scale, scaled.offset, other, outputs)
        context.save_for_backward(inputs, outputs, scaled.scale, scaled.offset, scaled.mean, scaled.inverse)
        context.activation = activation
        context.mark_non_differentiable(scaled.mean, scaled.variance)
        return outputs, scaled.mean, scaled.variance

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        inputs, outputs, *vectors = context.saved_tensors
        shape, plain = _shape(inputs, context.activation), _shape(inputs, Pointwise())
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        sums = new_numbers(_PARTS, 2, shape.channels, dtype=torch.float64)
        to_other = torch.empty_like(inputs)
        call(kernels(), "norm_act_add_sums", shape, gradient, outputs, inputs, vectors[2], to_other, sums)
        return *_passed_back(plain, to_other, inputs, tuple(vectors), sums), None, to_other, None


class _NormActAffine(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        gain: Tensor,
        shift: Tensor,
        activation: Pointwise,
    ) -> tuple[Tensor, Tensor, Tensor]:
        shape = _shape(inputs, activation)
        scaled = batch_scale(inputs, weight, bias, epsilon)
        outputs = torch.empty_like(inputs)
        call(kernels(), "norm_act_affine", shape, inputs, scaled.scale, scaled.offset, gain, shift, outputs)
        context.save_for_backward(inputs, gain, scaled.scale, scaled.offset, scaled.mean, scaled.inverse)
        context.activation = activation
        context.mark_non_differentiable(scaled.mean, scaled.variance)
        return outputs, scaled.mean, scaled.variance

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        inputs, gain, *vectors = context.saved_tensors
        shape = _shape(inputs, context.activation)
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        sums = new_numbers(_PARTS, 4, shape.channels, dtype=torch.float64)
        call(kernels(), "norm_act_affine_sums", shape, gradient, inputs, *vectors[:3], sums)
        of_all = sums.sum(0)[2:].sum(1).float()
        return *_passed_back(shape, gradient, inputs, tuple(vectors), sums, gain), None, *of_all[:, None], None


def _shape(inputs: Tensor, activation: Pointwise) -> _Shape:
    batch, channels, height, width = inputs.shape
    rows = batch * height * width
    return _Shape(rows, channels, torch.get_num_threads(), kind_of(activation), activation.low, activation.high)
