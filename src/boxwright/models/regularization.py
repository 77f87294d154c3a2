"""Penalties on kernels and biases: what each costs, and all of a network's together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["Regularizer", "regularization_loss"]


@dataclass(frozen=True)
class Regularizer:
    """A penalty on a kernel, added to the loss.

    Attributes:
        l1: Multiplies the sum of absolute values.
        l2: Multiplies half the sum of squares, as TF-Slim's `l2_regularizer`.
    """

    l1: float = 0.0
    l2: float = 0.0


def regularization_loss(network: nn.Module) -> Tensor:
    """Return the sum of all penalties, a scalar; 0 where nothing is penalized."""
    priced: dict[Regularizer, list[Tensor]] = defaultdict(list)
    for module in network.modules():
        # Others' convolutions may have been given a price, too.
        for tensor, rule in (("weight", "regularizer"), ("bias", "bias_regularizer")):
            price, value = getattr(module, rule, None), getattr(module, tensor, None)
            if isinstance(price, Regularizer) and price != Regularizer() and isinstance(value, Tensor):
                priced[price].append(value)
    penalties: list[Tensor] = [_Penalty.apply(price.l1, price.l2, *values) for price, values in priced.items()]
    if penalties:
        return torch.stack(penalties).sum()
    # Where the weights are: a zero of the CPU's would have to be copied at each step.
    return torch.zeros((), device=next((one.device for one in network.parameters()), None))


class _Penalty(torch.autograd.Function):
    """The penalty on many tensors of one price; a graph of one node, where there would be several for each tensor.

    value     l1 Σ|w| + l2 Σw² / 2
    gradient  l1 sign(w) + l2 w
    """

    @staticmethod
    def forward(ctx: Any, l1: float, l2: float, *values: Tensor) -> Tensor:
        ctx.prices = (l1, l2)
        ctx.save_for_backward(*values)
        total = values[0].new_zeros(())
        if l1:
            total = total + l1 * torch.stack(torch._foreach_norm(values, 1)).sum()
        if l2:
            total = total + l2 * 0.5 * torch.stack(torch._foreach_norm(values, 2)).square().sum()
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (l1, l2), values = ctx.prices, ctx.saved_tensors
        slopes = torch._foreach_mul(values, gradient * l2)
        if l1:
            torch._foreach_add_(slopes, torch._foreach_mul(torch._foreach_sign(values), gradient * l1))
        return (None, None, *slopes)
