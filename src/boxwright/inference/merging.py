"""Merging the detections of several views of an image.

Dimensions: V views, D detections of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.metrics.matching import overlaps, overlaps_of_crowds
from boxwright.types import FoundObjects
from boxwright.types.found import chosen

# The share of a cut part that must lie in the whole object for the part to be dropped.
_PART = 0.7
# The IoU from which two views show the same object: the usual one for suppression, and the fusion paper's.
_SAME_SUPPRESSED = 0.5
_SAME_FUSED = 0.55


@dataclass(frozen=True, eq=False)
class View:
    """The detections in one view.

    Attributes:
        found: In pixels of the image.
        cut: bool [D]; which objects the view's border may have cut.
    """

    found: FoundObjects
    cut: NDArray[np.bool_]


def suppressed(views: list[View]) -> FoundObjects:
    """Return the best of overlapping boxes of a class, best first; parts cut by a border yield to the whole object."""
    found, cut = _joined(views)
    boxes = found.boxes.astype(np.float64)
    kept: list[int] = []
    places = _BoxGrid(boxes)
    # The last key sorts first: whole objects before those that a border may have cut, each by score.
    for row in np.lexsort((-found.scores, cut)).tolist():
        label, own = int(found.labels[row]), boxes[row : row + 1]
        others = boxes[places.near(label, own[0])]
        same = overlaps(own, others) > _SAME_SUPPRESSED
        if not (same.any() or (cut[row] and _lies_in(own, others))):
            kept.append(row)
            places.add(row, label, own[0])
    return _best_first(chosen(found, np.array(kept, np.int64)))


def fused_boxes(views: list[View]) -> FoundObjects:
    """Return score-weighted means of overlapping boxes of a class, best first; parts cut by a border yield to wholes.

    Weighted boxes fusion (Solovyev et al., 2021), with the mean of the scores: the number of views that contain an
    object means nothing here, as most cover only a part of the image. Other properties are those of the best fused box.
    """
    found, cut = _joined(views)
    groups: list[list[int]] = []
    boxes: list[NDArray[np.float64]] = []
    places = _BoxGrid(found.boxes.astype(np.float64))
    for row in np.lexsort((-found.scores, cut)).tolist():
        label, own = int(found.labels[row]), found.boxes[row : row + 1].astype(np.float64)
        same = places.near(label, own[0])
        near = np.array([boxes[number] for number in same]).reshape(-1, 4)
        if cut[row] and _lies_in(own, near):
            continue
        overlap = overlaps(own, near)[0]
        if len(same) and overlap.max() > _SAME_FUSED:
            nearest = same[int(overlap.argmax())]
            groups[nearest].append(row)
            boxes[nearest] = _weighted(found, groups[nearest])
        else:
            nearest = len(groups)
            groups.append([row])
            boxes.append(own[0])
        # A mean may reach into other cells than before.
        places.add(nearest, label, boxes[nearest])
    best = chosen(found, np.array([max(group, key=lambda row: found.scores[row]) for group in groups], np.int64))
    scores = np.array([found.scores[group].mean() for group in groups], np.float32)
    return _best_first(replace(best, boxes=np.array(boxes, np.float32).reshape(-1, 4), scores=scores))


MERGES = {"nms": suppressed, "wbf": fused_boxes}


class _BoxGrid:
    """Boxes by class and place, so that one is compared with those near it: a large image has tens of thousands."""

    def __init__(self, boxes: NDArray[np.float64]) -> None:
        """Start without any, with cells as large as the boxes [N, 4] are on average."""
        sides = boxes[:, 2:] - boxes[:, :2]
        self._side = max(float(sides.mean()), 1.0) if len(boxes) else 1.0
        self._cells: dict[tuple[int, int, int], set[int]] = {}

    def add(self, number: int, label: int, box: NDArray[np.float64]) -> None:
        """Add a box [4] under a number, which may have others already."""
        for cell in self._covered(label, box):
            self._cells.setdefault(cell, set()).add(number)

    def near(self, label: int, box: NDArray[np.float64]) -> list[int]:
        """Return, in order, the numbers of a class's boxes that may overlap a box [4]."""
        found: set[int] = set()
        for cell in self._covered(label, box):
            found |= self._cells.get(cell, set())
        return sorted(found)

    def _covered(self, label: int, box: NDArray[np.float64]) -> Iterator[tuple[int, int, int]]:
        left, top, right, bottom = np.floor(box / self._side).astype(np.int64).tolist()
        return ((label, row, column) for row in range(top, bottom + 1) for column in range(left, right + 1))


def _weighted(found: FoundObjects, group: list[int]) -> NDArray[np.float64]:
    weights = found.scores[group].astype(np.float64)
    weights = weights if weights.sum() > 0 else np.ones_like(weights)
    return np.asarray((found.boxes[group] * weights[:, None]).sum(0) / weights.sum())


def _joined(views: list[View]) -> tuple[FoundObjects, NDArray[np.bool_]]:
    first = views[0].found
    rows: dict[str, Any] = {
        field.name: np.concatenate([getattr(view.found, field.name) for view in views])
        for field in fields(first)
        if isinstance(getattr(first, field.name), np.ndarray)
    }
    return replace(first, **rows), np.concatenate([view.cut for view in views])


def _best_first(found: FoundObjects) -> FoundObjects:
    return chosen(found, np.argsort(-found.scores, kind="stable"))


def _lies_in(part: NDArray[np.float64], wholes: NDArray[np.float64]) -> bool:
    """Return whether most of a box [1, 4] lies in one of others [N, 4]."""
    # COCO's measure for crowds: the intersection over the area of the first box alone.
    return bool((overlaps_of_crowds(part, wholes) >= _PART).any())
