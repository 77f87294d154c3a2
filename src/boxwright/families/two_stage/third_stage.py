"""The third stage: masks of detections (Mask R-CNN, section 3).

Dimensions: B batch, R proposals of an image, D detections (padded), P positives, K foreground classes, h w mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from boxwright.families.two_stage.mask_head import MaskHead
from boxwright.families.two_stage.region_crop import RegionCrop
from boxwright.families.two_stage.second_stage import BoxClassifier
from boxwright.families.two_stage.valid_rows import of_valid_rows
from boxwright.types import InstancePredictions, PaddedDetections, Proposals, TwoStagePredictions


@dataclass(frozen=True)
class _Rows:
    """A subset of the proposals: `index` int64 [B, P] into R, boxes [B, P, 4], valid [B, P]."""

    index: Tensor
    boxes: Tensor
    valid: Tensor


class MaskPredictor(nn.Module):
    """Predicts a mask for each detection; in training, for each positive proposal."""

    def __init__(
        self,
        head: MaskHead,
        crop: RegionCrop | None,
        detect: Callable[[TwoStagePredictions, Tensor], PaddedDetections],
        most_positives: int,
    ) -> None:
        """Assemble the stage.

        Args:
            head: A region's features to logits [N, K or 1, h, w].
            crop: Crops regions for the head; None to share the second stage's features.
            detect: Selects the detections, given the true sizes.
            most_positives: The maximum of positive proposals per image.
        """
        super().__init__()
        self.head, self.crop, self.detect, self.most_positives = head, crop, detect, most_positives

    def forward(
        self, maps: list[Tensor], found: TwoStagePredictions, second: BoxClassifier, true_sizes: Tensor
    ) -> InstancePredictions:
        """Return logits [B, D, K or 1, h, w]."""
        size = found.first.input_size
        positive = found.proposals.positive
        if positive is not None and found.regions is not None:
            rows = self._positives(found.proposals, positive)
            if self.crop is None:
                batch = torch.arange(len(positive), device=positive.device)[:, None] * positive.shape[1]
                features = found.regions.features[(batch + rows.index).flatten()]
            else:
                features = self.crop(maps, rows.boxes, size)
            return InstancePredictions(rows.boxes, rows.valid, self._logits(features, rows.valid))
        detections = self.detect(found, true_sizes)
        if self.crop is None:
            features = second.features_of(maps, detections.boxes, detections.valid, size)
        else:
            features = self.crop(maps, detections.boxes, size)
        logits = self._logits(features, detections.valid)
        return InstancePredictions(detections.boxes, detections.valid, logits, detections)

    def _positives(self, proposals: Proposals, positive: Tensor) -> _Rows:
        """Return the positive proposals: only these learn masks."""
        count = min(self.most_positives, positive.shape[1])
        # Positives first, in their order: a fixed number of rows, where a boolean mask would wait for the GPU.
        index = (~positive).byte().argsort(dim=1, stable=True)[:, :count]
        boxes = proposals.boxes.gather(1, index[..., None].expand(-1, -1, 4))
        return _Rows(index, boxes, positive.gather(1, index))

    def _logits(self, features: Tensor, valid: Tensor) -> Tensor:
        # Only statistics of a batch need rows of padding; otherwise their masks are not computed.
        learns = self.training and _learns_statistics(self.head)
        logits = of_valid_rows(self.head, features, valid, all_rows=learns)
        return logits.view(*valid.shape, *logits.shape[1:])


def _learns_statistics(part: nn.Module) -> bool:
    return any(isinstance(module, nn.BatchNorm2d) and module.training for module in part.modules())
