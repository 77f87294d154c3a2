"""Optimizers with the arithmetic of the Keras optimizers that TF2's object detection uses.

They differ from PyTorch's where it shows: momentum keeps the rate inside the accumulator, Adam adds
its epsilon before the bias correction, RMSProp adds it under the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Adam", "Momentum", "RMSProp"]


class _Optimizer(torch.optim.Optimizer):
    """Applies one function to all parameters with gradients and their state, tensor lists at a time."""

    slots: tuple[str, ...] = ()

    def __init__(self, parameters: Iterable[Tensor], lr: float, **settings: float) -> None:
        """Set up.

        Args:
            parameters: What to train.
            lr: The rate, until a schedule sets another.
            **settings: What the update needs.
        """
        super().__init__(parameters, {"lr": lr, **settings})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Args:
            closure: Not supported; here for PyTorch's signature.
        """
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            gradients = [p.grad for p in parameters]
            lists = [self._slot(parameters, name) for name in self.slots]
            count = self._count(parameters)
            self.update(parameters, gradients, lists, group, count)

    def _slot(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter)
        return [self.state[parameter][name] for parameter in parameters]

    def _count(self, parameters: list[Tensor]) -> int:
        """Count the updates, this one not included; the same for all parameters of a group."""
        count = 0
        for parameter in parameters:
            count = self.state[parameter].get("count", 0)
            self.state[parameter]["count"] = count + 1
        return count

    def update(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        slots: list[list[Tensor]],
        group: dict[str, Any],
        count: int,
    ) -> None:
        """Update parameters in place.

        Args:
            parameters: What changes.
            gradients: Their gradients.
            slots: For each name of `slots`, one state a parameter.
            group: The settings.
            count: Updates done before.

        Raises:
            NotImplementedError: In this base.
        """
        raise NotImplementedError


class Momentum(_Optimizer):
    """v ← m·v + lr·g; p ← p − v."""

    slots = ("momentum",)

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.0, momentum: float = 0.9) -> None:
        """Set up.

        Args:
            parameters: What to train.
            lr: The rate.
            momentum: m.
        """
        super().__init__(parameters, lr, momentum=momentum)

    def update(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        slots: list[list[Tensor]],
        group: dict[str, Any],
        count: int,
    ) -> None:
        """Update parameters in place.

        Args:
            parameters: What changes.
            gradients: Their gradients.
            slots: The accumulators.
            group: The settings.
            count: Updates done before.
        """
        (velocity,) = slots
        torch._foreach_mul_(velocity, group["momentum"])
        torch._foreach_add_(velocity, gradients, alpha=group["lr"])
        torch._foreach_sub_(parameters, velocity)


class RMSProp(_Optimizer):
    """s ← 0.9·s + 0.1·g²; v ← m·v + lr·g/√(s + ε); p ← p − v, with lr divided by 1 + decay·step.

    TF2's object detection hands the field `decay` to Keras as a decay of the rate, not of the
    average of squares as TF1 did; Keras's average has 0.9 always.
    """

    slots = ("squares", "momentum")

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 0.0,
        momentum: float = 0.9,
        decay: float = 0.0,
        epsilon: float = 1.0,
    ) -> None:
        """Set up.

        Args:
            parameters: What to train.
            lr: The rate.
            momentum: m.
            decay: How fast the rate falls.
            epsilon: ε.
        """
        super().__init__(parameters, lr, momentum=momentum, decay=decay, epsilon=epsilon)

    def update(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        slots: list[list[Tensor]],
        group: dict[str, Any],
        count: int,
    ) -> None:
        """Update parameters in place.

        Args:
            parameters: What changes.
            gradients: Their gradients.
            slots: The averages of squares, and the accumulators.
            group: The settings.
            count: Updates done before.
        """
        squares, velocity = slots
        torch._foreach_mul_(squares, 0.9)
        torch._foreach_addcmul_(squares, gradients, gradients, value=0.1)
        divisor = torch._foreach_add(squares, group["epsilon"])
        torch._foreach_sqrt_(divisor)
        torch._foreach_mul_(velocity, group["momentum"])
        torch._foreach_addcdiv_(velocity, gradients, divisor, value=group["lr"] / (1 + group["decay"] * count))
        torch._foreach_sub_(parameters, velocity)


class Adam(_Optimizer):
    """Adam with ε outside the bias correction: p ← p − lr·√(1−β₂ᵗ)/(1−β₁ᵗ)·m/(√v + ε)."""

    slots = ("mean", "squares")

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.0, epsilon: float = 1e-8) -> None:
        """Set up; β₁ is 0.9 and β₂ 0.999, as the configuration has no field for them.

        Args:
            parameters: What to train.
            lr: The rate.
            epsilon: ε.
        """
        super().__init__(parameters, lr, epsilon=epsilon)

    def update(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        slots: list[list[Tensor]],
        group: dict[str, Any],
        count: int,
    ) -> None:
        """Update parameters in place.

        Args:
            parameters: What changes.
            gradients: Their gradients.
            slots: The averages of gradients and of squares.
            group: The settings.
            count: Updates done before.
        """
        mean, squares = slots
        torch._foreach_lerp_(mean, gradients, 0.1)
        torch._foreach_mul_(squares, 0.999)
        torch._foreach_addcmul_(squares, gradients, gradients, value=0.001)
        divisor = torch._foreach_sqrt(squares)
        torch._foreach_add_(divisor, group["epsilon"])
        rate = group["lr"] * (1 - 0.999 ** (count + 1)) ** 0.5 / (1 - 0.9 ** (count + 1))
        torch._foreach_addcdiv_(parameters, mean, divisor, value=-rate)
