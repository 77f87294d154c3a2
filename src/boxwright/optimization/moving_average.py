"""Exponential moving averages of weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["MovingAverage"]


class MovingAverage:
    """Shadow weights: s ← d·s + (1 − d)·p after each step, starting from the first weights."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        """Copy the weights.

        Args:
            network: The network.
            decay: d.
        """
        self.decay = decay
        self.shadow = {name: p.detach().clone() for name, p in network.named_parameters()}

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Follow the weights after a step.

        Args:
            network: The network.
        """
        parameters = dict(network.named_parameters())
        torch._foreach_lerp_(list(self.shadow.values()), [parameters[name] for name in self.shadow], 1 - self.decay)

    def load(self, shadow: dict[str, Tensor]) -> None:
        """Take over stored averages.

        Args:
            shadow: What a checkpoint holds.
        """
        for name, value in self.shadow.items():
            value.copy_(shadow[name])
