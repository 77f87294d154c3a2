"""COCO's detection metrics, with TensorFlow's names.

Dimensions: T overlap thresholds, S ranges of size, R = S × T, D detections of a class in an image.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from boxwright.metrics.average_precision import precision_and_recall, sampled
from boxwright.metrics.matching import NOBODY, claim_best_free
from boxwright.metrics.metric import Curve, Matches, MetricResult, verified_or_present
from boxwright.metrics.regions import BOXES, ImageMasks, Kind, Regions
from boxwright.types import Categories, FoundObjects, Sample

_THRESHOLDS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0.0, 1.0, 101)
# Areas in pixels: all, small, medium, large.
# Limits are COCO's, 1e10 for infinity; an area of exactly a limit belongs to both ranges.
_RANGES = ((0.0, 1e10), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e10))
_SIZES = ("", " (small)", " (medium)", " (large)")
_LIMITS = (1, 10, 100)

# Precision [S, T, 101] and the final recall [S, T] of a class.
_Sampled = tuple[NDArray[np.float64], NDArray[np.float64]]
# Returns the classes of an image that were annotated; None for all.
Labeled = Callable[[Sample], Sequence[int] | None]


@dataclass(frozen=True)
class _Judged:
    """Matched detections under every rule, of one image (by class, best first) or of many.

    Attributes:
        labels: int64 [D].
        ranks: int64 [D]; the number of better detections of its class in its image.
        scores: float64 [D].
        right: bool [S, T, D]; whether each is matched with an object that counts.
        ignored: bool [S, T, D]; whether each is ignored.
        images: int64 [D]; the index of the image, in the order of `add`.
        detections: int64 [D]; the index among the image's detections.
        objects: int32 [T, D]; the index of the matched object for the range of all sizes; -1 for none.
    """

    labels: NDArray[np.int64]
    ranks: NDArray[np.int64]
    scores: NDArray[np.float64]
    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    images: NDArray[np.int64]
    detections: NDArray[np.int64]
    objects: NDArray[np.int32]

    def select(self, chosen: NDArray[np.int64]) -> _Judged:
        """Return some of them, in the order of the indices `chosen`."""
        return _Judged(**{f.name: getattr(self, f.name)[..., chosen] for f in fields(self)})

    @staticmethod
    def join(parts: Sequence[_Judged]) -> _Judged:
        """Return the concatenation of several images' detections."""
        names = [f.name for f in fields(_Judged)]
        return _Judged(**{name: np.concatenate([getattr(one, name) for one in parts], axis=-1) for name in names})


@dataclass(frozen=True)
class ByCategory:
    """What is computed of each class, beside the twelve metrics of all.

    Attributes:
        every: All twelve metrics of each class, as `DetectionBoxes_Precision mAP ByCategory/NAME`, not only its mAP.
        groups: Names of groups of classes, each with the names of its classes, for the mean of their mAP as
            `DetectionBoxes_PerformanceBySuperCategory/NAME`.
    """

    every: bool = False
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)


