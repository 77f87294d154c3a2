"""Instance masks: a class's segmentation within each detected box (TF's `crop_and_threshold_masks`).

Dimensions: B batch, K classes, M maps, D detections, H W grid of cells, h w instance mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.families.center_net.cells import grid_of
from boxwright.families.center_net.predictions import STRIDE
from boxwright.nn.ops.boxes import normalized
from boxwright.nn.ops.roi import crop_each


@dataclass(frozen=True)
class MaskDecoder:
    """Crops and thresholds masks.

    Attributes:
        size: (h, w).
        threshold: The least probability that is foreground.
    """

    size: tuple[int, int]
    threshold: float = 0.5

    def __call__(self, probabilities: Tensor, owners: Tensor, boxes: Tensor) -> Tensor:
        """Return 0 or 1 for each part of the boxes: float32 [B, D, h, w].

        Args:
            probabilities: float32 [M, H, W]; of classes.
            owners: int64 [B · D]; which of them is that of each detection's class.
            boxes: float32 [B, D, 4], xyxy in pixels of the network's input.
        """
        height, width = grid_of(probabilities)
        regions = normalized(boxes, (height * STRIDE, width * STRIDE)).flatten(0, 1)
        crops = crop_each(probabilities, regions, self.size, owners)
        return crops.ge_(self.threshold).view(*boxes.shape[:2], *self.size)


def own_maps(maps: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maps of detected classes, and which of them is each detection's.

    Args:
        maps: float [B, K, H, W].
        labels: int64 [B, D].

    Returns:
        float [M, H, W], and int64 [B · D]. On a CPU each map is there once, as a few classes make up most images; their
        number depends on data, so elsewhere, and in graphs, each detection has a copy.
    """
    batch, classes = maps.shape[:2]
    firsts = classes * torch.arange(batch, device=labels.device)[:, None]
    numbers = (firsts + labels).flatten()
    if torch.compiler.is_compiling() or maps.device.type != "cpu":
        return maps.flatten(0, 1)[numbers], torch.arange(numbers.numel(), device=labels.device)
    needed, owners = numbers.unique(return_inverse=True)
    return maps[needed // classes, needed % classes], owners
