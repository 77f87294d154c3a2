"""Features of other images, which a detector attends to (Context R-CNN; Beery et al., 2020).

Dimensions: B batch, M features (padded), F numbers of a feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.base.errors import DataError


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
        """Return the padded context of images.

        Args:
            images: float32 [M, F] each, of any M; [0, 0] for an image without context.

        Returns:
            The context of the batch.

        Raises:
            DataError: If features have different lengths.
        """
        lengths = sorted({image.shape[1] for image in images if len(image)})
        if len(lengths) > 1:
            raise DataError(f"context features of {lengths[0]} numbers and of {lengths[-1]} in one batch")
        length, most = max(lengths, default=0), max((len(image) for image in images), default=0)
        features = torch.zeros(len(images), most, length)
        for row, image in zip(features, images, strict=True):
            row[: len(image)] = image.reshape(len(image), length)
        return ContextFeatures(features, torch.tensor([len(image) for image in images]))

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

    def at(self, indices: Sequence[int]) -> ContextFeatures:
        """Return the context of some images, in their order."""
        chosen = list(indices)
        return ContextFeatures(self.features[chosen], self.counts[chosen])

    def to(self, device: torch.device | str) -> ContextFeatures:
        """Return the context on a device."""
        return ContextFeatures(self.features.to(device, non_blocking=True), self.counts.to(device, non_blocking=True))
