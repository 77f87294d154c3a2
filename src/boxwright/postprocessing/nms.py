"""Non-maximum suppression of a batch: one `Nms`, with what differs as parts.

Dimensions: B batch, A anchors, K foreground classes, D detections (padded).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal

import torch
from torch import Tensor

from boxwright.ops.suppression import Rules, suppress
from boxwright.ops.suppression_in_tensors import fits_on_gpu, suppress_without_wait
from boxwright.types import PaddedDetections


@dataclass(frozen=True)
class PerClass:
    """Suppress each class by itself.

    Attributes:
        iou_threshold: Boxes that overlap a better one of their class by more are dropped.
        max_detections_per_class: The most that each class keeps.
    """

    iou_threshold: float = 0.6
    max_detections_per_class: int = 100


@dataclass(frozen=True)
class ClassAgnostic:
    """Suppress whatever the class; each box has its best class alone. Boxes that clipping then drops are not replaced.

    Attributes:
        iou_threshold: Boxes that overlap a better one by more are dropped.
    """

    iou_threshold: float = 0.6


@dataclass(frozen=True)
class SoftPerClass:
    """Lower the scores of boxes that overlap better ones of their class, rather than drop them.

    A score is multiplied with exp(-IoU² / (2 σ)) for each better box (Bodla et al., 2017, equation 3,
    whose σ is twice TF's). Detections carry the lowered scores.

    Attributes:
        sigma: How far the lowering reaches.
        max_detections_per_class: The most that each class keeps.
    """

    sigma: float
    max_detections_per_class: int = 100


@dataclass(frozen=True)
class Voting:
    """Let the boxes of a class that overlap the best become their mean, weighed by score.

    Attributes:
        iou_threshold: The least overlap with the best to take part.
    """

    iou_threshold: float = 0.45


@dataclass(frozen=True)
class VotingOfSeveral:
    """Let boxes vote as `Voting`; what only one box says does not count (SRN).

    Attributes:
        iou_threshold: The least overlap with the best to take part.
    """

    iou_threshold: float = 0.5


@dataclass(frozen=True)
class SoftVoting:
    """Let boxes vote; those that took part stay besides, with scores lowered by their overlap with the best.

    Attributes:
        iou_threshold: The least overlap with the best to take part.
        score_threshold: The least lowered score that stays.
    """

    iou_threshold: float = 0.45
    score_threshold: float = 0.01


Suppression = PerClass | ClassAgnostic | SoftPerClass | Voting | VotingOfSeveral | SoftVoting


@dataclass(frozen=True)
class BestOfClass:
    """Let the best of each class take part, as Caffe's detectors do.

    Attributes:
        count: How many of each class.
    """

    count: int

    def __call__(self, scores: Tensor) -> Tensor:
        """Return scores [B, A, K] of which the others are minus infinity."""
        best = scores.topk(min(self.count, scores.shape[1]), dim=1)
        return torch.full_like(scores, -torch.inf).scatter(1, best.indices, best.values)


@dataclass(frozen=True)
class BestOfImage:
    """Let the best of each image take part, whatever their class.

    Attributes:
        count: How many of an image.
    """

    count: int

    def __call__(self, scores: Tensor) -> Tensor:
        """Return scores [B, A, K] of which the others are minus infinity."""
        flat = scores.flatten(1)
        best = flat.topk(min(self.count, flat.shape[1]), dim=1)
        return torch.full_like(flat, -torch.inf).scatter(1, best.indices, best.values).view_as(scores)


@dataclass(frozen=True)
class LinearLowering:
    """After suppression, multiply a score with 1 - IoU for each better box of its class that overlaps by more.

    What is better is decided anew after each lowering (Bodla et al., 2017, equation 2). RefineDet's authors evaluate
    COCO so.

    Attributes:
        iou_threshold: The overlap from which scores are lowered.
        score_threshold: Boxes whose score is lowered below it are dropped.
    """

    iou_threshold: float
    score_threshold: float


@dataclass(frozen=True)
class Nms:
    """Suppress a batch.

    Attributes:
        suppression: How boxes suppress others.
        score_threshold: Only scores above it are looked at.
        max_total_detections: The most that an image keeps; D.
        candidates: Which scores take part; None for all.
        outside: What becomes of boxes that clipping leaves without area: "drop"; "keep", turned inside out, as TF's
            combined operation does; or "unclipped", where nothing is clipped.
        lowering: What happens to scores at the end; None for nothing.
    """

    suppression: Suppression = PerClass()
    score_threshold: float = 0.0
    max_total_detections: int = 100
    candidates: BestOfClass | BestOfImage | None = None
    outside: Literal["drop", "keep", "unclipped"] = "drop"
    lowering: LinearLowering | None = None

    def __post_init__(self) -> None:
        allowed = _OUTSIDE.get(type(self.suppression), ("drop",))
        if self.outside not in allowed:
            name = type(self.suppression).__name__
            raise ValueError(f"outside: {name} takes {' or '.join(allowed)}, found {self.outside!r}")

    def __call__(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> PaddedDetections:
        """Return boxes in pixels of the network's input, best first."""
        if self.candidates is not None:
            scores = self.candidates(scores)
        return PaddedDetections(*suppress(boxes, scores, windows, *astuple(self.rules())))

    def without_wait(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> PaddedDetections:
        """Return the same where it says that it is complete, and let the program not wait for a GPU.

        Some kinds of suppression have no such form, and very many detections too large a one: they wait.
        """
        rules = self.rules()
        if not boxes.is_cuda or not fits_on_gpu(scores, rules):
            return self(boxes, scores, windows)
        if self.candidates is not None:
            scores = self.candidates(scores)
        return PaddedDetections(*suppress_without_wait(boxes, scores, windows, *astuple(rules)))

    def rules(self) -> Rules:
        """Return the operator's arguments."""
        part = self.suppression
        lowering = self.lowering or LinearLowering(2.0, 0.0)
        return Rules(
            kind=_KINDS[type(part)],
            score_threshold=self.score_threshold,
            iou_threshold=getattr(part, "iou_threshold", 1.0),
            sigma=part.sigma if isinstance(part, SoftPerClass) else getattr(part, "score_threshold", 0.0),
            max_per_class=getattr(part, "max_detections_per_class", self.max_total_detections),
            max_total=self.max_total_detections,
            outside=self.outside,
            lowering_iou=lowering.iou_threshold,
            lowering_score=lowering.score_threshold,
        )


_OUTSIDE: dict[type, tuple[str, ...]] = {
    PerClass: ("drop", "keep", "unclipped"),
    Voting: ("unclipped",),
    VotingOfSeveral: ("unclipped",),
    SoftVoting: ("unclipped",),
}
_KINDS: dict[type, str] = {
    PerClass: "per_class",
    ClassAgnostic: "class_agnostic",
    SoftPerClass: "soft",
    Voting: "voting",
    VotingOfSeveral: "voting_of_several",
    SoftVoting: "soft_voting",
}
