"""Masks and keypoints of events as vectors, for overlays.

Dimensions: H W image.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.coco_masks import decode_mask
from boxwright.report.outcomes import NOTHING, Outcomes
from boxwright.report.tables import Tables

# Images whose shapes a page loads together.
IMAGES_A_PART = 50
# Outlines may be off by so many pixels.
_TOLERANCE = 1.0
_LEAST_KEYPOINT_SCORE = 0.3


def has_shapes(tables: Tables) -> bool:
    """Return whether an object or a detection has a mask or keypoints."""
    truth = any(row.get("segmentation") or row.get("keypoints") for row in tables.truth_rows)
    return truth or bool(tables.found_rows)


def shape_part(tables: Tables, outcomes: Outcomes, start: int, stop: int) -> dict[int, dict[str, Any]]:
    """Return the shapes of the events in some images: event to `truth` and `found`, each with `path` or `points`."""
    shapes: dict[int, dict[str, Any]] = {}
    for event in np.flatnonzero((outcomes.images >= start) & (outcomes.images < stop)).tolist():
        size = tables.sizes[outcomes.images[event]]
        detection, thing = int(outcomes.found[event]), int(outcomes.objects[event])
        rows = {
            "truth": {} if thing == NOTHING else tables.truth_rows[thing],
            "found": {} if detection == NOTHING else tables.found_rows.get(int(tables.found.rows[detection]), {}),
        }
        drawn = {name: _drawn(row, (int(size[0]), int(size[1]))) for name, row in rows.items()}
        if known := {name: shape for name, shape in drawn.items() if shape}:
            shapes[event] = known
    return shapes


def _drawn(row: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """Return a row's mask as SVG's path, and its visible keypoints as x and y; those it has."""
    drawn: dict[str, Any] = {}
    if row.get("segmentation"):
        try:
            drawn["path"] = outline(decode_mask(row["segmentation"], size, "a mask"))
        except DataError:  # of another size than the image: its box is shown
            return {}
    points = row.get("keypoints")
    if isinstance(points, list) and len(points) % 3 == 0 and all(type(value) in (int, float) for value in points):
        triples = np.array(points, np.float64).reshape(-1, 3)
        drawn["points"] = triples[triples[:, 2] >= _LEAST_KEYPOINT_SCORE, :2].round(1).tolist()
    return drawn


def outline(mask: NDArray[np.uint8]) -> str:
    """Return the outlines of a mask, uint8 [H, W], as SVG's path."""
    contours, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    simple = [cv2.approxPolyDP(contour, _TOLERANCE, True).reshape(-1, 2) for contour in contours]
    return "".join("M" + "L".join(f"{x} {y}" for x, y in points.tolist()) + "Z" for points in simple if len(points) > 2)
