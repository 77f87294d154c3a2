"""Penalties on kernels and biases, and their sum over a network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from boxwright.base.distributed import gathered, is_sharded

# The attribute of modules in which `penalize_all` keeps their tensors' regularizers.
_OF_ALL = "regularizers_of_all"


@dataclass(frozen=True)
class Regularizer:
    """A penalty on a kernel, added to the loss.

    Attributes:
        l2: Multiplies half the sum of squares, as TF-Slim's `l2_regularizer`.
    """

    l1: float = 0.0
    l2: float = 0.0


def regularization_loss(network: nn.Module) -> Tensor:
    """Return the sum of all penalties, a scalar; 0 without any."""
    penalties: list[Tensor] = [
        _Penalty.apply(price.l1, price.l2, *values) for (price, _), values in _by_regularizer(network).items()
    ]
    if penalties:
        return torch.stack(penalties).sum()
    # On the weights' device: a zero on the CPU would be copied at each step.
    return torch.zeros((), device=next((parameter.device for parameter in network.parameters()), None))


@torch.no_grad()
def add_penalty_gradients(network: nn.Module) -> None:
    """Add the penalties' gradients to the existing ones, as a backward pass from `regularization_loss` would.

    That pass takes one launch per weight; this one adds all weights with the same regularizer at once.
    """
    for (price, _), values in _by_regularizer(network).items():
        learning = [weight for weight in values if weight.requires_grad]
        slopes = _slopes(price.l1, price.l2, learning) if learning else []
        with_gradient = [
            (weight.grad, slope) for weight, slope in zip(learning, slopes, strict=True) if weight.grad is not None
        ]
        if with_gradient:
            torch._foreach_add_([gradient for gradient, _ in with_gradient], [slope for _, slope in with_gradient])
        for weight, slope in zip(learning, slopes, strict=True):
            if weight.grad is None:
                weight.grad = slope


def penalize_all(network: nn.Module, price: Regularizer) -> None:
    """Attach one regularizer to every parameter that learns, in place of those on kernels and biases.

    Later freezing does not end a penalty, as in TF.
    """
    for module in network.modules():
        learning = [name for name, parameter in module.named_parameters(recurse=False) if parameter.requires_grad]
        vars(module)[_OF_ALL] = dict.fromkeys(learning, price)


def _regularizers(module: nn.Module) -> Mapping[str, Any]:
    """Return a module's regularizers by the names of its tensors; convolutions of other libraries may carry some."""
    names = {"weight": getattr(module, "regularizer", None), "bias": getattr(module, "bias_regularizer", None)}
    of_all: Mapping[str, Any] = getattr(module, _OF_ALL, names)
    return of_all


def _by_regularizer(network: nn.Module) -> dict[tuple[Regularizer, bool], list[Tensor]]:
    """Return the tensors of each regularizer, separately for those sharded over processes (True) and others."""
    priced: dict[tuple[Regularizer, bool], list[Tensor]] = defaultdict(list)
    for module in network.modules():
        for name, price in _regularizers(module).items():
            value = getattr(module, name, None)
            if isinstance(price, Regularizer) and price != Regularizer() and isinstance(value, Tensor):
                priced[price, is_sharded(value)].append(value)
    return priced


def _slopes(l1: float, l2: float, values: Sequence[Tensor]) -> list[Tensor]:
    """Return l1 sign(w) + l2 w of each tensor."""
    slopes = list(torch._foreach_mul(list(values), l2))
    if l1:
        torch._foreach_add_(slopes, list(torch._foreach_mul(torch._foreach_sign(list(values)), l1)))
    return slopes


def _norms(values: Sequence[Tensor], order: int) -> Tensor:
    """Return the norm of each tensor, [n]; of sharded tensors the full norm, by one exchange."""
    return gathered(torch.stack(torch._foreach_norm(list(values), order)))


def _sum_of_squares(values: Sequence[Tensor]) -> Tensor:
    """Return the sum of all tensors' squares."""
    if values[0].device.type == "cpu":
        # PyTorch's norm of a ResNet-50's kernels was off by 3e-5 on a CPU, and took longer.
        return gathered(torch.stack([value.square().sum() for value in values])).sum()
    return _norms(values, 2).square().sum()


class _Penalty(torch.autograd.Function):
    """The penalty on tensors with one regularizer, as a single graph node instead of several per tensor.

    value     l1 Σ|w| + l2 Σw² / 2
    gradient  l1 sign(w) + l2 w
    """

    @staticmethod
    def forward(ctx: Any, l1: float, l2: float, *values: Tensor) -> Tensor:
        ctx.prices = (l1, l2)
        ctx.save_for_backward(*values)
        total = torch.zeros((), dtype=values[0].dtype, device=values[0].device)
        if l1:
            total = total + l1 * _norms(values, 1).sum()
        if l2:
            total = total + l2 * 0.5 * _sum_of_squares(values)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        l1, l2 = ctx.prices
        slopes = _slopes(l1, l2, ctx.saved_tensors)
        torch._foreach_mul_(slopes, gradient)
        return (None, None, *slopes)
