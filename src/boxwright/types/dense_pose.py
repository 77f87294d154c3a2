"""DensePose: points of a person's image, each with its place on the body's surface (Güler et al., 2018).

The surface is cut into 24 parts, each of which has coordinates v and u in 0..1.

Dimensions: N objects, D points (padded).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The order of TF's records and predictions; DensePose's own numbers are 1 higher, since 0 is the background.
PARTS = (
    "torso_back",
    "torso_front",
    "right_hand",
    "left_hand",
    "left_foot",
    "right_foot",
    "right_upper_leg_back",
    "left_upper_leg_back",
    "right_upper_leg_front",
    "left_upper_leg_front",
    "right_lower_leg_back",
    "left_lower_leg_back",
    "right_lower_leg_front",
    "left_lower_leg_front",
    "left_upper_arm_back",
    "right_upper_arm_back",
    "left_upper_arm_front",
    "right_upper_arm_front",
    "left_lower_arm_back",
    "right_lower_arm_back",
    "left_lower_arm_front",
    "right_lower_arm_front",
    "right_face",
    "left_face",
)


# Columns of the last dimension of `Sample.dense_pose` [N, D, 6] and `Targets.dense_pose` [B, G, D, 6].
PLACE = slice(0, 2)  # x and y in pixels
KNOWN = 2  # 1; 0 for padding, and for a point that left the image
PART = 3  # an index of PARTS
SURFACE = slice(4, 6)  # v and u
COLUMNS = 6


def _mirrored(name: str) -> str:
    if name.startswith("left"):
        return name.replace("left", "right", 1)
    return name.replace("right", "left", 1)


# The part that each becomes in a mirror.
MIRRORED_PARTS = np.array([PARTS.index(_mirrored(name)) for name in PARTS], np.int64)


def padded_points(rows: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the points [N, D, 6] of several images, padded with 0 to the same D."""
    most = max((row.shape[1] for row in rows), default=0)
    return [np.pad(row, ((0, 0), (0, most - row.shape[1]), (0, 0))) for row in rows]
