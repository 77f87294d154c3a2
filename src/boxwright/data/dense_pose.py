"""DensePose's points in TensorFlow's records and COCO's annotations, and in a mirror.

In a mirror, the body's left and right change places, and with them parts and coordinates.

Dimensions: N objects, D points (padded).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, shown
from boxwright.base.limits import SURFACE_POINTS
from boxwright.data.reading import finite_number, reading
from boxwright.types.dense_pose import COLUMNS, KNOWN, MIRRORED_PARTS, PART, PARTS, PLACE, SURFACE

_COCO_NAMES = ("dp_I", "dp_x", "dp_y", "dp_U", "dp_V")
_BOX_UNITS = 256  # of the side of a box, in DensePose-COCO
# Coordinates of 0..1 are looked up in as many steps.
_STEPS = 256
_LARGEST = 255  # of a coordinate in the file of the symmetry


@dataclass(frozen=True)
class PointList:
    """The points of an image's objects, one object after the other.

    Attributes:
        counts: The number of points of each object, [N].
        parts: An index of `PARTS` each, [n].
        x: In pixels, [n]; y as well.
        u: On the surface, 0..1, [n]; v as well.
    """

    counts: NDArray[Any]
    parts: NDArray[Any]
    x: NDArray[Any]
    y: NDArray[Any]
    u: NDArray[Any]
    v: NDArray[Any]

    def padded(self, where: str) -> NDArray[np.float32]:
        """Return the points by object, float32 [N, D, 6], padded with 0 to the largest number of an object.

        Raises:
            DataError: For an unknown part, a number that is not finite, or more points than the limit allows.
        """
        self._check(where)
        objects, most = len(self.counts), int(self.counts.max(initial=0))
        if problem := SURFACE_POINTS.exceeded(objects * most):
            raise DataError(f"{where}: {problem}")
        points = np.zeros((objects, most, COLUMNS), np.float32)
        # Row-major order of a mask is that of the lists: object by object.
        valid = np.arange(most) < self.counts[:, None]
        points[valid] = np.stack([self.x, self.y, np.ones(len(self.x)), self.parts, self.v, self.u], 1)
        return points

    def _check(self, where: str) -> None:
        wrong = self.parts[~np.isin(self.parts, np.arange(len(PARTS)))]
        if len(wrong):
            raise DataError(f"{where}: DensePose has the part {wrong[0]}; there are 0 to {len(PARTS) - 1}")
        for name in ("x", "y", "u", "v"):
            with np.errstate(over="ignore"):  # JSON's numbers may be beyond float32, where they are infinite
                values = getattr(self, name).astype(np.float32)
            if not np.isfinite(values).all():
                number = int(np.flatnonzero(~np.isfinite(values))[0])
                raise DataError(f"{where}: DensePose's {name} of point {number} is not finite")


def coco_points(annotations: Sequence[tuple[dict[str, Any], str]]) -> PointList:
    """Return the points of an image's COCO annotations, each with its place for errors; those without have none.

    Places are in 256ths of the box, as DensePose-COCO's `dp_x` and `dp_y` are; parts count from 1.

    Raises:
        DataError: If a list is not of numbers, or has another length than the others.
    """
    counts: list[int] = []
    rows: list[NDArray[np.float64]] = []
    for annotation, where in annotations:
        given = {name: annotation.get(name) for name in _COCO_NAMES}
        is_labeled = all(values is not None for values in given.values())
        columns = [_numbers(values, f"{where}: {name}") for name, values in given.items()] if is_labeled else []
        if len({len(column) for column in columns}) > 1:
            lengths = ", ".join(f"{len(column)} {name}" for name, column in zip(given, columns, strict=True))
            raise DataError(f"{where}: DensePose's lists have different lengths: {lengths}")
        if is_labeled and len(wrong := columns[0][~np.isin(columns[0], np.arange(len(PARTS)) + 1)]):
            raise DataError(f"{where}: dp_I: there are parts 1 to {len(PARTS)}, found {wrong[0]:g}")
        counts.append(len(columns[0]) if is_labeled else 0)
        if counts[-1]:
            rows.append(_in_pixels(np.stack(columns), annotation["bbox"]))
    part, x, y, u, v = np.concatenate(rows, 1) if rows else np.zeros((len(_COCO_NAMES), 0))
    return PointList(np.array(counts, np.int64), part - 1, x, y, u, v)


def coco_lists(points: NDArray[np.float32], box: NDArray[np.float32]) -> dict[str, list[float]]:
    """Return an object's points [D, 6] as the lists of a COCO annotation, which `coco_points` reads.

    Args:
        box: float32 [4], xyxy in pixels, with an area.
    """
    known = points[points[:, KNOWN] > 0].astype(np.float64)
    corner, sides = box[:2].astype(np.float64), (box[2:] - box[:2]).astype(np.float64)
    x, y = ((known[:, PLACE] - corner) / sides * _BOX_UNITS).round(3).T
    columns = (known[:, PART] + 1, x, y, known[:, SURFACE.stop - 1], known[:, SURFACE.start])
    return {name: column.tolist() for name, column in zip(_COCO_NAMES, columns, strict=True)}


def _in_pixels(columns: NDArray[np.float64], box: Sequence[float]) -> NDArray[np.float64]:
    """Return part, x, y, u and v with x and y in pixels of the image; places outside the box move to its border."""
    left, top, width, height = box
    part, x, y, u, v = columns
    x, y = np.clip(x / _BOX_UNITS, 0, 1) * width + left, np.clip(y / _BOX_UNITS, 0, 1) * height + top
    return np.stack([part, x, y, u, v])


def _numbers(values: Any, where: str) -> NDArray[np.float64]:
    if not isinstance(values, list):
        raise DataError(f"{where}: expected a list of numbers, found {repr(values)[:60]}")
    return np.array([finite_number(value, where) for value in values], np.float64)


def point_list(points: NDArray[np.float32]) -> PointList:
    """Return the points [N, D, 6] that are known."""
    labeled = points[..., KNOWN] > 0
    flat = points[labeled]
    (x, y), (v, u) = flat[:, PLACE].T, flat[:, SURFACE].T
    return PointList(labeled.sum(1), flat[:, PART].astype(np.int64), x, y, u, v)


def read_symmetry(path: str | Path) -> SurfaceSymmetry:
    """Return what a mirror makes of the body's surface, from DensePose's UV_symmetry_transforms.mat.

    Raises:
        DataError: If the file is missing or has other contents, or SciPy is missing.
    """
    if not is_file(path):
        raise DataError(
            f"{shown(path)}: no such file; UV_symmetry_transforms.mat lies in object_detection/dataset_tools/densepose"
            " of TensorFlow's models"
        )
    try:
        from scipy.io import loadmat
    except ImportError:
        raise DataError("reading DensePose's symmetry needs SciPy: pip install scipy") from None
    with reading(str(shown(path))):
        content: dict[str, Any] = loadmat(str(path))
    axes = []
    for name in ("V_transforms", "U_transforms"):
        tables = list(np.ravel(content.get(name, ())))
        if len(tables) != len(PARTS) or any(np.shape(table) != (_STEPS, _STEPS) for table in tables):
            raise DataError(f"{shown(path)}: expected {len(PARTS)} tables of {_STEPS}×{_STEPS} in {name}")
        axes.append(np.stack([np.asarray(table, np.float32) for table in tables]))
    # Coordinates of 0..1 are stored in bytes.
    coordinates = np.stack(axes, -1) / np.float32(_LARGEST)
    if not ((coordinates >= 0) & (coordinates <= 1)).all():
        raise DataError(f"{shown(path)}: expected coordinates of 0 to {_LARGEST}")
    return SurfaceSymmetry(coordinates)


@dataclass(frozen=True)
class SurfaceSymmetry:
    """Where a point of the body's surface lies on the mirrored body.

    Attributes:
        coordinates: float32 [24, 256, 256, 2]; v and u, by part, v and u of the point before.
    """

    coordinates: NDArray[np.float32]

    def mirrored(self, points: NDArray[Any]) -> NDArray[Any]:
        """Return points [N, D, 6] with the parts and coordinates that a mirror shows; their places stay."""
        part = points[..., PART].astype(np.int64)
        # The last step is for 1 itself, where TF looks one place too far, into the next row or part.
        v, u = np.moveaxis((np.clip(points[..., SURFACE], 0, 1) * _STEPS).astype(np.int64).clip(max=_STEPS - 1), -1, 0)
        mirrored = points.copy()
        mirrored[..., PART] = MIRRORED_PARTS[part]
        mirrored[..., SURFACE] = self.coordinates[part, v, u]
        return mirrored


def mirrored_surface(points: NDArray[Any], symmetry: SurfaceSymmetry | None) -> NDArray[Any]:
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
