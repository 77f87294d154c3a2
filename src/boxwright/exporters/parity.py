"""Comparing an export with its detector, stage by stage, on real pictures and trained weights.

Each stage gets the detector's own input, so that a difference identifies the part that causes it.

Dimensions: B batch, H W image, D detections, P keypoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.exporters.graph import named_outputs
from boxwright.exporters.matching import ABSOLUTE, PARTS, RELATIVE, Matcher, shares
from boxwright.exporters.pictures import Pictures
from boxwright.nn.detector import Detector
from boxwright.nn.postprocessing.nms import Nms
from boxwright.runtime.exported import to_detections
from boxwright.runtime.sessions import Session
from boxwright.types import PaddedDetections, RawDetections

_PREPROCESSING = 1e-5  # of the input's range; more for large pictures: see `_resizing_error`
# Stages that reduced precision cannot pass; average precision decides then.
_OF_FULL_PRECISION = ("raw outputs", "suppression", "detections", "batches")
_TOO_FEW = "candidates that suppression ignored could matter"
_BORDER = 1e-3  # pixels
# What no rounding changes in a keypoint that is still the same peak: pixels, and the score.
_JUMP, _SCORE_JUMP = 1.0, 0.01
# How many of an image's proposals may be unmatched, because of tied scores or overlaps at the threshold.
_TIED_REGIONS, _TIED_SHARE = 2, 0.02
_LEAST_SCORE = 0.05


@dataclass(frozen=True)
class Stage:
    """The result of one stage of the comparison.

    Attributes:
        largest: The largest difference; for detections, how many are missing or extra.
        ties: Differences explained by equal scores or overlaps; listed, not counted.
        gated: Whether it has to pass; with reduced precision some stages are only reported.
    """

    name: str
    compared: str
    largest: float
    allowed: float
    where: str = ""
    ties: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    gated: bool = True

    @property
    def passed(self) -> bool:
        """Whether it passes, or does not have to."""
        return not self.gated or (not self.problems and self.largest <= self.allowed)


@dataclass
class Report:
    """A comparison of an export with its detector.

    Attributes:
        accuracy: With reduced precision: the metric of both, and the drop.
    """

    stages: list[Stage]
    images: dict[str, Any]
    weights_sha256: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    accuracy: dict[str, Any] = field(default_factory=dict)
    schema: int = 1

    @property
    def complete(self) -> bool:
        """Whether suppression considered enough candidates in every picture."""
        return not any(_TOO_FEW in problem for stage in self.stages for problem in stage.problems)

    @property
    def passed(self) -> bool:
        """Whether all stages passed, and accuracy if measured."""
        return all(stage.passed for stage in self.stages) and bool(self.accuracy.get("passed", True))

    def problem(self) -> str:
        """Return the first failure in a line; empty if there is none."""
        by_cause = sorted(self.stages, key=lambda stage: not any(_TOO_FEW in problem for problem in stage.problems))
        for stage in by_cause:
            if not stage.passed:
                more = stage.problems[0] if stage.problems else f"{stage.largest:.3g} at {stage.where}"
                return f"{stage.name}: {more} (allowed: {stage.allowed:g}){self._near_ties(stage)}"
        return "" if self.passed else str(self.accuracy.get("problem", "accuracy"))

    def _near_ties(self, failed: Stage) -> str:
        """Return advice if the network's outputs agree but the selected detections differ."""
        if any("nothing scores" in problem for problem in failed.problems):
            return ""
        raw = next((stage for stage in self.stages if stage.name == "raw outputs"), None)
        if failed.name not in ("suppression", "detections") or raw is None or not raw.passed or _TOO_FEW in str(failed):
            return ""
        return (
            "; the network's outputs agree, so rounding decides between nearly tied boxes, which are common in a "
            "detector after little training: train longer, or compare on other pictures"
        )

    def to_json(self) -> str:
        """Return the report as JSON."""
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
    """Compare an export with its detector, and return the stages' results.

    Args:
        images: Real pictures, uint8 [H, W, 3] each.
        preprocessed: From pictures [B, H, W, 3] to the export's network inputs; None if unavailable.
    """
    seen = _Inputs(preprocessed)
    raw, suppression, whole = _RawOutputs(), _Detections("suppression"), _Detections("detections")
    nms = find_suppression(detector)
    # No overlap reaches 2: without suppression, nothing is a tie of it.
    threshold = 2.0 if nms is None else getattr(nms.suppression, "iou_threshold", 1.0)
    for number, image in enumerate(images):
        outputs, own = session.run(image[None]), _ReferenceResults(detector, image)
        expected = own.outputs()
        seen.add(image, own.inputs.numpy(), number)
        unsteady: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
        if own.raw.of_regions:
            unsteady = raw.add_regions(outputs, expected, number, own.unsteady())
        else:
            raw.add(outputs, expected, number)
        if raw_only:
            continue
        moved = own.unsteady_keypoints()
        if count := sum(int(points.sum()) for points in moved.values()):
            whole.ties.append(f"picture {number}: {count} keypoints depend on rounding and were not compared")
        match = Matcher(_LEAST_SCORE, threshold, *unsteady, moved)
        whole.add(outputs, expected, (number, image), match)
        if not own.raw.of_regions and own.raw.scores.shape[:2] == outputs["raw_detection_boxes"].shape[:2]:
            suppression.add(outputs, own.suppressed(outputs), (number, image), match)
        if not outputs.get("detections_complete", np.ones(1)).all():
            whole.too_few.append(f"picture {number}: {_TOO_FEW}")
    stages = [*seen.stages(), raw.stage()]
    if not raw_only:
        if suppression.compared:
            stages.append(suppression.stage())
        stages.append(whole.stage())
    stages.append(_batches(session, images))
    if session.metadata.precision == "float32":
        return stages
    return [replace(stage, gated=stage.name not in _OF_FULL_PRECISION) for stage in stages]


