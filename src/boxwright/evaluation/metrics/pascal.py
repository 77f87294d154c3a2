"""PASCAL VOC's and Open Images' detection metrics, with TensorFlow's names.

Dimensions: D detections of a class in an image, G objects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from boxwright.base.text import visible_line
from boxwright.evaluation.metrics.average_precision import all_points, eleven_points, precision_and_recall
from boxwright.evaluation.metrics.matching import NOBODY, claim_best
from boxwright.evaluation.metrics.metric import Curve, Matches, MetricResult, verified_or_present
from boxwright.evaluation.metrics.regions import BOXES, MASKS, Boxes, ImageMasks, RegionKind, Regions
from boxwright.types import Array, Categories, Detections, Sample

Area = Callable[[NDArray[np.float64], NDArray[np.float64]], float]


@dataclass(frozen=True)
class PascalRules:
    """The rules of a benchmark.

    Attributes:
        area: Computes average precision from precision and recall.
        threshold: The minimum overlap of a detection with its object.
        has_groups: Whether boxes that stand for groups match any number of detections.
        group_weight: The weight of a detected group, and of a group in the number of objects.
        verified_only: Whether only the verified classes of an image count in it.
        pooled: Whether the mean is over all detections rather than over classes.
        kind: Whether boxes or masks are compared. Objects with empty masks are compared by their boxes, and detections
            that match them do not count.
    """

    prefix: str
    suffix: str = ""
    area: Area = all_points
    threshold: float = 0.5
    excuses_difficult: bool = True
    has_groups: bool = False
    group_weight: float = 0.0
    verified_only: bool = False
    pooled: bool = False
    kind: RegionKind = BOXES


PASCAL_VOC = PascalRules("PascalBoxes")
PASCAL_VOC_2007 = PascalRules("PascalVoc2007Boxes", area=eleven_points)
WEIGHTED_PASCAL_VOC = PascalRules("WeightedPascalBoxes", pooled=True)
OPEN_IMAGES_V2 = PascalRules("OpenImagesV2", excuses_difficult=False, has_groups=True)
OPEN_IMAGES_CHALLENGE = PascalRules(
    "OpenImagesDetectionChallenge",
    excuses_difficult=False,
    has_groups=True,
    group_weight=1.0,
    verified_only=True,
)


PASCAL_VOC_MASKS = PascalRules("PascalMasks", kind=MASKS)
WEIGHTED_PASCAL_VOC_MASKS = PascalRules("WeightedPascalMasks", pooled=True, kind=MASKS)
OPEN_IMAGES_CHALLENGE_MASKS = PascalRules(
    "OpenImagesInstanceSegmentationChallenge",
    excuses_difficult=False,
    has_groups=True,
    verified_only=True,
    kind=MASKS,
)


def precision_at_recall(low: float, high: float) -> PascalRules:
    """Return rules that only use the part of the curve between two recalls."""
    suffix = f"@[{low:.1f},{high:.1f}]Recall" if low > 0 or high < 1 else ""
    return PascalRules("PrecisionAtRecallBoxes", suffix, partial(all_points, low=low, high=high))


@dataclass(frozen=True)
class _Overlaps:
    """Overlaps of detections with objects, float64 [D, G]: over the union, and over the detection's own area."""

    union: NDArray[np.float64]
    own: NDArray[np.float64]

    @classmethod
    def of(cls, detected: Regions, objects: Regions) -> _Overlaps:
        return cls(detected.overlaps(objects), detected.overlaps_of_crowds(objects))

    def without(self, objects: NDArray[np.bool_]) -> _Overlaps:
        """Set the overlaps of some objects to 0."""
        return _Overlaps(np.where(objects, 0.0, self.union), np.where(objects, 0.0, self.own))

    def rows(self, detections: NDArray[np.bool_]) -> _Overlaps:
        return _Overlaps(self.union[detections], self.own[detections])