class CocoMetrics:
    """Accumulates ground truth and detections by image, then computes COCO's twelve metrics, optionally per class."""

    def __init__(
        self,
        categories: Categories,
        *,
        by_category: ByCategory | None = None,
        labeled: Labeled | None = None,
        kind: Kind = BOXES,
    ) -> None:
        """Start without images.

        Args:
            by_category: What to add of each class, at least `DetectionBoxes_PerformanceByCategory/mAP/NAME`; None for
                nothing.
            labeled: Returns the classes of an image whose detections count; None for all.
        """
        self.categories, self.by_category, self.labeled, self.kind = categories, by_category, labeled, kind
        self._prefix = f"Detection{kind.name}"
        self._map = f"{self._prefix}_Precision/mAP"
        self._known = np.array(sorted(category.label for category in categories), np.int64)
        self._judged: list[_Judged] = []
        self._objects: dict[int, NDArray[np.int64]] = defaultdict(lambda: np.zeros(len(_RANGES), np.int64))
        self._images = self._truths = self._found = 0
        self._best = 0.0

    def add(self, sample: Sample, detections: FoundObjects, masks: ImageMasks | None = None) -> None:
        """Add one image."""
        truth, found = self.kind.of(sample, detections, masks)
        labels, scores = detections.labels, detections.scores.astype(np.float64)
        self._images += 1
        self._truths += len(sample.labels)
        self._found += len(labels)
        self._best = max(self._best, float(scores.max(initial=0.0)))
        # By class, best first; ties keep their order.
        order = np.lexsort((-scores, labels))
        ranks = np.arange(len(order)) - np.searchsorted(labels[order], labels[order])
        # As pycocotools, which drops worse detections before it matches any.
        counted = (ranks < _LIMITS[-1]) & np.isin(labels[order], self._known)
        if self.labeled is not None and (classes := self.labeled(sample)) is not None:
            counted &= np.isin(labels[order], classes)
        order, ranks = order[counted], ranks[counted]
        judged = self._unmatched(labels[order], ranks, scores[order], order, found[order].areas)
        for label in np.intersect1d(sample.labels, self._known).tolist():
            self._judge(label, judged, found, truth, sample)
        self._judged.append(judged)

    def _unmatched(
        self,
        labels: NDArray[np.int64],
        ranks: NDArray[np.int64],
        scores: NDArray[np.float64],
        detections: NDArray[np.int64],
        areas: NDArray[np.float64],
    ) -> _Judged:
        """Return an image's detections without matches: those outside a range of size are ignored."""
        shape = (len(_RANGES), len(_THRESHOLDS), len(labels))
        return _Judged(
            labels,
            ranks,
            scores,
            right=np.zeros(shape, np.bool_),
            ignored=np.repeat(_outside(areas)[:, None], len(_THRESHOLDS), axis=1),
            images=np.full(len(labels), self._images - 1),
            detections=detections,
            objects=np.full(shape[1:], NOBODY, np.int32),
        )

    def _judge(self, label: int, judged: _Judged, found: Regions, objects: Regions, sample: Sample) -> None:
        """Match the detections of a class with its objects; update `judged`."""
        chosen = np.flatnonzero(sample.labels == label)
        truth, crowd = objects[chosen], sample.is_crowd[chosen]
        ignored = crowd | _outside(sample.areas[chosen].astype(np.float64))
        self._objects[label] += (~ignored).sum(1)
        own = slice(*np.searchsorted(judged.labels, [label, label + 1]).tolist())
        regions = found[judged.detections[own]]
        overlap = regions.overlaps(truth)
        if crowd.any():
            overlap = np.where(crowd, regions.overlaps_of_crowds(truth), overlap)
        rules = np.repeat(ignored, len(_THRESHOLDS), axis=0)
        claims = claim_best_free(overlap, np.tile(_THRESHOLDS, len(_RANGES)), rules, crowd)
        claims = claims.reshape(judged.right[..., own].shape)
        taken = claims != NOBODY
        of_ignored = np.zeros_like(taken)
        for size, row in enumerate(ignored):
            # A detection without an object has the index -1, which is that of the False that is appended.
            of_ignored[size] = taken[size] & np.append(row, False)[claims[size]]
        judged.right[..., own] = taken & ~of_ignored
        judged.ignored[..., own] = np.where(taken, of_ignored, judged.ignored[..., own])
        judged.objects[:, own] = np.append(chosen, NOBODY)[claims[0]]

    def compute(self) -> MetricResult:
        """Return the metrics; -1 for a metric without ground truth."""
        judged = self._by_class()
        curves = {label: self._sampled(label, own) for label, own in judged.items()}
        values = {f"{self._prefix}_{name}": value for name, value in self._summary(judged, curves).items()}
        if self.by_category is not None:
            values |= self._of_each(judged, curves, self.by_category)
        names = {category.label: category.name for category in self.categories}
        drawn = [curve for label, own in judged.items() for curve in self._drawn(label, names[label], own)]
        return MetricResult(values, drawn, self._notes(values))

    def _summary(self, judged: Mapping[int, _Judged], curves: Mapping[int, _Sampled]) -> dict[str, float]:
        """Return the twelve metrics of some classes."""
        precision, recall = ([curve[part] for curve in curves.values()] for part in (0, 1))
        values = {
            "Precision/mAP": _mean(p[0] for p in precision),
            "Precision/mAP@.50IOU": _mean(p[0, 0] for p in precision),
            # The sixth of the thresholds 0.5, 0.55, … 0.95.
            "Precision/mAP@.75IOU": _mean(p[0, 5] for p in precision),
        }
        values |= {f"Precision/mAP{_SIZES[size]}": _mean(p[size] for p in precision) for size in (1, 2, 3)}
        for limit in _LIMITS:
            recalls = (self._recall(label, own, limit)[0] for label, own in judged.items())
            values[f"Recall/AR@{limit}"] = _mean(recalls)
        return values | {f"Recall/AR@100{_SIZES[size]}": _mean(r[size] for r in recall) for size in (1, 2, 3)}

    def _of_each(
        self, judged: Mapping[int, _Judged], curves: Mapping[int, _Sampled], wanted: ByCategory
    ) -> dict[str, float]:
        """Return the metrics of each class and group, with TF's names."""
        values: dict[str, float] = {}
        maps: dict[str, float] = {}
        for category in self.categories:
            own = {label: curve for label, curve in curves.items() if label == category.label}
            summary = self._summary({label: judged[label] for label in own}, own)
            maps[category.name] = summary["Precision/mAP"]
            values[f"{self._prefix}_PerformanceByCategory/mAP/{category.name}"] = maps[category.name]
            if wanted.every:
                # TF's names of these, with a space where those of all classes have a slash.
                named = ((name.replace("/", " "), value) for name, value in summary.items())
                values |= {f"{self._prefix}_{name} ByCategory/{category.name}": value for name, value in named}
        for group, names in wanted.groups.items():
            mean = _mean(np.array(maps[name]) for name in names if name in maps)
            values[f"{self._prefix}_PerformanceBySuperCategory/{group}"] = mean
        return values

    def _by_class(self) -> dict[int, _Judged]:
        """Return the detections of each class that has objects, by image."""
        if not self._judged:
            return {}
        every = _Judged.join(self._judged)
        return {label: every.select(np.flatnonzero(every.labels == label)) for label in sorted(self._objects)}

    def _drawn(self, label: int, name: str, judged: _Judged) -> list[Curve]:
        """Return the curves of a class at every overlap, for objects of all sizes; none if it has no objects."""
        objects = float(self._objects[label][0])
        if not objects:
            return []
        order = np.argsort(-judged.scores, kind="stable")
        found = []
        for number, threshold in enumerate(_THRESHOLDS):
            best = judged.select(order[~judged.ignored[0, number, order]])
            gains = best.right[0, number].astype(np.float64)
            precision, recall = precision_and_recall(gains, 1 - gains, objects)
            matches = Matches(best.images, best.detections, best.objects[number].astype(np.int64))
            found.append(Curve(name, float(threshold), best.scores, gains, objects, precision, recall, matches))
        return found

    def _sampled(self, label: int, judged: _Judged) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return precision [S, T, 101] and the final recall [S, T] of a class; -1 if it has no objects."""
        precision = np.full((len(_RANGES), len(_THRESHOLDS), len(_RECALLS)), -1.0)
        best = judged.select(np.argsort(-judged.scores, kind="stable"))
        for size in np.flatnonzero(self._objects[label]):
            counted = ~best.ignored[size]
            gains, losses = (best.right[size] & counted), (~best.right[size] & counted)
            curves = precision_and_recall(
                gains.astype(np.float64), losses.astype(np.float64), float(self._objects[label][size])
            )
            precision[size] = [sampled(p, r, _RECALLS) for p, r in zip(*curves, strict=True)]
        return precision, self._recall(label, judged, _LIMITS[-1])

    def _recall(self, label: int, judged: _Judged, limit: int) -> NDArray[np.float64]:
        """Return the recall [S, T] of the best `limit` detections of each image; -1 if the class has no objects."""
        counts = self._objects[label][:, None]
        found = (judged.right & ~judged.ignored & (judged.ranks < limit)).sum(-1)
        return np.where(counts > 0, found / np.maximum(counts, 1), -1.0)

    def _notes(self, metrics: dict[str, float]) -> list[str]:
        """Return explanations of metrics that are 0 or -1."""
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


def verified_or_all(sample: Sample) -> list[int] | None:
    """Return the same; None, for all classes, if none was verified."""
    return verified_or_present(sample) if len(sample.verified_labels) else None


def _outside(areas: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether areas [N] are outside each range of size, [S, N]."""
    low, high = np.array(_RANGES).T
    return np.asarray((areas < low[:, None]) | (areas > high[:, None]))


def _mean(values: Iterable[NDArray[np.float64]]) -> float:
    """Return the mean of the values other than -1; -1 if there are none."""
    rows = [np.asarray(value, np.float64).ravel() for value in values]
    known = np.concatenate(rows) if rows else np.zeros(0)
    known = known[known > -1]
    return float(known.mean()) if known.size else -1.0
