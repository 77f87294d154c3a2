"""SSD's anchors: one scale per level, with an extra square between the scales (SSD, section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from boxwright.nn.anchors.grid import Size, tile_anchors

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
