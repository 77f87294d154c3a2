"""Pixels covered by boxes and masks, for all objects at once.

Dimensions: N boxes, H W image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def covered(boxes: NDArray[Any], height: int, width: int) -> NDArray[np.bool_]:
    """Return which pixels lie in some box [N, 4], xyxy in pixels, rounded: bool [H, W]."""
    x_min, y_min, x_max, y_max = _whole(boxes, height, width)
    # A box is the 2-D cumulative sum of +1 at two opposite corners and -1 at the other two.
    corners = np.zeros((height + 1, width + 1), np.int64)
    for rows, columns, sign in ((y_min, x_min, 1), (y_max, x_min, -1), (y_min, x_max, -1), (y_max, x_max, 1)):
        np.add.at(corners, (rows, columns), sign)
    return np.asarray(corners.cumsum(0).cumsum(1)[:height, :width] > 0)


def share_covered(boxes: NDArray[Any], hidden: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of each box's pixels that are hidden, [N]; 1 for a box without pixels.

    Args:
        boxes: [N, 4], xyxy in pixels; edges are rounded.
        hidden: bool [H, W].
    """
    x_min, y_min, x_max, y_max = _whole(boxes, *hidden.shape)
    sums = np.pad(hidden.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    inside = sums[y_max, x_max] - sums[y_min, x_max] - sums[y_max, x_min] + sums[y_min, x_min]
    pixels = (x_max - x_min) * (y_max - y_min)
    return np.asarray(np.divide(inside, pixels, out=np.ones(len(pixels)), where=pixels > 0))


def mask_boxes(masks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the smallest box around each mask [N, H, W]; zeros for an empty one."""
    ends = []
    for axis in (1, 2):  # along y, then along x
        seen = masks.max(3 - axis, initial=0) > 0
        first, last = seen.argmax(1), masks.shape[axis] - seen[:, ::-1].argmax(1)
        ends.append(np.where(seen.any(1), np.stack([first, last]), 0))
    (y_min, y_max), (x_min, x_max) = ends
    return np.stack([x_min, y_min, x_max, y_max], 1).astype(np.float32)


def _whole(boxes: NDArray[Any], height: int, width: int) -> NDArray[np.int64]:
    """Return the edges rounded to pixels inside an image, [4, N]."""
    edges = np.clip(np.rint(boxes), 0, [width, height, width, height]).astype(np.int64).reshape(-1, 4)
    return np.concatenate([edges[:, :2], np.maximum(edges[:, :2], edges[:, 2:])], 1).T
