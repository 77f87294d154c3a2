"""The gate: does an export do what its detector does? Compared stage by stage, on real pictures and trained weights.

Each stage is given the same as the detector's, so that a difference names the part that it comes from.

Dimensions: B batch, H W image, D detections.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.export.describe import suppression_of
from boxwright.export.graph import named_outputs
from boxwright.models.detector import Detector
from boxwright.ops.boxes import pairwise_iou
from boxwright.runtime.exported import found_objects
from boxwright.runtime.sessions import Session
from boxwright.types import FoundObjects, RawDetections

__all__ = ["TIE", "Report", "Stage", "compare"]

Pictures = Sequence[NDArray[np.uint8]]
TIE = 1e-5
_PREPROCESSING = 1e-5  # of the range of the network's input
_RAW_ABSOLUTE, _RAW_RELATIVE = 1e-4, 1e-3  # as recordings of TensorFlow are held to
_SHAPE = 1e-5
_LEAST_SCORE = 0.05
_SAME_BOX = 0.99
_NEAR_THRESHOLD = 1e-4
_ANCHOR_BOXES = 3  # dimensions; those of regions have one more, for classes


@dataclass(frozen=True)
class Stage:
    """What one stage of the comparison found.

    Attributes:
        name: Such as "raw outputs".
        compared: What was compared with what.
        largest: The largest difference; of detections, how many are missing or extra.
        allowed: The most that passes.
        where: The worst place: picture, output.
        ties: Differences that equal scores or overlaps explain; listed, not counted.
        problems: What does not pass.
    """

    name: str
    compared: str
    largest: float
    allowed: float
    where: str = ""
    ties: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing differs by more than is allowed."""
        return not self.problems and self.largest <= self.allowed


@dataclass
class Report:
    """A comparison of an export with its detector.

    Attributes:
        stages: What each found.
        images: How many pictures, their sizes and where they are from.
        weights_sha256: Of the detector that was compared with.
        versions: Of the libraries.
        accuracy: Where precision is reduced: the metric of both, and the drop.
        schema: Of the JSON.
    """

    stages: list[Stage]
    images: dict[str, Any]
    weights_sha256: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    accuracy: dict[str, Any] = field(default_factory=dict)
    schema: int = 1

    @property
    def passed(self) -> bool:
        """Whether all stages passed, and accuracy did, where it was measured."""
        return all(stage.passed for stage in self.stages) and bool(self.accuracy.get("passed", True))

    def problem(self) -> str:
        """Return what failed first, in a line; empty where nothing did."""
        for stage in self.stages:
            if not stage.passed:
                more = stage.problems[0] if stage.problems else f"{stage.largest:.3g} at {stage.where}"
                return f"{stage.name}: {more} (allowed: {stage.allowed:g})"
        return "" if self.passed else str(self.accuracy.get("problem", "accuracy"))

    def to_json(self) -> str:
        """Return the whole, for people and programs."""
        stages = [{**asdict(stage), "passed": stage.passed} for stage in self.stages]
        content = {**asdict(self), "stages": stages, "verdict": "passed" if self.passed else "failed"}
        return json.dumps(content, indent=1, sort_keys=True) + "\n"


@torch.no_grad()
def compare(
    detector: Detector,
    session: Session,
    images: Pictures,
    *,
    preprocessed: Callable[[NDArray[np.uint8]], NDArray[np.float32]] | None = None,
    raw_only: bool = False,
) -> list[Stage]:
    """Compare an export with its detector.

    Args:
        detector: In evaluation mode, on the CPU.
        session: The export, opened in its runtime.
        images: Real pictures, uint8 [H, W, 3] each.
        preprocessed: What the export's network sees of pictures [B, H, W, 3]; None where that cannot be had.
        raw_only: Whether the export ends before suppression.

    Returns:
        The stages.
    """
    stages = []
    if preprocessed is not None:
        stages.append(_preprocessing(detector, preprocessed, images))
    raw, suppression, whole = _RawOutputs(), _Detections("suppression"), _Detections("detections")
    threshold = _iou_threshold(detector)
    for number, image in enumerate(images):
        outputs, own = session.run(image[None]), _Own(detector, image)
        raw.add(outputs, own.outputs(), number)
        if raw_only:
            continue
        size = image.shape[:2]
        whole.add(outputs, own.outputs(), number, size, threshold)
        if own.raw.boxes.ndim == _ANCHOR_BOXES:
            suppression.add(outputs, own.suppressed(outputs), number, size, threshold)
        if not outputs.get("detections_complete", np.ones(1)).all():
            suppression.problems.append(f"picture {number}: more candidates than were looked at could matter")
    stages.append(raw.stage())
    if not raw_only:
        if suppression.compared:
            stages.append(suppression.stage())
        stages.append(whole.stage())
    stages.append(_batches(session, images))
    return stages


