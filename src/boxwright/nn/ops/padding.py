"""Zero padding, including TF's SAME.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Sides = tuple[int, int, int, int]
"""Pixels left, right, above and below, in the order of `F.pad`."""


def same_padding(input: Tensor, kernel_size: tuple[int, ...], stride: int) -> Sides:
    """Return TF's SAME padding of maps; the odd pixel is right and below."""
    height, width = (
        max((-(-size // stride) - 1) * stride + side - size, 0)
        for size, side in zip(input.shape[-2:], kernel_size, strict=True)
    )
    return width // 2, width - width // 2, height // 2, height - height // 2


def padded_to_multiple(inputs: Tensor, multiple: int) -> Tensor:
    """Return images [B, C, H, W] padded with zeros below and right to multiples of a number."""
    below, right = -inputs.shape[-2] % multiple, -inputs.shape[-1] % multiple
    return F.pad(inputs, (0, right, 0, below)) if below or right else inputs


def zero_padded(input: Tensor, sides: Sides) -> Tensor:
    """Return maps [B, C, H, W] padded with zeros; the input itself without padding."""
    if torch.compiler.is_compiling():  # checked before sizes, which may be dynamic in a graph
        return F.pad(input, sides)
    if not any(sides):
        return input
    if input.is_meta:
        return F.pad(input, sides)
    padded: Tensor = _ZeroPad.apply(input, sides)
    return padded


class _ZeroPad(torch.autograd.Function):
    """`F.pad` whose gradient is a view, not a copy, of the incoming gradient."""

    @staticmethod
    def forward(context: Any, input: Tensor, sides: Sides) -> Tensor:
        left, right, above, below = sides
        batch, channels, height, width = input.shape
        output = torch.empty(
            (batch, channels, above + height + below, left + width + right),
            dtype=input.dtype,
            device=input.device,
            memory_format=torch.contiguous_format if input.is_contiguous() else torch.channels_last,
        )
        inside = (..., slice(above, above + height), slice(left, left + width))
        if input.device.type == "cuda":
            output.fill_(0)  # as fast as a border, in one launch
        else:
            output[..., :above, :], output[..., above + height :, :] = 0, 0
            output[..., :left], output[..., left + width :] = 0, 0
        output[inside] = input
        context.inside = inside
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[context.inside], None
