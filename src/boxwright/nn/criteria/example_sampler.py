"""Random sampling of positive and negative anchors.

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BalancedSampler:
    """Keep all positives, and as many random negatives as give a wanted fraction of positives.

    An image without positives yields no examples. (TensorFlow's random_example_sampler; it draws from PyTorch's
    generator, which training seeds at each step.)

    Attributes:
        positive_fraction: The fraction of positives, above 0 and at most 1.
    """

    positive_fraction: float = 0.01

    def __call__(self, positive: Tensor, candidates: Tensor) -> Tensor:
        """Return bool [B, A]."""
        kept, negative = positive & candidates, ~positive & candidates
        ratio = (1 - self.positive_fraction) / self.positive_fraction
        wanted = (kept.sum(1).float() * ratio).to(torch.int64)
        # Lots lie in 0..1, so that 2 ranks after all negatives.
        lots = torch.rand(negative.shape, device=negative.device).masked_fill(~negative, 2.0)
        # By rank, not by index: how many indices there are depends on data, for which a GPU would be waited for.
        rank = lots.argsort(dim=1).argsort(dim=1)
        return kept | (negative & (rank < wanted[:, None]))


@dataclass(frozen=True)
class MinibatchSampler:
    """Sample a fixed number of examples per image, with a maximum fraction of positives.

    Negatives fill up missing positives. (Faster R-CNN, section 3.1.3; TensorFlow's BalancedPositiveNegativeSampler.)

    Attributes:
        size: Examples per image, at least 1.
        positive_fraction: The maximum fraction of positives, 0 to 1.
    """

    size: int
    positive_fraction: float = 0.5

    @property
    def most_positives(self) -> int:
        """The maximum number of positives per image."""
        return int(self.positive_fraction * self.size)

    def __call__(self, positive: Tensor, candidates: Tensor) -> Tensor:
        """Return which candidates are examples, bool [B, A]."""
        # TF's second, static form differs from this only where there are too few candidates, and is not reproduced.
        positives = _draw(positive & candidates, self.most_positives)
        room = self.size - positives.sum(1)
        return positives | _draw(~positive & candidates, self.size, room)


def _draw(among: Tensor, most: int, count: Tensor | None = None) -> Tensor:
    """Return random elements of each row [B, A], at most `most` or `count` [B]."""
    most = min(most, among.shape[1])
    # Lots are never below 0, so that -1 is never chosen.
    lots = torch.rand(among.shape, device=among.device).masked_fill(~among, -1.0)
    best = lots.topk(most, dim=1)
    chosen = best.values >= 0
    if count is not None:
        chosen &= torch.arange(most, device=among.device) < count[:, None]
    return torch.zeros_like(among).scatter(1, best.indices, chosen)