class _ReferenceResults:
    """The detector's own results for a picture."""

    def __init__(self, detector: Detector, image: NDArray[np.uint8]) -> None:
        self.detector, self.post, self.network = detector, detector.postprocessor, detector.network
        self.inputs, self.sizes = detector.preprocess(torch.from_numpy(np.ascontiguousarray(image[None])))
        self.predictions = detector.predict(self.inputs, self.sizes)
        self.raw = self.post.decode(self.predictions)

    def outputs(self) -> dict[str, NDArray[np.float32]]:
        """Return the outputs expected from the export."""
        return self._named(self.raw)

    def suppressed(self, outputs: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
        """Return the result of the detector's suppression on an export's raw outputs."""
        height, width = self.inputs.shape[-2:]
        scale = torch.tensor([height, width, height, width], dtype=torch.float32)
        boxes = (torch.from_numpy(outputs["raw_detection_boxes"]) * scale)[..., [1, 0, 3, 2]]
        scores = torch.from_numpy(outputs["raw_detection_scores"])
        return self._named(RawDetections(boxes, scores, (height, width)))

    def unsteady(self) -> frozenset[int]:
        """Return the proposals that end at the input's border, where TF's crop drops to 0.

        Whether such a crop's last row is inside depends on the last bit of a number, in TensorFlow as here.
        """
        if not self.network.drops_at_border:
            return frozenset()
        boxes = self.predictions.proposals.boxes[0]
        height, width = self.inputs.shape[-2:]
        limits = torch.tensor([width, height], dtype=torch.float32)
        ends = ((boxes[:, 2:] - limits).abs() < _BORDER).any(1) | (boxes[:, :2].abs() < _BORDER).any(1)
        return frozenset(ends.nonzero().squeeze(1).tolist())

    def unsteady_keypoints(self) -> dict[int, NDArray[np.bool_]]:
        """Return by anchor the keypoints that move when the input changes by as much as rounding may, bool [P].

        A keypoint takes the best of a heatmap's peaks: of two that are nearly as good rounding takes one.
        """
        detections = self._select(self.predictions)
        if detections.keypoints is None:
            return {}
        span = float(self.inputs.max() - self.inputs.min())
        change = (
            (torch.rand(self.inputs.shape, generator=torch.Generator().manual_seed(0)) - 0.5) * _PREPROCESSING * span
        )
        moved = {int(anchor): np.zeros(detections.keypoints.shape[2], np.bool_) for anchor in detections.anchors[0]}
        # Both ways: what one change leaves where it is, the opposite moves.
        for inputs in (self.inputs + change, self.inputs - change):
            changed = self._select(self.detector.predict(inputs, self.sizes))
            places = {int(anchor): place for place, anchor in enumerate(changed.anchors[0])}
            for place, anchor in enumerate(detections.anchors[0].tolist()):
                if (other := places.get(anchor)) is not None:
                    moved[anchor] |= _jumps(detections, place, changed, other)
        return moved

    def _select(self, predictions: Any) -> PaddedDetections:
        detections: PaddedDetections = self.post.select(predictions, self.post.decode(predictions), self.sizes)
        return detections

    def _named(self, raw: RawDetections) -> dict[str, NDArray[np.float32]]:
        detections = self.post.select(self.predictions, raw, self.sizes)
        return {name: value.numpy() for name, value in named_outputs(self.inputs, raw, detections, self.sizes).items()}


def _jumps(detections: PaddedDetections, place: int, other: PaddedDetections, other_place: int) -> NDArray[np.bool_]:
    """Return which keypoints of the same detection are another peak in the other list, bool [P]."""
    if detections.keypoints is None or other.keypoints is None:
        return np.zeros(0, np.bool_)
    jumps = ((detections.keypoints[0, place] - other.keypoints[0, other_place]).abs() > _JUMP).any(-1)
    if detections.keypoint_scores is not None and other.keypoint_scores is not None:
        off = (detections.keypoint_scores[0, place] - other.keypoint_scores[0, other_place]).abs()
        jumps = jumps | (off > _SCORE_JUMP)
    return jumps.numpy()


class _RawOutputs:
    """The largest difference of raw outputs, as a share of the tolerance."""

    def __init__(self) -> None:
        self.worst = _LargestDifference()
        self.ties: list[str] = []

    def add(self, outputs: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]], number: int) -> None:
        for name in ("raw_detection_boxes", "raw_detection_scores"):
            self.worst.add(outputs[name], expected[name], f"picture {number}, {name}")

    def add_regions(
        self,
        outputs: dict[str, NDArray[Any]],
        expected: dict[str, NDArray[Any]],
        number: int,
        unsteady: frozenset[int],
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Compare proposals as sets: equal scores may change order, and a few may be replaced.

        Args:
            unsteady: The detector's proposals that are not compared.

        Returns:
            The export's and the detector's proposals that were not matched.
        """
        names = ("raw_detection_boxes", "raw_detection_scores")
        exported, wanted = (
            np.concatenate([named_arrays[name][0] for name in names], 1) for named_arrays in (outputs, expected)
        )
        if exported.shape != wanted.shape:
            self.add(outputs, expected, number)
            return frozenset(), frozenset()
        steady = np.array([row for row in range(len(wanted)) if row not in unsteady], np.int64)
        if unsteady:
            self.ties.append(f"picture {number}: {len(unsteady)} proposals end at the border, where rounding decides")
        off = np.array([np.abs(exported - wanted[row]).max(1) for row in steady]).reshape(len(steady), len(exported))
        alone = off.min(1) > ABSOLUTE + RELATIVE
        if 0 < alone.sum() <= max(_TIED_REGIONS, _TIED_SHARE * len(alone)):
            self.ties.append(f"picture {number}: {alone.sum()} of {len(alone)} proposals are unmatched")
            steady, off = steady[~alone], off[~alone]
        nearest = off.argmin(1)
        for name in names:
            self.worst.add(outputs[name][0][nearest], expected[name][0][steady], f"picture {number}, {name}")
        everyone = set(range(len(exported)))
        return frozenset(everyone - set(nearest.tolist())), frozenset(everyone - set(steady.tolist()))

    def stage(self) -> Stage:
        worst = self.worst
        problems = [f"{worst.where}: differs by {worst.difference:.3g}"] if worst.share > 1 else []
        compared = f"boxes and scores of all anchors: |a - b| <= {ABSOLUTE:g} + {RELATIVE:g} |b|"
        return Stage("raw outputs", compared, worst.share, 1.0, worst.where, self.ties[:100], problems)


class _LargestDifference:
    """The largest difference, as a share of the tolerance: |a - b| / (absolute + relative |b|)."""

    def __init__(self) -> None:
        self.share, self.difference, self.where = 0.0, 0.0, ""

    def add(self, actual: NDArray[Any], expected: NDArray[Any], where: str) -> None:
        if actual.shape != expected.shape:
            self.share = self.difference = float("inf")
            self.where = f"{where}: shape {actual.shape}, expected {expected.shape}"
            return
        both = np.isfinite(actual) & np.isfinite(expected)
        if not np.array_equal(np.isfinite(actual), np.isfinite(expected)):
            self.share = self.difference = float("inf")
            self.where = f"{where}: non-finite values in different places"
            return
        off = np.abs(actual[both] - expected[both])
        if not off.size:
            return
        parts = shares(actual[both], expected[both])
        if parts.max() >= self.share:
            place = np.argwhere(both)[int(parts.argmax())]
            self.share, self.difference = float(parts.max()), float(off[parts.argmax()])
            self.where = f"{where} {place[1:].tolist()}"


class _Inputs:
    """The largest difference of network inputs, as a share of the tolerance."""

    def __init__(self, look: Callable[[NDArray[np.uint8]], NDArray[np.float32]] | None) -> None:
        self.look, self.largest, self.where = look, 0.0, ""

    def add(self, image: NDArray[np.uint8], expected: NDArray[np.float32], number: int) -> None:
        if self.look is None:
            return
        actual = self.look(image[None])
        same = actual.shape == expected.shape
        span = float(np.ptp(expected)) or 1.0
        off = float(np.abs(actual - expected).max()) / span if same else float("inf")
        share = off / max(_PREPROCESSING, _resizing_error(image))
        if share >= self.largest:
            self.largest, self.where = share, f"picture {number}" + (f", by {off:.2g}" if same else ": shape")

    def stages(self) -> list[Stage]:
        if self.look is None:
            return []
        compared = "network inputs, as a share of the tolerance"
        return [Stage("preprocessing", compared, self.largest, 1.0, self.where)]


def _resizing_error(image: NDArray[np.uint8]) -> float:
    """Return by what share of a picture's range two float32 resizings of it may differ.

    Each may compute a pixel's position with an error of one unit in the last place; within a pixel, values change by no
    more than the range.
    """
    return 2 * float(np.spacing(np.float32(max(image.shape[:2]))))


class _Detections:
    """The detections in each picture, apart from ties."""

    def __init__(self, name: str) -> None:
        self.name, self.compared, self.largest = name, 0, dict.fromkeys(PARTS, 0.0)
        self.ties: list[str] = []
        self.problems: list[str] = []
        self.too_few: list[str] = []

    def add(
        self, outputs: dict[str, Any], expected: dict[str, Any], where: tuple[int, NDArray[Any]], match: Matcher
    ) -> None:
        number, image = where
        size = (image.shape[0], image.shape[1])
        exported, wanted = (to_detections(arrays, 0, size, None).above(_LEAST_SCORE) for arrays in (outputs, expected))
        self.compared += len(wanted)
        difference = match(exported, wanted)
        self.largest = {part: max(share, difference.largest[part]) for part, share in self.largest.items()}
        self.ties += [f"picture {number}: {tie}" for tie in difference.ties]
        self.problems += [f"picture {number}: missing {name}" for name in difference.missing]
        self.problems += [f"picture {number}: extra {name}" for name in difference.extra]

    def stage(self) -> Stage:
        compared = (
            f"{self.compared} detections that score {_LEAST_SCORE:g} or more; their scores differ by "
            f"{self.largest['scores']:.2g} of the tolerance of raw outputs"
        )
        # The cause first: missing detections follow from it.
        problems = [*self.too_few[:5], *self.problems[:20]]
        for part, share in self.largest.items():
            if share > 1:
                problems = [
                    f"{part.replace('_', ' ')} of the same detections differ by {share:.3g} times the tolerance",
                    *problems,
                ]
        if not self.compared:
            problems = [
                f"nothing scores {_LEAST_SCORE:g} or more in any picture: the detector may need more training",
                *problems,
            ]
        return Stage(
            self.name,
            compared,
            float(len(self.problems) + len(self.too_few)),
            0.0,
            ties=self.ties[:100],
            problems=problems,
        )


def find_suppression(detector: Detector) -> Nms | None:
    """Return a detector's suppression; None for one that only proposes."""
    suppression: Nms | None = getattr(detector.postprocessor, "suppression", None)
    return suppression


def _batches(session: Session, images: Pictures) -> Stage:
    """Compare a picture by itself with the same picture in a batch of three."""
    largest, where = 0.0, ""
    for number, image in enumerate(images[:2]):
        # The first picture of the batch differs, so that a row that depends on another shows.
        single, batch = session.run(image[None]), session.run(np.stack([image[:, ::-1], image, image]))
        for name, value in single.items():
            for row in (1, 2):
                off = float(shares(batch[name][row], value[0]).max(initial=0.0))
                if off >= largest:
                    largest, where = off, f"picture {number}, {name}"
    compared = "a picture alone and in a batch of three, with the tolerance of raw outputs"
    return Stage("batches", compared, largest, 1.0, where)
