"""A grid of anchors over one feature map, and the generator with a single grid.

Dimensions: H W of a feature map, S anchors a location.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Size = tuple[int, int]


class AnchorGenerator(Protocol):
    """Lays anchors over the feature maps of an image."""

    @property
    def anchors_per_location(self) -> tuple[int, ...]:
        """The number of anchors per location of each level."""
        ...

    def __call__(self, feature_sizes: Sequence[Size], image_size: Size) -> list[Tensor]:
        """Return for each level float32 [H × W × S, 4], xyxy in pixels of the input, row by row."""
        ...


def tile_anchors(
    grid: Size, sizes: Sequence[tuple[float, float]], stride: tuple[float, float], offset: tuple[float, float]
) -> Tensor:
    """Return a set of boxes repeated at each point of a grid: float32 [H × W × S, 4], xyxy."""
    y = torch.arange(grid[0], dtype=torch.float32) * stride[0] + offset[0]
    x = torch.arange(grid[1], dtype=torch.float32) * stride[1] + offset[1]
    half = torch.tensor(sizes, dtype=torch.float32) / 2
    center_y, center_x = torch.meshgrid(y, x, indexing="ij")
    centers = torch.stack([center_x, center_y], dim=-1)[:, :, None, :]
    half_xy = half.flip(-1)
    return torch.cat([centers - half_xy, centers + half_xy], dim=-1).reshape(-1, 4)


@dataclass(frozen=True)
class GridAnchorGenerator:
    """Anchors of every scale and aspect ratio over one feature map (Faster R-CNN's).

    Attributes:
        base_size: (height, width) in pixels.
        stride: (y, x) in pixels.
        offset: (y, x) of the first center in pixels.
    """

    scales: tuple[float, ...]
    aspect_ratios: tuple[float, ...]
    base_size: tuple[float, float] = (256.0, 256.0)
    stride: tuple[float, float] = (16.0, 16.0)
    offset: tuple[float, float] = (0.0, 0.0)

    @property
    def anchors_per_location(self) -> tuple[int, ...]:
        """The number of anchors per location of the single level."""
        return (len(self.scales) * len(self.aspect_ratios),)

    def __call__(self, feature_sizes: Sequence[Size], image_size: Size) -> list[Tensor]:
        """Return one tensor float32 [H × W × S, 4], xyxy in pixels; aspect ratios vary slowest."""
        return [tile_anchors(grid, self.sizes(), self.stride, self.offset) for grid in feature_sizes]

    def sizes(self) -> list[tuple[float, float]]:
        """Return the (height, width) of each anchor, in order."""
        return [
            (scale / ratio**0.5 * self.base_size[0], scale * ratio**0.5 * self.base_size[1])
            for ratio in self.aspect_ratios
            for scale in self.scales
        ]
