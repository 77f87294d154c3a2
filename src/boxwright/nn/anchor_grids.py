"""Grids of anchors over feature maps, and their generators.

SSD's anchors have one scale per level, with an extra square between the scales (SSD, section 2.2); RetinaNet's double
from level to level (Focal Loss for Dense Object Detection, section 4); others have a single grid, or sizes, strides and
offsets of their own for each level.

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


Pair = tuple[float, float]


@dataclass(frozen=True)
class SsdAnchorGenerator:
    """Anchors in units of the image's shorter side, with several shapes per level.

    Attributes:
        boxes: For each level, the (scale, aspect ratio) of each anchor.
        base_size: (height, width) that a scale multiplies, in units of the shorter side.
        strides: (y, x) in pixels for each level; empty for the image's size over the map's.
        offsets: (y, x) of the first center in pixels for each level; empty for half a stride.
        stretched: Whether sizes are in units of the input's own sides, so that a square is one of square inputs alone.
    """

    boxes: tuple[tuple[Pair, ...], ...]
    base_size: Pair = (1.0, 1.0)
    strides: tuple[Pair, ...] = ()
    offsets: tuple[Pair, ...] = ()
    stretched: bool = False

    @classmethod
    def from_scales(
        cls,
        scales: Sequence[float],
        aspect_ratios: Sequence[float],
        *,
        interpolated_scale_aspect_ratio: float = 1.0,
        reduce_boxes_in_lowest_layer: bool = True,
        base_size: Pair = (1.0, 1.0),
        strides: tuple[Pair, ...] = (),
        offsets: tuple[Pair, ...] = (),
        first_release: bool = False,
    ) -> SsdAnchorGenerator:
        """Return a generator from one scale per level.

        Args:
            interpolated_scale_aspect_ratio: The shape of an anchor whose scale lies between this
                level's and the next (geometric mean); 0 for none.
            reduce_boxes_in_lowest_layer: Whether the first level has only three anchors.
            first_release: Whether the interpolated anchor is a square that follows the square of each level, where
                there is one, and anchors are stretched, as in the TF Object Detection API from June to November 2017.
        """
        levels: list[tuple[Pair, ...]] = []
        for level, (scale, following) in enumerate(zip(scales, [*scales[1:], 1.0], strict=True)):
            if level == 0 and reduce_boxes_in_lowest_layer:
                # TF's constant: the finest level's square has a scale of 0.1, whatever the smallest scale is.
                levels.append(((0.1, 1.0), (scale, 2.0), (scale, 0.5)))
                continue
            boxes: list[Pair] = []
            between = (scale * following) ** 0.5
            for ratio in aspect_ratios:
                boxes.append((scale, ratio))
                if first_release and ratio == 1:
                    boxes.append((between, 1.0))
            if interpolated_scale_aspect_ratio > 0 and not first_release:
                boxes.append((between, interpolated_scale_aspect_ratio))
            levels.append(tuple(boxes))
        return cls(tuple(levels), base_size, strides, offsets, stretched=first_release)

    @property
    def anchors_per_location(self) -> tuple[int, ...]:
        """The number of anchors per location of each level."""
        return tuple(len(level) for level in self.boxes)

    def __call__(self, feature_sizes: Sequence[Size], image_size: Size) -> list[Tensor]:
        """Return for each level float32 [H × W × S, 4], xyxy in pixels of the input."""
        height, width = image_size
        sides = image_size if self.stretched else (min(height, width),) * 2
        strides = self.strides or tuple((height / h, width / w) for h, w in feature_sizes)
        offsets = self.offsets or tuple((y / 2, x / 2) for y, x in strides)
        return [
            tile_anchors(
                grid,
                [
                    (
                        scale / ratio**0.5 * self.base_size[0] * sides[0],
                        scale * ratio**0.5 * self.base_size[1] * sides[1],
                    )
                    for scale, ratio in boxes
                ],
                stride,
                offset,
            )
            for grid, boxes, stride, offset in zip(feature_sizes, self.boxes, strides, offsets, strict=True)
        ]


@dataclass(frozen=True)
class MultiscaleAnchorGenerator:
    """At level l, anchors of side `anchor_scale × 2^l`, in octave steps and aspect ratios.

    Grids start at half a stride; for one-stage detectors they start at 0 if the image's size is not a multiple of the
    stride (TensorFlow's rule).

    Attributes:
        min_level: The finest level; its stride is 2^min_level.
        anchor_scale: The side of the smallest square anchor, in strides.
        scales_per_octave: The number of scales per level.
        always_half: Whether every grid starts at half a stride, as two-stage detectors' do.
    """

    min_level: int = 3
    max_level: int = 7
    anchor_scale: float = 4.0
    aspect_ratios: tuple[float, ...] = (1.0, 2.0, 0.5)
    scales_per_octave: int = 2
    always_half: bool = False

    @property
    def anchors_per_location(self) -> tuple[int, ...]:
        """The number of anchors per location of each level."""
        count = len(self.aspect_ratios) * self.scales_per_octave
        return (count,) * (self.max_level - self.min_level + 1)

    def __call__(self, feature_sizes: Sequence[Size], image_size: Size) -> list[Tensor]:
        """Return for each level float32 [H × W × S, 4], xyxy in pixels of the input."""
        scales = tuple(2 ** (i / self.scales_per_octave) for i in range(self.scales_per_octave))
        anchors = []
        for level, size in zip(range(self.min_level, self.max_level + 1), feature_sizes, strict=True):
            stride = float(2**level)
            # A size of 1 is TF's default where the image's is not known.
            offset_y, offset_x = (
                stride / 2 if self.always_half or side % stride == 0 or side == 1 else 0.0 for side in image_size
            )
            side = self.anchor_scale * stride
            grid = GridAnchorGenerator(scales, self.aspect_ratios, (side, side), (stride, stride), (offset_y, offset_x))
            anchors += grid([size], image_size)
        return anchors


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
