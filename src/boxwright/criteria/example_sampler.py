"""Sampling: a random balance of positive and negative anchors is learnt from.

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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


@dataclass(frozen=True)
class MinibatchSampler:
    """Choose at random so many examples of each image, of which at most a share is positive.

    Where positives are too few, negatives fill their places. (Faster R-CNN, section 3.1.3; TensorFlow's
    BalancedPositiveNegativeSampler.)

    Attributes:
        size: Examples of an image, at least 1.
        positive_fraction: The largest share of positives, 0 to 1.
    """

    size: int
    positive_fraction: float = 0.5

    @property
    def most_positives(self) -> int:
        """The most positives that an image gives."""
        return int(self.positive_fraction * self.size)

    def __call__(self, positive: Tensor, candidates: Tensor) -> Tensor:
        """Return bool [B, A]: the examples, of the candidates."""
        positives = _draw(positive & candidates, self.most_positives)
        room = self.size - positives.sum(1)
        return positives | _draw(~positive & candidates, self.size, room)


def _draw(among: Tensor, most: int, count: Tensor | None = None) -> Tensor:
    """Choose at random the most of each row [B, A], or as many as `count` [B] says; fewer where there are fewer."""
    most = min(most, among.shape[1])
    lots = torch.rand(among.shape, device=among.device).masked_fill(~among, -1.0)
    best = lots.topk(most, dim=1)
    chosen = best.values >= 0
    if count is not None:
        chosen &= torch.arange(most, device=among.device) < count[:, None]
    return torch.zeros_like(among).scatter(1, best.indices, chosen)
