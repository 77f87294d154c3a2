"""Box coders: boxes as offsets from anchors, and back.

Codes keep TensorFlow's order (y before x), so that its trained heads load as they are.

Dimensions: A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FasterRcnnBoxCoder"]

_EPSILON = 1e-8


@dataclass(frozen=True)
class FasterRcnnBoxCoder:
    """Centre offsets in units of the anchor and logarithms of size ratios (Faster R-CNN, section 3.1.2).

    Attributes:
        y_scale: Multiplies the offset of the centre's y.
        x_scale: Multiplies the offset of the centre's x.
        height_scale: Multiplies the logarithm of the heights' ratio.
        width_scale: Multiplies the logarithm of the widths' ratio.
    """

    y_scale: float = 10.0
    x_scale: float = 10.0
    height_scale: float = 5.0
    width_scale: float = 5.0

    @property
    def code_size(self) -> int:
        """Numbers in a code."""
        return 4

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        """Express boxes relative to anchors.

        Args:
            boxes: [..., A, 4], xyxy.
            anchors: [A, 4], xyxy in the same unit.

        Returns:
            [..., A, 4] as ty, tx, th, tw.
        """
        box_x, box_y, box_w, box_h = _centre_and_size(boxes)
        anchor_x, anchor_y, anchor_w, anchor_h = _centre_and_size(anchors)
        anchor_w, anchor_h = anchor_w + _EPSILON, anchor_h + _EPSILON
        return torch.stack(
            [
                (box_y - anchor_y) / anchor_h * self.y_scale,
                (box_x - anchor_x) / anchor_w * self.x_scale,
                torch.log((box_h + _EPSILON) / anchor_h) * self.height_scale,
                torch.log((box_w + _EPSILON) / anchor_w) * self.width_scale,
            ],
            dim=-1,
        )

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        """Invert `encode`.

        Args:
            codes: [..., A, 4] as ty, tx, th, tw.
            anchors: [A, 4], xyxy.

        Returns:
            [..., A, 4], xyxy in the unit of the anchors.
        """
        anchor_x, anchor_y, anchor_w, anchor_h = _centre_and_size(anchors)
        ty, tx, th, tw = codes.unbind(-1)
        half_w = torch.exp(tw / self.width_scale) * anchor_w / 2
        half_h = torch.exp(th / self.height_scale) * anchor_h / 2
        x = tx / self.x_scale * anchor_w + anchor_x
        y = ty / self.y_scale * anchor_h + anchor_y
        return torch.stack([x - half_w, y - half_h, x + half_w, y + half_h], dim=-1)


def _centre_and_size(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x_min, y_min, x_max, y_max = boxes.unbind(-1)
    width, height = x_max - x_min, y_max - y_min
    return x_min + width / 2, y_min + height / 2, width, height
