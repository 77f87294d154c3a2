"""What was recorded of each random step's draws, measured on ours: where pixels came from, and what became of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.types import Sample

_PARITY = (101, 201)  # of the third channel of the index picture, by (row + column) % 2
_SIDES = ("ymin", "xmin", "ymax", "xmax")


def index_picture(height: int, width: int) -> NDArray[np.uint8]:
    """Return a picture whose pixels say where they are: row, column and their parity."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows, columns, 101 + 100 * ((rows + columns) % 2)], -1).astype(np.uint8)


def measure(before: Sample, after: Sample, names: set[str], places: dict[int, tuple[int, int]]) -> dict[str, float]:
    """Return the statistics of one draw that have a value.

    Args:
        before: The sample, whose labels number its objects.
        after: What a step made of it.
        names: Which are wanted.
        places: (row, column) of the pixels that are followed.
    """
    height, width = after.image.shape[:2]
    kept = set(after.labels.tolist())
    found: dict[str, float] = {
        "out_height": height,
        "out_width": width,
        "num_boxes": len(after.boxes),
        "weights_sum": float(after.weights.sum()),
        **{f"kept_{number}": float(number in kept) for number in range(12)},
    }
    if "acted" in names:
        found["acted"] = float(_differ(before, after))
    boxes = (after.boxes / np.array([width, height] * 2))[:, [1, 0, 3, 2]]
    if len(boxes):
        found |= {f"mean_{side}": float(value) for side, value in zip(_SIDES, boxes.mean(0), strict=True)}
    if 0 in kept:
        first = boxes[int(np.flatnonzero(after.labels == 0)[0])]
        found |= {f"first_{side}": float(value) for side, value in zip(_SIDES, first, strict=True)}
    if any(name.startswith(("pixel", "changed")) for name in names):
        found |= _pixels(before.image, after.image, places)
    if any(name.startswith(("src", "fill")) for name in names):
        found |= _origin(before.image, after.image)
    return {name: value for name, value in found.items() if name in names}


def _differ(before: Sample, after: Sample) -> bool:
    if before.image.shape != after.image.shape or len(before.boxes) != len(after.boxes):
        return True
    same = np.array_equal(before.image, after.image) and np.array_equal(before.labels, after.labels)
    return not (same and np.abs(before.boxes - after.boxes).max(initial=0) < 1e-6)


def _pixels(before: NDArray[Any], after: NDArray[Any], places: dict[int, tuple[int, int]]) -> dict[str, float]:
    levels = after.astype(np.float64)
    found: dict[str, float] = {}
    for channel in range(3):
        found[f"pixel_mean_{channel}"] = float(levels[..., channel].mean())
        found[f"pixel_std_{channel}"] = float(levels[..., channel].std())
    if before.shape != after.shape:
        return found
    for number, (row, column) in places.items():
        found |= {f"pixel_{channel}_at_{number}": float(levels[row, column, channel]) for channel in range(3)}
    changed = (levels != before).any(-1)
    found["changed_fraction"] = float(changed.mean())
    if changed.any():
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        edges = (rows[0], columns[0], rows[-1] + 1, columns[-1] + 1)
        found |= {f"changed_{side}": float(edge) for side, edge in zip(_SIDES, edges, strict=True)}
    return found


def _origin(before: NDArray[Any], after: NDArray[Any]) -> dict[str, float]:
    """Read back which window of an index picture is seen, where, and which way round."""
    rows, columns, parity = (after[..., channel].astype(np.int64) for channel in range(3))
    own = (rows < before.shape[0]) & (columns < before.shape[1]) & (parity == 101 + 100 * ((rows + columns) % 2))
    found: dict[str, float] = {}
    if not own.all():
        y, x = (int(place) for place in np.argwhere(~own)[0])
        found |= {f"fill_{channel}": float(after[y, x, channel]) for channel in range(3)}
    if not own.any():
        return found
    y, x = np.argwhere(own)[0].tolist()
    edges = (rows[own].min(), columns[own].min(), rows[own].max() + 1, columns[own].max() + 1)
    found |= {f"src_{side}": float(edge) for side, edge in zip(_SIDES, edges, strict=True)}
    found |= {"dst_ymin": float(y), "dst_xmin": float(np.flatnonzero(own.any(0))[0])}
    down = y + 1 < len(own) and own[y + 1, x]
    right = x + 1 < own.shape[1] and own[y, x + 1]
    if down and right:
        transposed = rows[y, x + 1] != rows[y, x]
        along_y = (columns if transposed else rows)[y + 1, x] - (columns if transposed else rows)[y, x]
        along_x = (rows if transposed else columns)[y, x + 1] - (rows if transposed else columns)[y, x]
        found |= {"transposed": float(transposed), "flip_y": float(along_y < 0), "flip_x": float(along_x < 0)}
    return found