class _Own:
    """What the detector itself makes of a picture."""

    def __init__(self, detector: Detector, image: NDArray[np.uint8]) -> None:
        self.post = detector.postprocessor
        self.inputs, self.sizes = detector.preprocess(torch.from_numpy(np.ascontiguousarray(image[None])))
        self.predictions = detector.predict(self.inputs, self.sizes)
        self.raw = self.post.decode(self.predictions)

    def outputs(self) -> dict[str, NDArray[np.float32]]:
        """Return what its export should give."""
        return self._named(self.raw)

    def suppressed(self, outputs: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
        """Return what its suppression makes of an export's raw outputs."""
        height, width = self.inputs.shape[-2:]
        scale = torch.tensor([height, width, height, width], dtype=torch.float32)
        boxes = (torch.from_numpy(outputs["raw_detection_boxes"]) * scale)[..., [1, 0, 3, 2]]
        return self._named(RawDetections(boxes, torch.from_numpy(outputs["raw_detection_scores"])))

    def _named(self, raw: RawDetections) -> dict[str, NDArray[np.float32]]:
        found = self.post.select(self.predictions, raw, self.sizes)
        return {name: value.numpy() for name, value in named_outputs(self.inputs, raw, found, self.sizes).items()}


class _RawOutputs:
    """The largest difference of raw outputs, as a share of what is allowed."""

    def __init__(self) -> None:
        self.worst = _Worst()

    def add(self, outputs: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]], number: int) -> None:
        for name in ("raw_detection_boxes", "raw_detection_scores"):
            self.worst.add(outputs[name], expected[name], f"picture {number}, {name}")

    def stage(self) -> Stage:
        worst = self.worst
        problems = [f"{worst.where}: differs by {worst.difference:.3g}"] if worst.share > 1 else []
        compared = f"boxes and scores of all anchors: |a - b| <= {_RAW_ABSOLUTE:g} + {_RAW_RELATIVE:g} |b|"
        return Stage("raw outputs", compared, worst.share, 1.0, worst.where, problems=problems)


class _Worst:
    """The largest difference, as a share of what is allowed: |a - b| / (absolute + relative |b|)."""

    def __init__(self) -> None:
        self.share, self.difference, self.where = 0.0, 0.0, ""

    def add(self, found: NDArray[Any], expected: NDArray[Any], where: str) -> None:
        if found.shape != expected.shape:
            self.share = self.difference = float("inf")
            self.where = f"{where}: shape {found.shape}, expected {expected.shape}"
            return
        both = np.isfinite(found) & np.isfinite(expected)
        if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
            self.share = self.difference = float("inf")
            self.where = f"{where}: not finite in other places"
            return
        off = np.abs(found[both] - expected[both])
        if not off.size:
            return
        shares = off / (_RAW_ABSOLUTE + _RAW_RELATIVE * np.abs(expected[both]))
        if shares.max() >= self.share:
            place = np.argwhere(both)[int(shares.argmax())]
            self.share, self.difference = float(shares.max()), float(off[shares.argmax()])
            self.where = f"{where} {place[1:].tolist()}"


def _preprocessing(
    detector: Detector, preprocessed: Callable[[NDArray[np.uint8]], NDArray[np.float32]], images: Pictures
) -> Stage:
    largest, where = 0.0, ""
    for number, image in enumerate(images):
        found = preprocessed(image[None])
        expected = detector.preprocess(torch.from_numpy(np.ascontiguousarray(image[None])))[0].numpy()
        if found.shape != expected.shape:
            return Stage("preprocessing", "network inputs", float("inf"), _PREPROCESSING, f"picture {number}: shape")
        span = float(np.ptp(expected)) or 1.0
        off = float(np.abs(found - expected).max()) / span
        if off >= largest:
            largest, where = off, f"picture {number}"
    return Stage("preprocessing", "network inputs, as a share of their range", largest, _PREPROCESSING, where)


@dataclass
class _Difference:
    """What was found in a picture by one of the two alone."""

    missing: list[str]
    extra: list[str]
    ties: list[str]


