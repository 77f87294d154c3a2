"""DensePose within masks: the likeliest part of each pixel, and the place on it (TF's `crop_and_threshold_masks`).

Dimensions: B batch, D detections, S parts, h w instance mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from boxwright.families.center_net.cells import grid_of
from boxwright.families.center_net.predictions import STRIDE, SurfaceMaps
from boxwright.nn.ops.boxes import normalized
from boxwright.nn.ops.roi import crop_and_resize
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
        height, width = grid_of(maps.parts)
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
