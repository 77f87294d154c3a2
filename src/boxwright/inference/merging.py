"""Merging the detections of several views of an image.

Dimensions: V views, D detections of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.metrics.matching import overlaps, overlaps_of_crowds
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
    # The last key sorts first: whole objects before those that a border may have cut, each by score.
    for row in np.lexsort((-found.scores, cut)):
        others = boxes[[other for other in kept if found.labels[other] == found.labels[row]]]
        own = boxes[row : row + 1]
        same = overlaps(own, others) > _SAME_SUPPRESSED
        if not (same.any() or (cut[row] and _lies_in(own, others))):
            kept.append(int(row))
    return _best_first(chosen(found, np.array(kept, np.int64)))


def fused_boxes(views: list[View]) -> FoundObjects:
    """Return score-weighted means of overlapping boxes of a class, best first; parts cut by a border yield to wholes.

    Weighted boxes fusion (Solovyev et al., 2021), with the mean of the scores: the number of views that contain an
    object means nothing here, as most cover only a part of the image. Other properties are those of the best fused box.
    """
    found, cut = _joined(views)
    groups: list[list[int]] = []
    boxes: list[NDArray[np.float64]] = []
    for row in np.lexsort((-found.scores, cut)):
        same = [number for number, group in enumerate(groups) if found.labels[group[0]] == found.labels[row]]
        near = np.array([boxes[number] for number in same]).reshape(-1, 4)
        own = found.boxes[row : row + 1].astype(np.float64)
        if cut[row] and _lies_in(own, near):
            continue
        overlap = overlaps(own, near)[0]
        if len(same) and overlap.max() > _SAME_FUSED:
            nearest = same[int(overlap.argmax())]
            groups[nearest].append(int(row))
            boxes[nearest] = _weighted(found, groups[nearest])
        else:
            groups.append([int(row)])
            boxes.append(own[0])
    best = chosen(found, np.array([max(group, key=lambda row: found.scores[row]) for group in groups], np.int64))
    scores = np.array([found.scores[group].mean() for group in groups], np.float32)
    return _best_first(replace(best, boxes=np.array(boxes, np.float32).reshape(-1, 4), scores=scores))


MERGES = {"nms": suppressed, "wbf": fused_boxes}


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
