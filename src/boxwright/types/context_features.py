"""Features of other images, which a detector attends to (Context R-CNN; Beery et al., 2020).

Dimensions: B batch, M features (padded), F numbers of a feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class ContextFeatures:
    """The context of a batch, padded to M features per image.

    Attributes:
        features: float32 [B, M, F]; 0 for padding.
        counts: int64 [B]; how many features of each image are not padding.
    """

    features: Tensor
    counts: Tensor

    @staticmethod
    def stack(images: Sequence[Tensor]) -> ContextFeatures:
        """Return the context of images, float32 [M, F] each, of any M."""
        most = max((len(one) for one in images), default=0)
        rows = [F.pad(one, (0, 0, 0, most - len(one))) for one in images]
        return ContextFeatures(torch.stack(rows), torch.tensor([len(one) for one in images]))

    @property
    def valid(self) -> Tensor:
        """Which features are not padding, bool [B, M]."""
        return torch.arange(self.features.shape[1], device=self.counts.device) < self.counts[:, None]

    def resized(self, count: int) -> ContextFeatures:
        """Return the context with exactly `count` features per image: padded, or without the last ones."""
        more = count - self.features.shape[1]
        return ContextFeatures(F.pad(self.features, (0, 0, 0, more)), self.counts.clamp(max=count))

    def rows(self, start: int, stop: int) -> ContextFeatures:
        """Return the context of images `start` to `stop`, excluded."""
        return ContextFeatures(self.features[start:stop], self.counts[start:stop])

    def to(self, device: torch.device | str) -> ContextFeatures:
        """Return the context on a device."""
        return ContextFeatures(self.features.to(device, non_blocking=True), self.counts.to(device, non_blocking=True))