class PascalMetrics:
    """Accumulates ground truth and detections by image, then computes each class's average precision."""

    def __init__(self, categories: Categories, rules: PascalRules = PASCAL_VOC) -> None:
        """Start without images."""
        self.categories, self.rules = categories, rules
        # Label → scores, gains and matches of its detections, by image; and its number of objects.
        self._scores: dict[int, list[NDArray[np.float64]]] = defaultdict(list)
        self._gains: dict[int, list[NDArray[np.float64]]] = defaultdict(list)
        self._matches: dict[int, list[Matches]] = defaultdict(list)
        self._objects: dict[int, float] = defaultdict(float)
        self._images = 0

    def add(self, sample: Sample, detections: Detections[Array], masks: ImageMasks | None = None) -> None:
        """Add one image."""
        truth, detected = self.rules.kind.of(sample, detections, masks)
        boxes = detections.boxes.astype(np.float64)
        scores, labels = detections.scores.astype(np.float64), detections.labels
        # TF's evaluators drop empty and inverted boxes before they count.
        usable = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        present = set(sample.labels.tolist())
        if self.rules.verified_only:
            usable &= np.isin(labels, verified_or_present(sample))
        known = {category.label for category in self.categories}
        for label in sorted(known & (present | set(labels[usable].tolist()))):
            mine = np.flatnonzero(usable & (labels == label))
            ranked = mine[np.argsort(-scores[mine], kind="stable")]
            chosen = np.flatnonzero(sample.labels == label)
            seen = truth[chosen].areas > 0
            if self.rules.kind == BOXES or seen.all():
                self._judge(
                    label, ranked, scores[ranked], sample, chosen, _Overlaps.of(detected[ranked], truth[chosen])
                )
            else:
                by_box = Boxes(boxes[ranked]), Boxes(sample.boxes[chosen].astype(np.float64))
                apart = _Overlaps.of(detected[ranked], truth[chosen]).without(~seen)
                aside = self._matched_by_box(*by_box, ~seen, apart, sample, chosen)
                kept = ~aside
                self._judge(label, ranked[kept], scores[ranked[kept]], sample, chosen, apart.rows(kept))
        self._images += 1

    def _judge(
        self,
        label: int,
        detections: NDArray[np.int64],
        scores: NDArray[np.float64],
        sample: Sample,
        chosen: NDArray[np.int64],
        overlap: _Overlaps,
    ) -> None:
        difficult = sample.difficult[chosen] & self.rules.excuses_difficult
        group = sample.group_of[chosen] & self.rules.has_groups
        weight = self.rules.group_weight
        self._objects[label] += float((~difficult & ~group).sum()) + weight * float((~difficult & group).sum())
        right, dropped, groups, claims = self._claims(overlap, difficult, group)
        single = np.flatnonzero(~group)
        kept = np.flatnonzero(~dropped)
        objects = np.where(right, np.append(chosen[single], NOBODY)[claims], NOBODY)
        self._record(label, scores[kept], right[kept].astype(np.float64), detections[kept], objects[kept])
        if weight > 0:
            found_groups = np.array(sorted(set(groups[groups != NOBODY].tolist())), np.int64)
            # Detections are sorted best first, so the first of a group is its best.
            best = np.array([int(np.argmax(groups == number)) for number in found_groups], np.int64)
            # A group is found once, by its best detection; its other ones are no mistakes.
            gains = np.full(len(best), weight)
            self._record(label, scores[best], gains, detections[best], chosen[np.flatnonzero(group)[found_groups]])

    def _claims(
        self, overlap: _Overlaps, difficult: NDArray[np.bool_], group: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
        """Return which detections are right, which are ignored, and each one's matched group and single object."""
        single = np.flatnonzero(~group)
        claims = claim_best(overlap.union[:, single], self.rules.threshold)
        right, dropped = _first_claims(claims, difficult[single])
        # Groups are asked last: a detection that matches a single object never counts for a group.
        open_ones = np.flatnonzero(~right & ~dropped)
        groups = np.full(len(claims), NOBODY, np.int64)
        groups[open_ones] = claim_best(overlap.own[open_ones][:, group], self.rules.threshold)
        dropped[groups != NOBODY] = True
        return right, dropped, groups, claims

    def _matched_by_box(
        self,
        detected: Boxes,
        objects: Boxes,
        maskless: NDArray[np.bool_],
        by_mask: _Overlaps,
        sample: Sample,
        chosen: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Return which detections match no object by mask, but one without a mask by box; bool [D]."""
        difficult = sample.difficult[chosen] & self.rules.excuses_difficult
        group = sample.group_of[chosen] & self.rules.has_groups
        right, dropped, _, _ = self._claims(by_mask, difficult, group)
        by_box = _Overlaps.of(detected, objects).without(~maskless).rows(~right & ~dropped)
        rest_right, rest_dropped, _, _ = self._claims(by_box, difficult, group)
        aside = np.zeros(len(right), np.bool_)
        aside[np.flatnonzero(~right & ~dropped)] = rest_right | rest_dropped
        return aside

    def _record(
        self,
        label: int,
        scores: NDArray[np.float64],
        gains: NDArray[np.float64],
        detections: NDArray[np.int64],
        objects: NDArray[np.int64],
    ) -> None:
        self._scores[label].append(scores)
        self._gains[label].append(gains)
        self._matches[label].append(Matches(np.full(len(detections), self._images), detections, objects))

    def compute(self) -> MetricResult:
        """Return the metrics; NaN for a class without objects, and for the mean if no class has any."""
        rules = self.rules
        curves = {c.label: self._curve([c.label], c.name) for c in self.categories if self._objects[c.label] > 0}
        by_class = {
            category.label: rules.area(curves[category.label].precision, curves[category.label].recall)
            if category.label in curves
            else float("nan")
            for category in self.categories
        }
        if rules.pooled and curves:
            pooled = self._curve(list(curves), "")
            mean = rules.area(pooled.precision, pooled.recall)
        else:
            known = [value for value in by_class.values() if not np.isnan(value)]
            mean = float(np.mean(known)) if known else float("nan")
        at = f"@{rules.threshold}IOU"
        values = {f"{rules.prefix}_Precision/mAP{at}{rules.suffix}": mean}
        for category in self.categories:
            values[f"{rules.prefix}_PerformanceByCategory/AP{at}/{category.name}"] = by_class[category.label]
        return MetricResult(values, list(curves.values()), self._notes(values))

    def _curve(self, labels: list[int], name: str) -> Curve:
        count = sum(self._objects[label] for label in labels)
        scores = np.concatenate([np.zeros(0), *(image for label in labels for image in self._scores[label])])
        gains = np.concatenate([np.zeros(0), *(image for label in labels for image in self._gains[label])])
        order = np.argsort(-scores, kind="stable")
        # Gains are weights of groups, too: whatever gains nothing is a false positive.
        precision, recall = precision_and_recall(gains[order], (gains[order] <= 0).astype(np.float64), count)
        matches = Matches.join([image for label in labels for image in self._matches[label]]).select(order)
        return Curve(name, self.rules.threshold, scores[order], gains[order], count, precision, recall, matches)

    def _notes(self, values: dict[str, float]) -> list[str]:
        """Return explanations of metrics that are 0 or NaN."""
        name, mean = next(iter(values.items()))
        if np.isnan(mean):
            return [f"{name} is NaN: no image has an object that counts"]
        without = [category.name for category in self.categories if self._objects[category.label] == 0]
        lines = (
            [f"{self.rules.prefix}: NaN for classes without objects: {visible_line(', '.join(without))}"]
            if without
            else []
        )
        return [*lines, f"{name} is 0: no detection overlaps an object of its class"] if mean == 0 else lines


def _first_claims(
    claims: NDArray[np.int64], difficult: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which detections match an object first, and which match a difficult one and are ignored; bool [D] each.

    Args:
        claims: int64 [D]; each one's matched object, best detection first.
        difficult: bool [G].
    """
    excused = (claims != NOBODY) & np.append(difficult, False)[claims]
    first = np.zeros(len(claims), np.bool_)
    objects, firsts = np.unique(claims, return_index=True)
    first[firsts[objects != NOBODY]] = True
    return first & ~excused, excused
