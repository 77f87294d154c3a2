"""SSD's anchors: one scale per level, with an extra square between the scales (SSD, section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from boxwright.ops.anchors.grid import Size, tile_anchors

Pair = tuple[float, float]


@dataclass(frozen=True)
class SsdAnchorGenerator:
    """Anchors in units of the image's shorter side, with several shapes per level.

    Attributes:
        boxes: For each level, the (scale, aspect ratio) of each anchor.
        base_size: (height, width) that a scale multiplies, in units of the shorter side.
        strides: (y, x) in pixels for each level; empty for the image's size over the map's.
        offsets: (y, x) of the first center in pixels for each level; empty for half a stride.
    """

    boxes: tuple[tuple[Pair, ...], ...]
    base_size: Pair = (1.0, 1.0)
    strides: tuple[Pair, ...] = ()
    offsets: tuple[Pair, ...] = ()

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
    ) -> SsdAnchorGenerator:
        """Return a generator from one scale per level.

        Args:
            interpolated_scale_aspect_ratio: The shape of an anchor whose scale lies between this
                level's and the next (geometric mean); 0 for none.
            reduce_boxes_in_lowest_layer: Whether the first level has only three anchors.
        """
        levels: list[tuple[Pair, ...]] = []
        for level, (scale, following) in enumerate(zip(scales, [*scales[1:], 1.0], strict=True)):
            if level == 0 and reduce_boxes_in_lowest_layer:
                # TF's constant: the finest level's square has a scale of 0.1, whatever the smallest scale is.
                levels.append(((0.1, 1.0), (scale, 2.0), (scale, 0.5)))
                continue
            boxes = [(scale, ratio) for ratio in aspect_ratios]
            if interpolated_scale_aspect_ratio > 0:
                boxes.append(((scale * following) ** 0.5, interpolated_scale_aspect_ratio))
            levels.append(tuple(boxes))
        return cls(tuple(levels), base_size, strides, offsets)

    @property
    def anchors_per_location(self) -> tuple[int, ...]:
        """The number of anchors per location of each level."""
        return tuple(len(level) for level in self.boxes)

    def __call__(self, feature_sizes: Sequence[Size], image_size: Size) -> list[Tensor]:
        """Return for each level float32 [H × W × S, 4], xyxy in pixels of the input."""
        height, width = image_size
        shorter = min(height, width)
        strides = self.strides or tuple((height / h, width / w) for h, w in feature_sizes)
        offsets = self.offsets or tuple((y / 2, x / 2) for y, x in strides)
        return [
            tile_anchors(
                grid,
                [
                    (scale / ratio**0.5 * self.base_size[0] * shorter, scale * ratio**0.5 * self.base_size[1] * shorter)
                    for scale, ratio in boxes
                ],
                stride,
                offset,
            )
            for grid, boxes, stride, offset in zip(feature_sizes, self.boxes, strides, offsets, strict=True)
        ]
