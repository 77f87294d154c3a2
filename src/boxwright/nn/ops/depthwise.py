"""An activation and the depthwise convolution after it in one pass over a map, by a kernel in C (`depthwise.c`).

Layer by layer, the map before a depthwise convolution, a mobile network's largest, is read for its statistics, written
normalized and read again; a padded copy is made for strides; and three operators pass its gradient back. Here the
activated map is never written, and its gradient is passed back at once. For inference, a depthwise convolution and the
activation after it. Equal up to float32 rounding; the results do not depend on the number of threads.

Dimensions: B batch, C channels, H W grid, H' W' the output's.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.ops.compiled import call, compiled, new_maps, new_numbers
from boxwright.nn.ops.norm_act import Pointwise, batch_scale, center_gradient, kind_of

_SOURCE = Path(__file__).with_suffix(".c")
_LANES = 16  # the most of the source's
LEAST_CHANNELS = _LANES
"""Of `depthwise_act`, which computes whole vectors."""
_MOST_PARTS = 16
SIDES, STRIDES = (3, 5), (1, 2)
"""The kernels' sides and the strides that there are."""


@dataclass(frozen=True)
class Window:
    """A kernel's side and stride, and the zeros around a map: pixels above and left, and of the output [H', W']."""

    side: int
    stride: int
    top: int
    left: int
    out_height: int
    out_width: int


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_long) for name in ("batch", "height", "width", "channels", "out_height", "out_width")),
        *((name, ctypes.c_int) for name in ("side", "stride", "top", "left", "threads", "parts", "kind")),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


def kernels() -> ctypes.CDLL | CompilerError:
    """Return the compiled functions, or why there are none."""
    return compiled(_SOURCE)


def act_depthwise(inputs: Tensor, activation: Pointwise, kernel: Tensor, window: Window) -> Tensor:
    """Activate and convolve each channel.

    Args:
        inputs: float32 [B, C, H, W] on the CPU, channels last in memory.
        kernel: float32 [C, 1, side, side].

    Returns:
        float32 [B, C, H', W'], channels last.

    Raises:
        CompilerError: If there are no kernels here.
    """
    outputs: Tensor = _ActDepthwise.apply(inputs, activation, kernel, window)
    return outputs