class _Detections:
    """The same detections in each picture, but for ties."""

    def __init__(self, name: str) -> None:
        self.name, self.compared, self.score = name, 0, 0.0
        self.ties: list[str] = []
        self.problems: list[str] = []

    def add(
        self,
        outputs: dict[str, Any],
        expected: dict[str, Any],
        number: int,
        size: tuple[int, ...],
        iou_threshold: float,
    ) -> None:
        found, wanted = (_confident(found_objects(one, 0, (size[0], size[1]), None)) for one in (outputs, expected))
        self.compared += len(wanted)
        difference, score = _difference(found, wanted, iou_threshold)
        self.score = max(self.score, score)
        self.ties += [f"picture {number}: {tie}" for tie in difference.ties]
        self.problems += [f"picture {number}: missing {one}" for one in difference.missing]
        self.problems += [f"picture {number}: extra {one}" for one in difference.extra]

    def stage(self) -> Stage:
        compared = f"{self.compared} detections that score {_LEAST_SCORE:g} or more; scores within {self.score:.2g}"
        problems = self.problems[:20]
        if self.score > _RAW_ABSOLUTE:
            problems = [f"scores of the same detections differ by {self.score:.3g}", *problems]
        if not self.compared:
            problems = [f"nothing scores {_LEAST_SCORE:g} or more in any picture: is the detector trained?", *problems]
        return Stage(self.name, compared, float(len(self.problems)), 0.0, ties=self.ties[:100], problems=problems)


def _confident(found: FoundObjects) -> FoundObjects:
    return found.above(_LEAST_SCORE)


def _iou_threshold(detector: Detector) -> float:
    nms = suppression_of(detector)
    return 2.0 if nms is None else nms.rules().iou_threshold


def _difference(found: FoundObjects, wanted: FoundObjects, iou_threshold: float) -> tuple[_Difference, float]:
    """Match by class and anchor, else by class and place; what is left is a tie, or missing or extra."""
    left, lost, score = list(range(len(found))), [], 0.0
    for number in range(len(wanted)):
        match = next((other for other in left if _same(found, other, wanted, number)), None)
        if match is None:
            lost.append(number)
            continue
        left.remove(match)
        score = max(score, abs(float(found.scores[match] - wanted.scores[number])))
    ties, missing, extra = [], [], []
    for number in lost:
        other = next((one for one in left if abs(found.scores[one] - wanted.scores[number]) <= TIE), None)
        if other is not None:
            left.remove(other)
            ties.append(f"{_name(wanted, number)} and {_name(found, other)} score the same")
        elif _marginal(wanted, number, wanted, iou_threshold):
            ties.append(f"{_name(wanted, number)} is at a threshold")
        else:
            missing.append(_name(wanted, number))
    for number in left:
        if _marginal(found, number, wanted, iou_threshold):
            ties.append(f"{_name(found, number)} is at a threshold")
        else:
            extra.append(_name(found, number))
    return _Difference(missing, extra, ties), score


def _same(found: FoundObjects, one: int, wanted: FoundObjects, other: int) -> bool:
    if found.labels[one] != wanted.labels[other]:
        return False
    anchors, others = found.anchor_indices, wanted.anchor_indices
    if anchors is not None and others is not None and anchors[one] == others[other]:
        return True
    overlap = pairwise_iou(torch.from_numpy(found.boxes[[one]]), torch.from_numpy(wanted.boxes[[other]]))
    return float(overlap) >= _SAME_BOX


def _marginal(found: FoundObjects, number: int, wanted: FoundObjects, iou_threshold: float) -> bool:
    """Whether a detection is one by a hair: its score is the least that counts, or an overlap the threshold."""
    score = float(found.scores[number])
    if abs(score - _LEAST_SCORE) <= TIE:
        return True
    same = (wanted.labels == found.labels[number]) & (wanted.scores >= score - TIE)
    if not same.any():
        return False
    overlaps = pairwise_iou(torch.from_numpy(found.boxes[[number]]), torch.from_numpy(wanted.boxes[same]))
    return bool(((overlaps - iou_threshold).abs() <= _NEAR_THRESHOLD).any())


def _name(found: FoundObjects, number: int) -> str:
    box = ", ".join(f"{value:.1f}" for value in found.boxes[number])
    return f"class {int(found.labels[number]) + 1} at ({box}), score {found.scores[number]:.6f}"


def _batches(session: Session, images: Pictures) -> Stage:
    """Compare a picture alone with the same picture in a batch of three."""
    largest, where = 0.0, ""
    for number, image in enumerate(images[:2]):
        single, batch = session.run(image[None]), session.run(np.stack([image[:, ::-1], image, image]))
        for name, value in single.items():
            for row in (1, 2):
                off = float(np.abs(batch[name][row] - value[0]).max(initial=0.0))
                if off >= largest:
                    largest, where = off, f"picture {number}, {name}"
    return Stage("batches", "a picture alone and in a batch of three", largest, _SHAPE, where)
