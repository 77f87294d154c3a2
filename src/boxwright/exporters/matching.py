"""Matching two lists of detections of one picture: what only one list has, and which differences are ties.

Dimensions: D detections, P keypoints, h w mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.nn.ops.boxes import pairwise_iou
from boxwright.types import FoundObjects

TIE = 1e-5
ABSOLUTE, RELATIVE = 1e-4, 1e-3  # as for TensorFlow's recordings: |a - b| <= absolute + relative |b|
_SAME_BOX = 0.99
_NEAR_THRESHOLD = 1e-4
_OF_KEYPOINTS = ("keypoints", "keypoint_scores", "keypoint_depths")
PARTS = ("scores", "masks", "surface_coordinates", "temporal_offsets", "cell_boxes", "embeddings", *_OF_KEYPOINTS)
"""What is compared of matched detections."""


@dataclass
class Difference:
    """The differences between two lists of detections.

    Attributes:
        missing: Descriptions of what only the second list has.
        ties: Differences explained by equal scores, or a value at a threshold.
        largest: The largest difference of each of `PARTS` in matched detections, as a share of the tolerance; infinite
            if one list lacks it.
    """

    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    ties: list[str] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))


@dataclass(frozen=True)
class _Side:
    """One of the two lists: its detections, which of them are unmatched, and which anchors depend on rounding."""

    items: FoundObjects
    alone: list[int]
    unsteady: frozenset[int]


@dataclass(frozen=True)
class Matcher:
    """Matches detections by class and anchor, else by class and position.

    Attributes:
        unsteady: The first list's anchors (for regions: proposals) that depend on rounding; their differences are ties.
        wanted_unsteady: The same of the second list.
        unsteady_keypoints: By anchor, the keypoints of the second list that depend on rounding, bool [P]; they are not
            compared.
    """

    least_score: float
    iou_threshold: float
    unsteady: frozenset[int] = frozenset()
    wanted_unsteady: frozenset[int] = frozenset()
    unsteady_keypoints: Mapping[int, NDArray[np.bool_]] = field(default_factory=dict)

    def __call__(self, found: FoundObjects, wanted: FoundObjects) -> Difference:
        """Return the differences."""
        result, left, lost = Difference(), list(range(len(found))), []
        for number in range(len(wanted)):
            match = next((other for other in left if _same(found, other, wanted, number)), None)
            if match is None:
                lost.append(number)
                continue
            left.remove(match)
            if not _is_of(self.wanted_unsteady, wanted, number):
                for part in PARTS:
                    share = self._share_of(part, found, match, wanted, number)
                    result.largest[part] = max(result.largest[part], share)
        for number in lost[:]:
            other = next((one for one in left if self._stands_for(found, one, wanted, number)), None)
            if other is not None:
                left.remove(other)
                lost.remove(number)
                result.ties.append(f"{_name(wanted, number)} and {_name(found, other)} score the same")
        self._explain(_Side(found, left, self.unsteady), _Side(wanted, lost, self.wanted_unsteady), result)
        return result

    def _share_of(self, part: str, found: FoundObjects, one: int, wanted: FoundObjects, other: int) -> float:
        """Return the largest difference of a part of two matched detections, as a share of the tolerance."""
        values, expected = getattr(found, part), getattr(wanted, part)
        if values is None or expected is None:
            return 0.0 if values is expected else float("inf")
        values, expected = values[one], expected[other]
        if part == "keypoints":  # in 0..1 of the picture, as boxes are compared
            values, expected = (points / np.array(wanted.image_size[::-1]) for points in (values, expected))
        anchors = wanted.anchor_indices
        moved = None if anchors is None else self.unsteady_keypoints.get(int(anchors[other]))
        if part in _OF_KEYPOINTS and moved is not None:
            values, expected = values[~moved], expected[~moved]
        return _share(values, expected)

    def _explain(self, found: _Side, wanted: _Side, result: Difference) -> None:
        """Sort unmatched detections into ties and differences, best first, as a tie explains later ones."""
        alone = [(found, wanted, number, result.extra) for number in found.alone]
        alone += [(wanted, found, number, result.missing) for number in wanted.alone]
        excused: list[tuple[_Side, int]] = []
        for own, other, number, into in sorted(alone, key=lambda one: -float(one[0].items.scores[one[2]])):
            reason = self._tie(own, number, wanted) or self._follows(own, number, other, excused)
            name = _name(own.items, number)
            if reason:
                excused.append((own, number))
                result.ties.append(f"{name} {reason}")
            else:
                into.append(name)

    def _follows(self, own: _Side, number: int, other: _Side, excused: list[tuple[_Side, int]]) -> str:
        """Return how a detection's difference follows from higher-scoring ties; empty if it does not."""
        items = own.items
        for side, rival in excused:
            if side.items.labels[rival] != items.labels[number]:
                continue
            one, two = (torch.from_numpy(rows) for rows in (items.boxes[[number]], side.items.boxes[[rival]]))
            if float(pairwise_iou(one, two)) > self.iou_threshold - _NEAR_THRESHOLD:
                return "overlaps a tie"
        # In a full image, a detection that only one list has displaces the other list's last one.
        left = any(side is other for side, _ in excused)
        if left and float(items.scores[number]) <= float(other.items.scores.min()) + TIE:
            return "takes the slot of a tie"
        return ""

    def _stands_for(self, found: FoundObjects, one: int, wanted: FoundObjects, other: int) -> bool:
        """Return whether either of two equal scores may be kept: one suppresses the other, or one slot was left."""
        anchors, others = found.anchor_indices, wanted.anchor_indices
        same_anchor = anchors is not None and others is not None and anchors[one] == others[other]
        if same_anchor or abs(found.scores[one] - wanted.scores[other]) > TIE:
            return False
        if wanted.scores[other] <= wanted.scores.min() + TIE:
            return True
        overlap = pairwise_iou(torch.from_numpy(found.boxes[[one]]), torch.from_numpy(wanted.boxes[[other]]))
        return float(overlap) > self.iou_threshold

    def _tie(self, own: _Side, number: int, wanted: _Side) -> str:
        """Return why a detection was kept only narrowly; empty if it was not."""
        items, score = own.items, float(own.items.scores[number])
        if abs(score - self.least_score) <= TIE:
            return "is at the score threshold"
        if _is_of(own.unsteady, items, number):
            return "is of a region that depends on rounding: at the picture's border, or at a threshold"
        rivals = np.flatnonzero(wanted.items.labels == items.labels[number])
        one, others = torch.from_numpy(items.boxes[[number]]), torch.from_numpy(wanted.items.boxes[rivals])
        for rival, overlap in zip(rivals.tolist(), pairwise_iou(one, others)[0].tolist(), strict=True):
            if wanted.items.scores[rival] >= score - TIE and abs(overlap - self.iou_threshold) <= _NEAR_THRESHOLD:
                return "is at the overlap threshold"
            if overlap > self.iou_threshold and _is_of(wanted.unsteady, wanted.items, rival):
                return "overlaps one of a region that depends on rounding"
        return ""


