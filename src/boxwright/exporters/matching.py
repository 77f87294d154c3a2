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
from boxwright.types import Array, Detections

TIE = 1e-5
ABSOLUTE, RELATIVE = 1e-4, 1e-3  # as for TensorFlow's recordings: |a - b| <= absolute + relative |b|
_SAME_BOX = 0.99
_NEAR_THRESHOLD = 1e-4
_OF_KEYPOINTS = ("keypoints", "keypoint_scores", "keypoint_depths")
PARTS = (
    "scores",
    "masks",
    "mask_boxes",
    "surface_coordinates",
    "temporal_offsets",
    "cell_boxes",
    "embeddings",
    *_OF_KEYPOINTS,
)
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

    items: Detections[Array]
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

    def __call__(self, exported: Detections[Array], expected: Detections[Array]) -> Difference:
        """Return the differences."""
        result, left, lost = Difference(), list(range(len(exported))), []
        for number in range(len(expected)):
            match = next((other for other in left if _same(exported, other, expected, number)), None)
            if match is None:
                lost.append(number)
                continue
            left.remove(match)
            if not _is_among(self.wanted_unsteady, expected, number):
                for part in PARTS:
                    share = self._compare_part(part, exported, match, expected, number)
                    result.largest[part] = max(result.largest[part], share)
        for number in lost[:]:
            other = next(
                (candidate for candidate in left if self._stands_for(exported, candidate, expected, number)), None
            )
            if other is not None:
                left.remove(other)
                lost.remove(number)
                result.ties.append(f"{_name(expected, number)} and {_name(exported, other)} score the same")
        self._explain(_Side(exported, left, self.unsteady), _Side(expected, lost, self.wanted_unsteady), result)
        return result

    def _compare_part(
        self, part: str, exported: Detections[Array], row: int, expected: Detections[Array], expected_row: int
    ) -> float:
        """Return the largest difference of a part of two matched detections, as a share of the tolerance."""
        values, expected_values = getattr(exported, part), getattr(expected, part)
        if values is None or expected_values is None:
            return 0.0 if values is expected_values else float("inf")
        values, expected_values = values[row], expected_values[expected_row]
        if part == "keypoints":  # in 0..1 of the picture, as boxes are compared
            values, expected_values = (
                points / np.array(expected.image_size[::-1]) for points in (values, expected_values)
            )
        anchors = expected.anchor_indices
        moved = None if anchors is None else self.unsteady_keypoints.get(int(anchors[expected_row]))
        if part in _OF_KEYPOINTS and moved is not None:
            values, expected_values = values[~moved], expected_values[~moved]
        return float(shares(values, expected_values).max(initial=0.0))

    def _explain(self, exported: _Side, expected: _Side, result: Difference) -> None:
        """Sort unmatched detections into ties and differences, best first, as a tie explains later ones."""
        alone = [(exported, expected, number, result.extra) for number in exported.alone]
        alone += [(expected, exported, number, result.missing) for number in expected.alone]
        excused: list[tuple[_Side, int]] = []
        for own, other, number, into in sorted(alone, key=lambda entry: -float(entry[0].items.scores[entry[2]])):
            reason = self._tie(own, number, expected) or self._follows(own, number, other, excused)
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
            box, rival_box = (torch.from_numpy(rows) for rows in (items.boxes[[number]], side.items.boxes[[rival]]))
            if float(pairwise_iou(box, rival_box)) > self.iou_threshold - _NEAR_THRESHOLD:
                return "overlaps a tie"
        # In a full image, a detection that only one list has displaces the other list's last one.
        left = any(side is other for side, _ in excused)
        if left and float(items.scores[number]) <= float(other.items.scores.min()) + TIE:
            return "takes the slot of a tie"
        return ""

    def _stands_for(
        self, exported: Detections[Array], row: int, expected: Detections[Array], expected_row: int
    ) -> bool:
        """Return whether either of two equal scores may be kept: one suppresses the other, or one slot was left."""
        anchors, others = exported.anchor_indices, expected.anchor_indices
        same_anchor = anchors is not None and others is not None and anchors[row] == others[expected_row]
        if same_anchor or abs(exported.scores[row] - expected.scores[expected_row]) > TIE:
            return False
        if expected.scores[expected_row] <= expected.scores.min() + TIE:
            return True
        overlap = pairwise_iou(
            torch.from_numpy(exported.boxes[[row]]), torch.from_numpy(expected.boxes[[expected_row]])
        )
        return float(overlap) > self.iou_threshold

    def _tie(self, own: _Side, number: int, wanted: _Side) -> str:
        """Return why a detection was kept only narrowly; empty if it was not."""
        items, score = own.items, float(own.items.scores[number])
        if abs(score - self.least_score) <= TIE:
            return "is at the score threshold"
        if _is_among(own.unsteady, items, number):
            return "is of a region that depends on rounding: at the picture's border, or at a threshold"
        rivals = np.flatnonzero(wanted.items.labels == items.labels[number])
        box, rival_boxes = torch.from_numpy(items.boxes[[number]]), torch.from_numpy(wanted.items.boxes[rivals])
        for rival, overlap in zip(rivals.tolist(), pairwise_iou(box, rival_boxes)[0].tolist(), strict=True):
            if wanted.items.scores[rival] >= score - TIE and abs(overlap - self.iou_threshold) <= _NEAR_THRESHOLD:
                return "is at the overlap threshold"
            if overlap > self.iou_threshold and _is_among(wanted.unsteady, wanted.items, rival):
                return "overlaps one of a region that depends on rounding"
        return ""


def _is_among(anchors: frozenset[int], detections: Detections[Array], number: int) -> bool:
    return detections.anchor_indices is not None and int(detections.anchor_indices[number]) in anchors


def shares(actual: object, expected: object) -> NDArray[np.float64]:
    """Return each difference as a share of the tolerance: |a - b| / (absolute + relative |b|)."""
    values, expected_values = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return np.asarray(np.abs(values - expected_values) / (ABSOLUTE + RELATIVE * np.abs(expected_values)))


def _same(exported: Detections[Array], row: int, expected: Detections[Array], expected_row: int) -> bool:
    if exported.labels[row] != expected.labels[expected_row]:
        return False
    anchors, others = exported.anchor_indices, expected.anchor_indices
    if anchors is not None and others is not None and anchors[row] == others[expected_row]:
        box, expected_box = exported.boxes[row], expected.boxes[expected_row]
        return bool(np.abs(box - expected_box).max() <= 1 + RELATIVE * np.abs(expected_box).max())
    overlap = pairwise_iou(torch.from_numpy(exported.boxes[[row]]), torch.from_numpy(expected.boxes[[expected_row]]))
    return float(overlap) >= _SAME_BOX


def _name(detections: Detections[Array], number: int) -> str:
    box = ", ".join(f"{value:.1f}" for value in detections.boxes[number])
    return f"class {int(detections.labels[number]) + 1} at ({box}), score {detections.scores[number]:.6f}"
