"""Sampling: a random balance of positive and negative anchors is learnt from.

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BalancedSampler"]


@dataclass(frozen=True)
class BalancedSampler:
    """Keep all positives, and at random so many negatives that positives are a wanted share.

    An image without positives gives no examples at all. (TensorFlow's random_example_sampler; the
    choice is drawn from PyTorch's generator, which training seeds at each step.)

    Attributes:
        positive_fraction: The share of positives, over 0 and at most 1.
    """

    positive_fraction: float = 0.01

    def __call__(self, positive: Tensor, candidates: Tensor) -> Tensor:
        """Return bool [B, A]."""
        kept, negative = positive & candidates, ~positive & candidates
        ratio = (1 - self.positive_fraction) / self.positive_fraction
        wanted = (kept.sum(1).float() * ratio).to(torch.int64)
        lots = torch.rand(negative.shape, device=negative.device).masked_fill(~negative, 2.0)
        rank = lots.argsort(dim=1).argsort(dim=1)
        return kept | (negative & (rank < wanted[:, None]))
