"""Every decoded anchor or region, before any filtering.

Dimensions: B batch, A anchors or regions, K foreground classes, C columns of the class head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RawDetections:
    """Every decoded anchor of a batch, before any filtering (TF's `raw_detection_…`); of one image without B.

    Attributes:
        boxes: float32 [B, A, 4], xyxy in pixels of the network's input, not clipped; for regions [B, A, K, 4], a box
            per class, or [B, A, 1, 4] for all classes.
        scores: float32 [B, A, C]; background first if there is one.
        input_size: (height, width) of the network's input.
        valid: bool [B, A]; False for padding; None without padding.
    """

    boxes: Tensor
    scores: Tensor
    input_size: tuple[int, int]
    valid: Tensor | None = None

    @property
    def of_regions(self) -> bool:
        """Whether these are regions of interest, each with a box per class, rather than anchors."""
        return self.boxes.ndim > self.scores.ndim

    def image(self, number: int) -> RawDetections:
        """Return views of the values of one image."""
        valid = None if self.valid is None else self.valid[number]
        return RawDetections(self.boxes[number], self.scores[number], self.input_size, valid)

    def to_tf(self, true_sizes: Tensor) -> dict[str, Tensor]:
        """Return TF's raw outputs by name.

        Args:
            true_sizes: int64 [B, 2]; the (height, width) of each input without its padding.

        Returns:
            `raw_detection_boxes` [B, A, 4] as ymin, xmin, ymax, xmax in 0..1, and `raw_detection_scores` [B, A, C].
            Boxes of anchors are in units of the whole input, not clipped. Those of regions are their likeliest class's,
            in units of the image and clipped to it; padding is 0, where TF's scores are those of an empty crop.
        """
        if not self.of_regions:
            sizes = torch.tensor(self.input_size, device=self.boxes.device)
            return {"raw_detection_boxes": normalized(self.boxes, sizes), "raw_detection_scores": self.scores}
        # The last K columns: a background column, if there is one, comes first.
        best = self.scores[..., -self.boxes.shape[-2] :].argmax(-1)[..., None, None]
        boxes = self.boxes.gather(-2, best.expand(*best.shape[:-1], 4)).squeeze(-2)
        boxes, scores = normalized(boxes, true_sizes).clamp(0, 1), self.scores
        if self.valid is not None:
            boxes, scores = boxes * self.valid[..., None], scores * self.valid[..., None]
        return {"raw_detection_boxes": boxes, "raw_detection_scores": scores}


def normalized(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Return boxes xyxy in pixels [..., N, 4] as ymin, xmin, ymax, xmax in 0..1 of sizes [..., 2]."""
    return boxes[..., [1, 0, 3, 2]] / torch.cat([sizes, sizes], -1)[..., None, :].to(boxes)
