"""WIDER FACE's evaluation: average precision on easy, medium and hard faces, as its tool computes it.

The source defines the subsets (`easy`, `medium` and `hard` among a sample's attributes). Faces outside a subset are
ignored, with the detections that overlap them most. As in the tool, boxes are enlarged by a pixel for comparison, and
an image without faces counts nothing.

Dimensions: D detections of an image, G faces, T thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.metrics.average_precision import all_points
from boxwright.evaluation.metrics.metric import Curve, Matches, MetricResult
from boxwright.evaluation.metrics.regions import Boxes, ImageMasks
from boxwright.types import Array, Categories, Detections, Sample

_SUBSETS = ("easy", "medium", "hard")
_EVERY = "all"
_THRESHOLD = 0.5
_STEPS = 1000
_INVALID = "invalid"
# The tool counts the last pixel as part of a box.
_LARGER = np.array([0.0, 0.0, 1.0, 1.0])

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Image:
    """One image's detections, best first, and its faces.

    Attributes:
        scores: float64 [D].
        overlaps: float64 [D, G].
        subsets: bool [G, S]; which faces are in which subset.
    """

    scores: Floats
    overlaps: Floats
    subsets: NDArray[np.bool_]


class WiderFaceMetrics:
    """Accumulates ground truth and detections by image; all are kept, as scores are rescaled to 0..1 at the end."""

    def __init__(self, categories: Categories) -> None:
        """Start without images."""
        self.categories = categories
        self._images: list[_Image] = []
        self._names: tuple[str, ...] | None = None

    def add(self, sample: Sample, detections: Detections[Array], masks: ImageMasks | None = None) -> None:
        """Add one image."""
        del masks
        names, subsets = _read_subsets(sample)
        if len(sample.boxes):
            # If only some images state subsets, only the metric of all faces is meaningful.
            known = names if self._names is None else tuple(name for name in self._names if name in names)
            self._names = known or (_EVERY,)
        boxes = detections.boxes.astype(np.float64)
        scores = detections.scores.astype(np.float64)
        order = np.argsort(-scores, kind="stable")
        detected, truth = Boxes(boxes[order] + _LARGER), Boxes(sample.boxes.astype(np.float64) + _LARGER)
        overlaps = detected.overlaps(truth) if len(sample.boxes) else np.zeros((len(order), 0))
        self._images.append(_Image(scores[order], np.asarray(overlaps), subsets))

    def compute(self) -> MetricResult:
        """Return AP of each subset; NaN for one without faces. Without subsets, AP of all valid faces."""
        names = self._names or (_EVERY,)
        every = np.concatenate([np.zeros(0), *(image.scores for image in self._images)])
        low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
        values: dict[str, float] = {}
        curves, notes = [], []
        for name in names:
            column = (*_SUBSETS, _EVERY).index(name)
            curve = self._curve(name, column, low, high - low)
            key = f"WiderFaceBoxes_Precision/AP@{_THRESHOLD}IOU/{name}"
            values[key] = all_points(curve.precision, curve.recall) if curve.objects else float("nan")
            if curve.objects:
                curves.append(curve)
            else:
                notes.append(f"{key} is NaN: no image has a face of this subset")
        if names == (_EVERY,):
            notes.append(
                "WiderFaceBoxes: the data do not say which faces are easy, medium or hard; set "
                "wider_face_input_reader.subsets"
            )
        return MetricResult(values, curves, notes)

    def _curve(self, name: str, column: int, low: float, span: float) -> Curve:
        """Return precision and recall at 1000 thresholds of the scores, from the highest."""
        # The tool's, from 0.999 down to 0; scores are rescaled by the least and greatest of all images.
        thresholds = 1 - np.arange(1, _STEPS + 1) / _STEPS
        right, counted, faces = np.zeros(_STEPS), np.zeros(_STEPS), 0
        for image in self._images:
            wanted = image.subsets[:, column]
            faces += int(wanted.sum())
            if not len(image.scores) or not len(wanted):
                continue
            matches, counts = _match_faces(image.overlaps, wanted)
            # If all scores are equal, each counts as 1.
            scores = (image.scores - low) / span if span > 0 else np.ones_like(image.scores)
            reached = np.searchsorted(-scores, -thresholds, side="right")
            seen = reached > 0
            right[seen] += np.cumsum(matches)[reached[seen] - 1]
            counted[seen] += np.cumsum(counts)[reached[seen] - 1]
        precision = np.divide(right, counted, out=np.zeros(_STEPS), where=counted > 0)
        recall = right / faces if faces else np.zeros(_STEPS)
        none = np.zeros(0, np.int64)
        gains = np.diff(right, prepend=0.0)
        return Curve(name, _THRESHOLD, thresholds, gains, faces, precision, recall, Matches(none, none, none))


def _read_subsets(sample: Sample) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Return the names of known subsets, and the members of each, bool [G, 4]; the last column has all valid faces."""
    known = dict(zip(sample.attribute_names, () if sample.attributes is None else sample.attributes.T, strict=False))
    count = len(sample.boxes)
    valid = ~(sample.is_crowd | (known.get(_INVALID, np.zeros(count, np.int64)) == 1))
    columns = [np.asarray(known.get(name, np.zeros(count, np.int64)) == 1) for name in _SUBSETS]
    return tuple(name for name in _SUBSETS if name in known), np.stack([*columns, valid], 1)


def _match_faces(overlaps: Floats, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which detections match a wanted face first, and which count at all, bool [D] each; best detections first.

    A detection belongs to the face that it overlaps most, if by at least half. If that face is not wanted, neither
    counts; if a better detection matched it already, this one is a false positive.
    """
    best = overlaps.argmax(1)
    near = overlaps.max(1) >= _THRESHOLD
    counts = ~near | wanted[best]
    claims = np.where(near & wanted[best], best, -1)
    first = np.zeros(len(best), np.bool_)
    faces, firsts = np.unique(claims, return_index=True)
    first[firsts[faces >= 0]] = True
    return first, counts
