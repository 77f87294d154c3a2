"""Outlines as points: whether their edges cross.

Dimensions: N outlines, P points of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def crosses_itself(points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which outlines, [N, P, 2], have two edges that cross; edges that only touch do not.

    Memory grows with N · P².
    """
    ends = np.roll(points, -1, axis=1)
    # side[n, i, j]: on which side of edge i the start of edge j lies.
    starts = points[:, None, :, :] - points[:, :, None, :]
    along = (ends - points)[:, :, None, :]
    side = np.sign(_cross(along, starts))
    opposite = side * np.roll(side, -1, axis=2) < 0
    return np.asarray((opposite & opposite.transpose(0, 2, 1)).any((1, 2)))


def _cross(a: NDArray[np.float64], b: NDArray[np.float64]) -> Any:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
