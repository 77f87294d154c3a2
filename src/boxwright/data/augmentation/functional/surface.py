"""DensePose's points in a mirror: the body's left and right change places, and with them parts and coordinates.

Dimensions: N objects, D points (padded).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.types.dense_pose import MIRRORED_PARTS, PART, SURFACE

Array = NDArray[Any]
# Coordinates of 0..1 are looked up in as many steps.
STEPS = 256


@dataclass(frozen=True)
class SurfaceSymmetry:
    """Where a point of the body's surface lies on the mirrored body.

    Attributes:
        coordinates: float32 [24, 256, 256, 2]; v and u, by part, v and u of the point before.
    """

    coordinates: NDArray[np.float32]

    def mirrored(self, points: Array) -> Array:
        """Return points [N, D, 6] with the parts and coordinates that a mirror shows; their places stay."""
        part = points[..., PART].astype(np.int64)
        # The last step is for 1 itself, where TF looks one place too far, into the next row or part.
        v, u = np.moveaxis((np.clip(points[..., SURFACE], 0, 1) * STEPS).astype(np.int64).clip(max=STEPS - 1), -1, 0)
        mirrored = points.copy()
        mirrored[..., PART] = MIRRORED_PARTS[part]
        mirrored[..., SURFACE] = self.coordinates[part, v, u]
        return mirrored


def mirrored_surface(points: Array, symmetry: SurfaceSymmetry | None) -> Array:
    """Return points [N, D, 6] with mirrored parts and coordinates.

    Raises:
        DataError: If there are points, but no symmetry is known.
    """
    if symmetry is not None:
        return symmetry.mirrored(points)
    if points.size:
        raise DataError(
            "a flip needs to know where DensePose's coordinates lie on the mirrored body: set dense_pose_symmetry to "
            "UV_symmetry_transforms.mat, which comes with TensorFlow's models, or remove the flip"
        )
    return points
