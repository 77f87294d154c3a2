"""The sigmoid focal loss of class-index targets by a kernel in C (`sigmoid_focal.c`), in one pass each way.

Nothing of the logits' size is kept for the gradient but the logits. Equal up to float32 rounding; the results do not
depend on the number of threads.

Dimensions: B batch, A anchors, C columns.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.ops.compiled import call, compiled, is_readable

_SOURCE = Path(__file__).with_suffix(".c")
# Of logits: below, calling the kernel costs as much as PyTorch's operators.
_LEAST = 1 << 14


class _Shape(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_long),
        ("columns", ctypes.c_long),
        ("threads", ctypes.c_int),
        ("gamma", ctypes.c_float),
        ("negative", ctypes.c_float),
        ("positive", ctypes.c_float),
    )


def kernels() -> ctypes.CDLL | CompilerError:
    """Return the compiled functions, or why there are none."""
    return compiled(_SOURCE)


def gains_from_kernel(logits: Tensor) -> bool:
    """Return whether `compiled_focal_loss` supports logits [B, A, C] and is faster."""
    return (
        not torch.compiler.is_compiling()  # first: a graph of any batch size would be bound by the comparison below
        and is_readable(logits)
        and logits.numel() >= _LEAST
        and not isinstance(kernels(), CompilerError)
    )


def compiled_focal_loss(
    logits: Tensor, classes: Tensor, gamma: float, negative_weight: float, positive_weight: float
) -> Tensor:
    """Return the loss of each anchor, summed over its columns, float32 [B, A].

    Args:
        logits: float32 [B, A, C] on the CPU.
        classes: int64 [B, A]; the positive column, or -1.

    Raises:
        CompilerError: If there are no kernels here.
    """
    losses: Tensor = _CompiledFocal.apply(
        logits.contiguous(), classes.contiguous(), gamma, negative_weight, positive_weight
    )
    return losses


class _CompiledFocal(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, logits: Tensor, classes: Tensor, *settings: float) -> Tensor:
        context.save_for_backward(logits, classes)
        context.settings = settings
        losses = logits.new_empty(classes.shape)
        call(kernels(), "sigmoid_focal_losses", _shape(logits, settings), logits, classes, losses)
        return losses

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        logits, classes = context.saved_tensors
        slopes = torch.empty_like(logits)
        call(
            kernels(),
            "sigmoid_focal_slopes",
            _shape(logits, context.settings),
            gradient.contiguous(),
            logits,
            classes,
            slopes,
        )
        return slopes, None, None, None, None


def _shape(logits: Tensor, settings: tuple[float, ...]) -> _Shape:
    columns = logits.shape[-1]
    return _Shape(logits.numel() // columns, columns, torch.get_num_threads(), *settings)
