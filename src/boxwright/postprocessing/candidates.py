"""Which detections may take part in suppression: only the best, as Caffe's detectors have it.

Dimensions: B batch, A anchors, K foreground classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.postprocessing.batch_nms import Kept, Nms

__all__ = ["BestOfClass", "BestOfImage"]


@dataclass(frozen=True)
class BestOfClass:
    """Suppress among the best of each class.

    Attributes:
        count: How many of each class take part.
        nms: Suppresses those.
    """

    count: int
    nms: Nms

    def __call__(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> list[Kept]:
        """Suppress each image of a batch.

        Args:
            boxes: float32 [B, A, 4], xyxy in pixels, unclipped.
            scores: float32 [B, A, K], without background.
            windows: float32 [B, 2]; the (height, width) to which boxes are clipped.

        Returns:
            B results.
        """
        best = scores.topk(min(self.count, scores.shape[1]), dim=1)
        return self.nms(boxes, torch.full_like(scores, -torch.inf).scatter(1, best.indices, best.values), windows)


@dataclass(frozen=True)
class BestOfImage:
    """Suppress among the best of each image, whatever their class.

    Attributes:
        count: How many of an image take part.
        nms: Suppresses those.
    """

    count: int
    nms: Nms

    def __call__(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> list[Kept]:
        """Suppress each image of a batch.

        Args:
            boxes: float32 [B, A, 4], xyxy in pixels, unclipped.
            scores: float32 [B, A, K], without background.
            windows: float32 [B, 2]; the (height, width) to which boxes are clipped.

        Returns:
            B results.
        """
        flat = scores.flatten(1)
        best = flat.topk(min(self.count, flat.shape[1]), dim=1)
        chosen = torch.full_like(flat, -torch.inf).scatter(1, best.indices, best.values)
        return self.nms(boxes, chosen.view_as(scores), windows)
