"""COCO's detection metrics, under the names that TensorFlow gives them.

Dimensions: T overlap thresholds, S ranges of size, R = S × T, D detections of a class in an image.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boxwright.metrics.average_precision import precision_and_recall, sampled
from boxwright.metrics.matching import NOBODY, claim_best_free
from boxwright.metrics.metric import Curve, Matches, MetricResult
from boxwright.metrics.regions import BOXES, ImageMasks, Kind, Regions
from boxwright.types import Categories, FoundObjects, Sample

__all__ = ["CocoMetrics"]

_THRESHOLDS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0.0, 1.0, 101)
# Squares of sides in pixels: all, small, medium, large.
_RANGES = ((0.0, 1e10), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e10))
_SIZES = ("", " (small)", " (medium)", " (large)")
_LIMITS = (1, 10, 100)


@dataclass(frozen=True)
class _Judged:
    """The detections of one class in one image, best first, under every rule.

    Attributes:
        scores: float64 [D].
        right: bool [S, T, D]; whether each found an object that counts.
        ignored: bool [S, T, D]; whether each counts neither way.
        image: Which image, in the order in which they were added.
        detections: int64 [D]; which of the image's detections each is.
        objects: int64 [T, D]; which of the image's objects each found where all sizes count; -1 for none.
    """

    scores: NDArray[np.float64]
    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    image: int
    detections: NDArray[np.int64]
    objects: NDArray[np.int64]


class CocoMetrics:
    """Gathers truth and detections image by image, then computes the twelve numbers (and each class's)."""

    def __init__(self, categories: Categories, *, per_category: bool = False, kind: Kind = BOXES) -> None:
        """Start empty.

        Args:
            categories: The classes.
            per_category: Whether to add `DetectionBoxes_PerformanceByCategory/mAP/NAME`.
            kind: What is compared: boxes or masks.
        """
        self.categories, self.per_category, self.kind = categories, per_category, kind
        self._prefix = f"Detection{kind.name}"
        self._map = f"{self._prefix}_Precision/mAP"
        self._judged: dict[int, list[_Judged]] = defaultdict(list)
        self._objects: dict[int, NDArray[np.int64]] = defaultdict(lambda: np.zeros(len(_RANGES), np.int64))
        self._images = self._truths = self._found = 0
        self._best = 0.0

    def add(self, sample: Sample, detections: FoundObjects, masks: ImageMasks | None = None) -> None:
        """Add one image.

        Args:
            sample: The truth; boxes in pixels of the original image.
            detections: What was found, in the same frame.
            masks: Of both, where masks are compared.
        """
        truth, found = self.kind.of(sample, detections, masks)
        found_labels = detections.labels
        found_scores = detections.scores.astype(np.float64)
        self._images += 1
        self._truths += len(sample.labels)
        self._found += len(found_labels)
        self._best = max(self._best, float(found_scores.max(initial=0.0)))
        known = {category.label for category in self.categories}
        for label in sorted(known & {*sample.labels.tolist(), *found_labels.tolist()}):
            mine = np.flatnonzero(found_labels == label)
            best = mine[np.argsort(-found_scores[mine], kind="stable")[: _LIMITS[-1]]]
            self._judge(label, best, found[best], found_scores[best], sample, truth)

    def _judge(
        self,
        label: int,
        detections: NDArray[np.int64],
        found: Regions,
        scores: NDArray[np.float64],
        sample: Sample,
        objects: Regions,
    ) -> None:
        chosen = np.flatnonzero(sample.labels == label)
        shape = (len(_RANGES), len(_THRESHOLDS), len(scores))
        outside = np.broadcast_to(_outside(found.areas)[:, None], shape)
        image = self._images - 1
        if not len(chosen):  # most classes of an image: nothing can be claimed
            wrong = np.broadcast_to(np.False_, shape)
            nobody = np.broadcast_to(np.int64(NOBODY), shape[1:])
            self._judged[label].append(_Judged(scores, wrong, outside, image, detections, nobody))
            return
        truth, crowd = objects[chosen], sample.is_crowd[chosen]
        ignored = crowd | _outside(sample.areas[chosen].astype(np.float64))
        self._objects[label] += (~ignored).sum(1)
        overlap = found.overlaps(truth)
        if crowd.any():
            overlap = np.where(crowd, found.overlaps_of_crowds(truth), overlap)
        rules = np.repeat(ignored, len(_THRESHOLDS), axis=0)
        claims = claim_best_free(overlap, np.tile(_THRESHOLDS, len(_RANGES)), rules, crowd).reshape(shape)
        taken = claims != NOBODY
        of_ignored = np.zeros_like(taken)
        for size, row in enumerate(ignored):
            of_ignored[size] = taken[size] & np.append(row, False)[claims[size]]
        self._judged[label].append(
            _Judged(
                scores,
                right=taken & ~of_ignored,
                ignored=of_ignored | (~taken & outside),
                image=image,
                detections=detections,
                objects=np.append(chosen, NOBODY)[claims[0]],
            )
        )

    def compute(self) -> MetricResult:
        """Return the metrics; -1 where there is no truth that the metric is about."""
        by_limit = {limit: {label: self._curves(label, limit) for label in sorted(self._judged)} for limit in _LIMITS}
        curves = by_limit[_LIMITS[-1]]
        precision = [curve[0] for curve in curves.values()]
        values = {
            self._map: _mean(p[0] for p in precision),
            f"{self._map}@.50IOU": _mean(p[0, 0] for p in precision),
            f"{self._map}@.75IOU": _mean(p[0, 5] for p in precision),
        }
        values |= {f"{self._map}{_SIZES[size]}": _mean(p[size] for p in precision) for size in (1, 2, 3)}
        for limit in _LIMITS:
            values[f"{self._prefix}_Recall/AR@{limit}"] = _mean(curve[1][0] for curve in by_limit[limit].values())
        recall = [curve[1] for curve in curves.values()]
        values |= {f"{self._prefix}_Recall/AR@100{_SIZES[size]}": _mean(r[size] for r in recall) for size in (1, 2, 3)}
        if self.per_category:
            for category in self.categories:
                own = [curves[category.label][0][0]] if category.label in curves else []
                values[f"{self._prefix}_PerformanceByCategory/mAP/{category.name}"] = _mean(own)
        names = {category.label: category.name for category in self.categories}
        drawn = [curve for label in curves for curve in self._drawn(label, names[label])]
        return MetricResult(values, drawn, self._notes(values))

    def _drawn(self, label: int, name: str) -> list[Curve]:
        """Return the curves of a class at every overlap, for objects of all sizes; none where it has no object."""
        objects = float(self._objects[label][0])
        if not objects:
            return []
        judged = self._judged[label]
        scores = np.concatenate([image.scores for image in judged])
        right = np.concatenate([image.right[0] for image in judged], axis=-1)
        counted = ~np.concatenate([image.ignored[0] for image in judged], axis=-1)
        images = np.repeat([image.image for image in judged], [len(image.scores) for image in judged])
        detections = np.concatenate([image.detections for image in judged])
        claimed = np.concatenate([image.objects for image in judged], axis=-1)
        found = []
        for number, threshold in enumerate(_THRESHOLDS):
            counts = np.flatnonzero(counted[number])
            order = counts[np.argsort(-scores[counts], kind="stable")]
            gains = right[number][order].astype(np.float64)
            precision, recall = precision_and_recall(gains, 1 - gains, objects)
            matches = Matches(images, detections, claimed[number]).select(order)
            found.append(Curve(name, float(threshold), scores[order], gains, objects, precision, recall, matches))
        return found

    def _curves(self, label: int, limit: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return precision [S, T, 101] and the last recall [S, T] of a class; -1 where it has no object."""
        judged, counts = self._judged[label], self._objects[label]
        precision = np.full((len(_RANGES), len(_THRESHOLDS), len(_RECALLS)), -1.0)
        recall = np.full((len(_RANGES), len(_THRESHOLDS)), -1.0)
        order = np.argsort(-np.concatenate([image.scores[:limit] for image in judged]), kind="stable")
        right = np.concatenate([image.right[..., :limit] for image in judged], axis=-1)[..., order]
        ignored = np.concatenate([image.ignored[..., :limit] for image in judged], axis=-1)[..., order]
        for size in np.flatnonzero(counts):
            for threshold in range(len(_THRESHOLDS)):
                gains, counted = right[size, threshold], ~ignored[size, threshold]
                p, r = precision_and_recall(
                    (gains & counted).astype(np.float64), (~gains & counted).astype(np.float64), float(counts[size])
                )
                precision[size, threshold] = sampled(p, r, _RECALLS)
                recall[size, threshold] = r[-1] if len(r) else 0.0
        return precision, recall

    def _notes(self, metrics: dict[str, float]) -> list[str]:
        """Say why a metric is 0 or -1."""
        if not self._truths:
            return [f"AP is -1: none of the {self._images} images has an object"]
        if not self._found:
            return ["AP is 0: no detection scored above the threshold of post_processing; is the detector trained?"]
        if metrics[self._map] == 0:
            return [
                f"AP is 0: none of {self._found} detections (best score {self._best:.3g}) "
                "overlaps an object of its class"
            ]
        return []


def _outside(areas: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return where areas [N] are not in each range of size, [S, N]."""
    low, high = np.array(_RANGES).T
    return np.asarray((areas < low[:, None]) | (areas > high[:, None]))


def _mean(values: Iterable[NDArray[np.float64]]) -> float:
    """Average what is known (not -1); -1 where nothing is."""
    rows = [np.asarray(value, np.float64).ravel() for value in values]
    known = np.concatenate(rows) if rows else np.zeros(0)
    known = known[known > -1]
    return float(known.mean()) if known.size else -1.0