def norm_act_depthwise(
    inputs: Tensor, weight: Tensor, bias: Tensor, epsilon: float, activation: Pointwise, kernel: Tensor, window: Window
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize with the batch's statistics, activate, and convolve each channel.

    Args:
        inputs: float32 [B, C, H, W] on the CPU, channels last in memory.
        weight: The normalization's gain, [C].
        kernel: float32 [C, 1, side, side].

    Returns:
        float32 [B, C, H', W'], channels last; the batch's mean and (biased) variance, float32 [C], without gradients.

    Raises:
        CompilerError: If there are no kernels here.
    """
    found: tuple[Tensor, Tensor, Tensor] = _NormActDepthwise.apply(
        inputs, weight, bias, epsilon, activation, kernel, window
    )
    return found


def depthwise_act(inputs: Tensor, taps: Tensor, bias: Tensor, activation: Pointwise, window: Window) -> Tensor:
    """Convolve each channel and activate, without gradients.

    Args:
        inputs: float32 [B, C, H, W] on the CPU, channels last in memory, of at least `LEAST_CHANNELS`.
        taps: The kernels as `taps_of` lays them out.
        bias: float32 [C].

    Returns:
        float32 [B, C, H', W'], channels last.

    Raises:
        CompilerError: If there are no kernels here.
        ValueError: If there are fewer channels.
    """
    if inputs.shape[1] < LEAST_CHANNELS:
        raise ValueError(f"{inputs.shape[1]} channels: expected at least {LEAST_CHANNELS}")
    shape = _shape(inputs, activation, window)
    outputs = new_maps(shape.batch, shape.channels, shape.out_height, shape.out_width)
    call(kernels(), "depthwise_act", shape, inputs, taps, bias, outputs)
    return outputs


class _ActDepthwise(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: Tensor, activation: Pointwise, kernel: Tensor, window: Window) -> Tensor:
        context.save_for_backward(inputs, kernel)
        context.settings = activation, window
        return _convolved(inputs, *_unscaled(inputs), kernel, *context.settings)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, kernel = context.saved_tensors
        scale, offset = _unscaled(inputs)
        to_inputs, to_kernel, _ = _passed_back(gradient, inputs, scale, offset, offset, kernel, *context.settings)
        return to_inputs, None, to_kernel, None


class _NormActDepthwise(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        activation: Pointwise,
        kernel: Tensor,
        window: Window,
    ) -> tuple[Tensor, Tensor, Tensor]:
        scaled = batch_scale(inputs, weight, bias, epsilon)
        context.save_for_backward(inputs, kernel, scaled.scale, scaled.offset, scaled.mean, scaled.inverse)
        context.settings = activation, window
        outputs = _convolved(inputs, scaled.scale, scaled.offset, kernel, activation, window)
        context.mark_non_differentiable(scaled.mean, scaled.variance)
        return outputs, scaled.mean, scaled.variance

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        inputs, kernel, scale, offset, mean, inverse = context.saved_tensors
        to_inputs, to_kernel, sums = _passed_back(gradient, inputs, scale, offset, mean, kernel, *context.settings)
        to_weight, to_bias = center_gradient(to_inputs, inputs, scale, mean, inverse, sums)
        return to_inputs, to_weight, to_bias, None, None, to_kernel, None


def _unscaled(inputs: Tensor) -> tuple[Tensor, Tensor]:
    return inputs.new_ones(inputs.shape[1]), inputs.new_zeros(inputs.shape[1])


def _convolved(
    inputs: Tensor, scale: Tensor, offset: Tensor, kernel: Tensor, activation: Pointwise, window: Window
) -> Tensor:
    shape = _shape(inputs, activation, window)
    outputs = new_maps(shape.batch, shape.channels, shape.out_height, shape.out_width)
    rings = new_numbers(shape.threads, (shape.side + 1) * _chunked(shape) * _padded(shape)).zero_()
    call(kernels(), "depthwise_forward", shape, inputs, scale, offset, taps_of(kernel), rings, outputs)
    return outputs


def _passed_back(
    gradient: Tensor,
    inputs: Tensor,
    scale: Tensor,
    offset: Tensor,
    mean: Tensor,
    kernel: Tensor,
    activation: Pointwise,
    window: Window,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of inputs × scale + offset and of the kernel; sums of the former, and of it by x - mean."""
    shape = _shape(inputs, activation, window)
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    to_inputs = torch.empty_like(inputs)
    sums = new_numbers(shape.parts, shape.side**2 + 2, shape.channels, dtype=torch.float64)
    numbers = _chunked(shape) * (shape.side * _framed(shape) + 2 * _padded(shape)) + _LANES * shape.width
    rows = new_numbers(shape.threads, numbers).zero_()
    call(
        kernels(),
        "depthwise_back",
        shape,
        gradient,
        inputs,
        scale,
        offset,
        mean,
        taps_of(kernel),
        rows,
        to_inputs,
        sums,
    )
    totals = sums.sum(0)
    return to_inputs, totals[:-2].t().reshape(kernel.shape).float(), totals[-2:]


def taps_of(kernel: Tensor) -> Tensor:
    """Return kernels [C, 1, side, side] as float32 [side × side, C]."""
    return kernel.flatten(1).t().contiguous()


def _chunked(shape: _Shape) -> int:
    """Return the channels, with those that fill the last of a chunk's lanes."""
    channels: int = shape.channels
    return -(-channels // _LANES) * _LANES


def _padded(shape: _Shape) -> int:
    """Return the pixels of a padded row, as the source computes it; so does `_framed`."""
    pixels: int = max(shape.out_width * shape.stride + shape.side, shape.left + shape.width)
    return pixels


def _framed(shape: _Shape) -> int:
    pixels: int = shape.side - 1 + max(shape.out_width, (shape.left + shape.width - 1) // shape.stride + 1)
    return pixels


def _shape(inputs: Tensor, activation: Pointwise, window: Window) -> _Shape:
    batch, channels, height, width = inputs.shape
    # Each part has sums of its own, which for a small map of many channels would be larger than the map.
    parts = max(2, min(_MOST_PARTS, batch * height * width // (16 * window.side**2)))
    low, high = activation.low, activation.high
    sizes = (batch, height, width, channels, window.out_height, window.out_width)
    place = (window.side, window.stride, window.top, window.left)
    return _Shape(*sizes, *place, torch.get_num_threads(), parts, kind_of(activation), low, high)
