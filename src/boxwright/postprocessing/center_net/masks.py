"""Instance masks: a class's segmentation within each detected box (TF's `crop_and_threshold_masks`).

Dimensions: B batch, K classes, D detections, H W grid of cells, h w instance mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from boxwright.ops.boxes import normalized
from boxwright.ops.cells import grid_of
from boxwright.ops.roi import crop_and_resize
from boxwright.types.center_net import STRIDE


@dataclass(frozen=True)
class MaskDecoder:
    """Crops and thresholds masks.

    Attributes:
        size: (h, w).
        threshold: The least probability that is foreground.
    """

    size: tuple[int, int]
    threshold: float = 0.5

    def __call__(self, probabilities: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        """Return 0 or 1 for each part of the boxes: float32 [B, D, h, w].

        Args:
            probabilities: float32 [B, K, H, W].
            boxes: float32 [B, D, 4], xyxy in pixels of the network's input.
            labels: int64 [B, D].
        """
        batch, detections = labels.shape
        height, width = grid_of(probabilities)
        own = labels[..., None, None].expand(-1, -1, height, width)
        maps = probabilities.gather(1, own).flatten(0, 1)[:, None]
        regions = normalized(boxes, (height * STRIDE, width * STRIDE)).flatten(0, 1)[:, None]
        levels = labels.new_zeros(batch * detections, 1)
        crops = crop_and_resize([maps], regions, levels, self.size)
        return (crops.view(batch, detections, *self.size) >= self.threshold).float()
