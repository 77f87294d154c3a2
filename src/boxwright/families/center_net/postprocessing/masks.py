"""Instance masks of detections, and DensePose within them (TF's `crop_and_threshold_masks`).

A mask is a class's segmentation within the detected box; of each pixel DensePose has the likeliest part and the place
on it.

Dimensions: B batch, K classes, M maps, D detections, S parts, H W grid of cells, h w instance mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxwright.families.center_net.cells import grid_shape
from boxwright.families.center_net.predictions import STRIDE, SurfaceMaps
from boxwright.nn.ops.boxes import normalized
from boxwright.nn.ops.roi import crop_and_resize, crop_each
from boxwright.types import PaddedDetections


@dataclass(frozen=True)
class SurfaceDecoder:
    """Finds parts and coordinates of the detections of a class.

    Attributes:
        label: The class that has them.
        size: (h, w) of masks.
    """

    label: int
    size: tuple[int, int]

    def __call__(self, maps: SurfaceMaps, detections: PaddedDetections) -> PaddedDetections:
        """Return detections with masks, with the parts and coordinates of their foreground."""
        if detections.masks is None:
            raise ValueError("the surface is that of masks")
        height, width = grid_shape(maps.parts)
        regions = normalized(detections.boxes, (height * STRIDE, width * STRIDE))
        levels = torch.zeros_like(detections.labels)
        count = maps.parts.shape[1]
        coordinates = maps.coordinates.float().unflatten(1, (count, 2))
        best = torch.full_like(detections.masks, -torch.inf)
        parts, places = torch.zeros_like(detections.masks), detections.masks.new_zeros(*detections.masks.shape, 2)
        # Part by part: crops of all at once would take 24 times the memory of masks.
        for part in range(count):
            three = torch.cat([maps.parts[:, part, None].float(), coordinates[:, part]], dim=1)
            crops = crop_and_resize([three], regions, levels, self.size)
            better = crops[:, :, 0] > best
            best = torch.where(better, crops[:, :, 0], best)
            parts = torch.where(better, part + 1, parts)
            places = torch.where(better[..., None], crops[:, :, 1:].permute(0, 1, 3, 4, 2), places)
        inside = detections.masks * (detections.labels == self.label)[..., None, None]
        return replace(
            detections,
            surface_parts=(parts * inside).to(torch.uint8),
            surface_coordinates=places * inside[..., None],
        )


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
        height, width = grid_shape(probabilities)
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
