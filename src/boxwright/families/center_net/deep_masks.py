"""DeepMAC: a mask for any box, from embeddings of its pixels and of its center (Birodkar et al., 2021, section 3).

Dimensions: B batch, N boxes of an image, C channels of pixels, D numbers of an instance, H W grid of cells, h w mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.families.center_net.cells import grid_of, read
from boxwright.families.center_net.deep_mask_head import MaskNetwork
from boxwright.families.center_net.predictions import STRIDE, EmbeddingMaps
from boxwright.nn.ops.constants import constants
from boxwright.nn.ops.roi import crop_and_resize


class MaskExtent(Protocol):
    """What a box's mask covers."""

    def pixels(self, maps: Tensor, boxes: Tensor) -> Tensor:
        """Return the pixels of each box's mask, [B, N, C, h, w], from maps [B, C, H, W].

        Args:
            boxes: float [B, N, 4], xyxy in 0..1 of the grid.
        """
        ...

    def coordinates(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Return y, x of each pixel of masks of a size, as the network's input: [B, N, 2, h, w]."""
        ...

    def of_boxes(self, logits: Tensor, boxes: Tensor) -> Tensor:
        """Return masks [B, N, h, w] that span each box from corner to corner, for what the network predicted."""
        ...


@dataclass(frozen=True)
class BoxCrops:
    """Masks span their boxes.

    Attributes:
        side: h and w.
    """

    side: int = 32

    def pixels(self, maps: Tensor, boxes: Tensor) -> Tensor:
        """Return [B, N, C, h, w]."""
        levels = torch.zeros(boxes.shape[:2], dtype=torch.int64, device=boxes.device)
        return crop_and_resize([maps], boxes, levels, (self.side, self.side), fade=True)

    def coordinates(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Return coordinates of -1 to 1 across each box."""
        return _grid((-1.0, 1.0), size, boxes.device).expand(*boxes.shape[:2], -1, -1, -1)

    def of_boxes(self, logits: Tensor, boxes: Tensor) -> Tensor:
        """Return the masks as they are."""
        del boxes
        return logits


@dataclass(frozen=True)
class WholeMaps:
    """Masks span the whole image, and are cropped after they are predicted.

    Attributes:
        side: Of a cropped mask.
    """

    side: int = 256

    def pixels(self, maps: Tensor, boxes: Tensor) -> Tensor:
        """Return [B, N, C, H, W], the same for each box."""
        return maps[:, None].expand(-1, boxes.shape[1], -1, -1, -1)

    def coordinates(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the way from each box's center in units of the image."""
        centers = (boxes[..., :2] + boxes[..., 2:]).flip(-1) / 2
        return _grid((0.0, 1.0), size, boxes.device) - centers[..., None, None]

    def of_boxes(self, logits: Tensor, boxes: Tensor) -> Tensor:
        """Return [B, N, h, w], from logits [B, N, H, W]."""
        batch, count, rows = logits.shape[:3]
        # TF mistakes the number of boxes for the height, and the height for the width, and so enlarges to that.
        enlarged = F.interpolate(
            logits.float(), size=(count * STRIDE, rows * STRIDE), mode="bilinear", align_corners=False
        )
        levels = torch.zeros(batch * count, 1, dtype=torch.int64, device=boxes.device)
        regions = boxes.flatten(0, 1)[:, None]
        crops = crop_and_resize([enlarged.flatten(0, 1)[:, None]], regions, levels, (self.side, self.side), fade=True)
        return crops.view(batch, count, self.side, self.side)


def _grid(ends: tuple[float, float], size: tuple[int, int], device: torch.device) -> Tensor:
    """Return y, x [2, h, w] from the first to the last row and column."""
    rows, columns = (torch.linspace(*ends, count, device=device) for count in size)
    return torch.stack([rows[:, None].expand(*size), columns.expand(*size)])


class DeepMasks(nn.Module):
    """Predicts the masks of boxes."""

    def __init__(self, network: MaskNetwork, extent: MaskExtent, *, use_xy: bool) -> None:
        """Assemble the part.

        Args:
            network: Pixels and instances to logits.
            use_xy: Whether the coordinates of pixels are an input of the network, before their embeddings.
        """
        super().__init__()
        self.network, self.extent, self.use_xy = network, extent, use_xy

    def forward(self, maps: EmbeddingMaps, boxes: Tensor) -> Tensor:
        """Return logits [B, N, h, w] of boxes [B, N, 4], xyxy in 0..1 of the grid."""
        pixels = self.extent.pixels(maps.pixels, boxes)
        if self.use_xy:
            size = (pixels.shape[-2], pixels.shape[-1])
            pixels = torch.cat([self.extent.coordinates(boxes, size).to(pixels.dtype), pixels], dim=2)
        instances = instances_at(maps.instances, boxes)
        logits: Tensor = self.network(pixels.flatten(0, 1), instances.flatten(0, 1))
        return logits.view(*boxes.shape[:2], *logits.shape[1:])


def instances_at(maps: Tensor, boxes: Tensor) -> Tensor:
    """Return the numbers [B, N, D] that maps [B, D, H, W] hold at boxes' centers; boxes as for `DeepMasks`."""
    grid = constants(grid_of(maps), boxes.device)
    centers = (boxes[..., :2] + boxes[..., 2:]).flip(-1) * grid / 2
    return read(maps, centers.trunc().clamp(min=0).minimum(grid - 1))
