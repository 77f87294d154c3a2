"""SSD's postprocessor: decode, convert scores, suppress (TF's SSDMetaArch.postprocess).

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.ops.box_coder import FasterRcnnBoxCoder
from boxwright.postprocessing.batch_nms import BatchNms
from boxwright.postprocessing.score_converters import ScoreConverter
from boxwright.types import Categories, Detections, Predictions

__all__ = ["SSDPostprocessor"]


@dataclass(frozen=True)
class SSDPostprocessor:
    """Turn predictions into detections.

    Attributes:
        box_coder: Decodes box codes.
        score_converter: Turns logits into scores.
        nms: Keeps the best.
        background: Columns before the foreground: 1 where column 0 is background, else 0.
        categories: The classes, for the detections to carry; None where they are not known.
    """

    box_coder: FasterRcnnBoxCoder
    score_converter: ScoreConverter
    nms: BatchNms
    background: int = 1
    categories: Categories | None = None

    @torch.no_grad()
    def __call__(self, predictions: Predictions, true_sizes: Tensor) -> list[Detections]:
        """Decode and suppress a batch.

        Args:
            predictions: What the network said.
            true_sizes: int [B, 2]; the (height, width) of each input that is image and not padding.

        Returns:
            B detections, in pixels of the network's input; `image_size` is the true size.
        """
        boxes = self.box_coder.decode(predictions.box_codes.float(), predictions.anchors)
        scores = self.score_converter(predictions.class_logits.float())
        kept = self.nms(boxes, scores[..., self.background :], true_sizes.to(boxes))
        return [
            Detections(
                boxes=image.boxes,
                scores=image.scores,
                labels=image.labels,
                image_size=(int(size[0]), int(size[1])),
                categories=self.categories,
                anchor_indices=image.anchors,
                multiclass_scores=image_scores[image.anchors],
            )
            for image, image_scores, size in zip(kept, scores, true_sizes.tolist(), strict=True)
        ]
