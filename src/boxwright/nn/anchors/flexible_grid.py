"""A grid of anchors for each level, with separate sizes, strides and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from boxwright.nn.anchors.grid import Size, tile_anchors


@dataclass(frozen=True)
class AnchorGrid:
    """The anchors of one level.

    Attributes:
        base_sizes: The square root of each anchor's area, in pixels.
        stride: (y, x) in pixels.
        offset: (y, x) of the first center in pixels.
    """

    base_sizes: tuple[float, ...]
    aspect_ratios: tuple[float, ...]
    stride: tuple[float, float]
    offset: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class FlexibleGridAnchorGenerator:
    """Anchors listed individually for each level."""

    grids: tuple[AnchorGrid, ...]

    @property
    def anchors_per_location(self) -> tuple[int, ...]:
        """The number of anchors per location of each level."""
        return tuple(len(grid.base_sizes) for grid in self.grids)

    def __call__(self, feature_sizes: Sequence[Size], image_size: Size) -> list[Tensor]:
        """Return for each level float32 [H × W × S, 4], xyxy in pixels of the input."""
        return [
            tile_anchors(
                size,
                [(s / r**0.5, s * r**0.5) for s, r in zip(grid.base_sizes, grid.aspect_ratios, strict=True)],
                grid.stride,
                grid.offset,
            )
            for size, grid in zip(feature_sizes, self.grids, strict=True)
        ]
