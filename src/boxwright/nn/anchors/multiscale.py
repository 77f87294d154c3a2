"""Anchors that double from level to level, as in RetinaNet (Focal Loss for Dense Object Detection, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from boxwright.nn.anchors.grid import GridAnchorGenerator, Size


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