def _is_of(anchors: frozenset[int], found: FoundObjects, number: int) -> bool:
    return found.anchor_indices is not None and int(found.anchor_indices[number]) in anchors


def shares(found: object, wanted: object) -> NDArray[np.float64]:
    """Return each difference as a share of the tolerance: |a - b| / (absolute + relative |b|)."""
    one, other = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    return np.asarray(np.abs(one - other) / (ABSOLUTE + RELATIVE * np.abs(other)))


def _share(found: object, wanted: object) -> float:
    """Return the largest difference, as a share of the tolerance."""
    return float(shares(found, wanted).max(initial=0.0))


def _same(found: FoundObjects, one: int, wanted: FoundObjects, other: int) -> bool:
    if found.labels[one] != wanted.labels[other]:
        return False
    anchors, others = found.anchor_indices, wanted.anchor_indices
    if anchors is not None and others is not None and anchors[one] == others[other]:
        near = np.abs(found.boxes[one] - wanted.boxes[other]).max() <= 1 + RELATIVE * np.abs(wanted.boxes[other]).max()
        return bool(near)
    overlap = pairwise_iou(torch.from_numpy(found.boxes[[one]]), torch.from_numpy(wanted.boxes[[other]]))
    return float(overlap) >= _SAME_BOX


def _name(found: FoundObjects, number: int) -> str:
    box = ", ".join(f"{value:.1f}" for value in found.boxes[number])
    return f"class {int(found.labels[number]) + 1} at ({box}), score {found.scores[number]:.6f}"
