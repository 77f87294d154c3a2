"""Non-maximum suppression of a batch: its rules, and the operator that stands for it in graphs.

`Nms` is the only description of the rules. Its kernels are in `ops/suppression/`, once exact, image by image, and once
in tensors of fixed shape; the operator `boxwright::suppress` carries the same rules as a flat list of arguments.

Dimensions: B batch, A anchors, K foreground classes, D detections (padded).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from boxwright.ops.suppression import fixed_shape, image_by_image
from boxwright.ops.suppression.fixed_shape import SuppressPairs, suppress_in_checked_rounds, suppress_in_rounds
from boxwright.ops.suppression.greedy import suppress_pairs_together
from boxwright.ops.suppression.voting import soft_vote, vote
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
    """Merge the boxes of a class that overlap the best into their mean, weighted by score.

    Attributes:
        iou_threshold: The least overlap with the best to take part.
        least_members: Groups of fewer boxes are dropped (SRN: 2).
    """

    iou_threshold: float = 0.45
    least_members: Literal[1, 2] = 1


@dataclass(frozen=True)
class SoftVoting:
    """Merge as `Voting`; boxes that took part stay besides, with scores lowered by their overlap with the best.

    Attributes:
        iou_threshold: The least overlap with the best to take part.
        score_threshold: The least lowered score that stays.
    """

    iou_threshold: float = 0.45
    score_threshold: float = 0.01


Suppression = PerClass | ClassAgnostic | SoftPerClass | Voting | SoftVoting


@dataclass(frozen=True)
class BestOfClass:
    """Suppress among the best of each class, as Caffe's detectors do.

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
    """Suppress among the best of each image, whatever their class.

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
        score_threshold: Only scores above it take part.
        max_total_detections: The most that an image keeps; D.
        candidates: Which scores take part; None for all.
        outside: What becomes of boxes that clipping leaves without area: "drop"; "keep", turned inside out, as TF's
            combined operation does; or "unclipped", where nothing is clipped.
        lowering: How scores are lowered at the end; None for not at all.
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
        """Return the exact result; in a graph it is the operator `boxwright::suppress`.

        Args:
            boxes: float32 [B, A, 4], xyxy in pixels, unclipped; or [B, A, K, 4], a box for each class.
            scores: float32 [B, A, K], without background.
            windows: float32 [B, 2]; the (height, width) to which boxes are clipped.

        Returns:
            What is left, best first.
        """
        arguments = operator_arguments(self).values()
        return PaddedDetections(*_operator(boxes, self._of_candidates(scores), windows, *arguments))

    def without_wait(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> PaddedDetections:
        """Return the same without waiting for a GPU, where the result says that it is complete.

        An image is complete where nothing outside its candidates could matter and one more round of suppression
        changes nothing: then it is exact, however long the chains of overlaps are. Soft suppression, voting and very
        many detections have no such form: they wait.
        """
        if not (boxes.is_cuda and self.is_greedy and fixed_shape.fits_on_gpu(scores, self.max_total_detections)):
            return self(boxes, scores, windows)
        return self.in_rounds(boxes, scores, windows)

    def in_rounds(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> PaddedDetections:
        """Return what `in_tensors` does, of greedy suppression; complete only where the rounds sufficed."""
        certain: list[Tensor] = []

        def in_checked_rounds(*pairs: Any) -> Tensor:
            kept, sure = suppress_in_checked_rounds(*pairs)
            certain.append(sure)
            return kept

        detections = self.in_tensors(boxes, scores, windows, suppress_pairs=in_checked_rounds)
        return replace(detections, complete=cast(Tensor, detections.complete) & certain[0])

    def in_tensors(
        self,
        boxes: Tensor,
        scores: Tensor,
        windows: Tensor,
        *,
        suppress_pairs: SuppressPairs,
        times: int = 1,
    ) -> PaddedDetections:
        """Return the result of the best candidates, by kernels of fixed shape.

        Args:
            boxes: As for a call, like scores and windows.
            suppress_pairs: Suppresses pairs of box and class.
            times: How many times the usual number of candidates to consider.
        """
        scores, most = self._of_candidates(scores), self.max_total_detections
        if isinstance(self.suppression, ClassAgnostic):
            scores = fixed_shape.best_class_alone(scores)
        count = times * fixed_shape.candidate_count(most)
        candidates = fixed_shape.best_candidates(boxes, scores, self.score_threshold, count)
        selection = fixed_shape.clipped(_selection(self, candidates, suppress_pairs), windows, self.outside)
        # Greedy suppression leaves the order as it is, best first.
        selection = selection.front(most) if self.is_greedy else selection.sorted(most)
        if self.lowering is not None:
            lowering = self.lowering
            selection = fixed_shape.lowered_linearly(selection, lowering.iou_threshold, lowering.score_threshold)
        best, complete = selection.padded(most), ~candidates.more
        if self.is_greedy:  # a pair is dropped only by better ones: once the image is full the rest cannot change it
            complete = complete | best.kept.all(1)
        return PaddedDetections(best.boxes, best.scores, best.labels, best.anchors, best.kept, complete)

    def image_by_image(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> PaddedDetections:
        """Return the exact result; on a GPU each image is waited for several times."""
        detections = _empty(boxes, scores, self.max_total_detections)
        for number, image in enumerate(zip(boxes, self._of_candidates(scores), windows, strict=True)):
            kept = _kept_of_image(self, *image)
            if self.lowering is not None:
                lowering = self.lowering
                kept = image_by_image.lowered_linearly(kept, lowering.iou_threshold, lowering.score_threshold)
            count = len(kept.scores)
            for name, values in vars(kept).items():
                getattr(detections, name)[number, :count] = values
            detections.valid[number, :count] = True
        return detections

    @property
    def is_greedy(self) -> bool:
        """Whether boxes are kept or dropped as they are, by better ones alone."""
        return isinstance(self.suppression, PerClass | ClassAgnostic)

    def _of_candidates(self, scores: Tensor) -> Tensor:
        return scores if self.candidates is None else self.candidates(scores)


_OUTSIDE: dict[type, tuple[str, ...]] = {
    PerClass: ("drop", "keep", "unclipped"),
    Voting: ("unclipped",),
    SoftVoting: ("unclipped",),
}


def _kept_of_image(nms: Nms, *image: Tensor) -> image_by_image.Kept:
    """Return what is left of an image's boxes and scores, in its window, before lowering."""
    rules = nms.suppression
    limits: dict[str, Any] = {"score_threshold": nms.score_threshold, "max_total": nms.max_total_detections}
    if isinstance(rules, PerClass | SoftPerClass):
        limits |= {"max_per_class": rules.max_detections_per_class}
    if isinstance(rules, PerClass):
        return image_by_image.per_class(*image, iou_threshold=rules.iou_threshold, outside=nms.outside, **limits)
    if isinstance(rules, ClassAgnostic):
        return image_by_image.class_agnostic(*image, iou_threshold=rules.iou_threshold, **limits)
    if isinstance(rules, SoftPerClass):
        return image_by_image.soft(*image, sigma=rules.sigma, **limits)
    if isinstance(rules, SoftVoting):
        merge = partial(soft_vote, iou_threshold=rules.iou_threshold, score_threshold=rules.score_threshold)
    else:
        merge = partial(vote, iou_threshold=rules.iou_threshold, least_members=rules.least_members)
    return image_by_image.voting(*image, merge=merge, **limits)


def _selection(nms: Nms, candidates: fixed_shape.Candidates, suppress_pairs: SuppressPairs) -> fixed_shape.Selection:
    """Return what is left of candidates, before clipping and lowering."""
    rules, most = nms.suppression, nms.max_total_detections
    if isinstance(rules, PerClass):
        return fixed_shape.per_class(candidates, suppress_pairs, rules.iou_threshold, rules.max_detections_per_class)
    if isinstance(rules, ClassAgnostic):
        return fixed_shape.class_agnostic(candidates, suppress_pairs, rules.iou_threshold, most)
    if isinstance(rules, SoftPerClass):
        return fixed_shape.soft(candidates, rules.sigma, nms.score_threshold, rules.max_detections_per_class)
    if isinstance(rules, SoftVoting):
        return fixed_shape.soft_voting(candidates, rules.iou_threshold, rules.score_threshold)
    return fixed_shape.voting(candidates, rules.iou_threshold, rules.least_members)


def _empty(boxes: Tensor, scores: Tensor, count: int) -> PaddedDetections:
    batch = scores.shape[0]
    return PaddedDetections(
        boxes.new_zeros(batch, count, 4),
        scores.new_zeros(batch, count),
        scores.new_zeros(batch, count, dtype=torch.int64),
        scores.new_zeros(batch, count, dtype=torch.int64),
        scores.new_zeros(batch, count, dtype=torch.bool),
        scores.new_ones(batch, dtype=torch.bool),
    )


# The operator `boxwright::suppress`. Its schema is in files that were exported, so it stays as it is: a flat list, in
# which one number has a different meaning in soft suppression and soft voting, and an overlap of 2 stands for none.
_VOTING = {1: "voting", 2: "voting_of_several"}
_NAMES: dict[type, str] = {
    PerClass: "per_class",
    ClassAgnostic: "class_agnostic",
    SoftPerClass: "soft",
    SoftVoting: "soft_voting",
}
_NO_LOWERING = LinearLowering(2.0, 0.0)
_Tensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def operator_arguments(nms: Nms) -> dict[str, Any]:
    """Return rules as the arguments that follow the tensors of `boxwright::suppress`; candidates are none of them."""
    rules, most = nms.suppression, nms.max_total_detections
    lowering = nms.lowering or _NO_LOWERING
    return {
        "kind": _VOTING[rules.least_members] if isinstance(rules, Voting) else _NAMES[type(rules)],
        "score_threshold": nms.score_threshold,
        "iou_threshold": 1.0 if isinstance(rules, SoftPerClass) else rules.iou_threshold,
        "sigma": rules.sigma if isinstance(rules, SoftPerClass) else getattr(rules, "score_threshold", 0.0),
        "max_per_class": getattr(rules, "max_detections_per_class", most),
        "max_total": most,
        "outside": nms.outside,
        "lowering_iou": lowering.iou_threshold,
        "lowering_score": lowering.score_threshold,
    }


def _from_operator(arguments: Sequence[Any]) -> Nms:
    """Return the rules that `operator_arguments` were made of."""
    kind, score, iou, sigma, max_per_class, max_total, outside, lowering_iou, lowering_score = arguments
    kinds: dict[str, Callable[[], Suppression]] = {
        "per_class": lambda: PerClass(iou, max_per_class),
        "class_agnostic": lambda: ClassAgnostic(iou),
        "soft": lambda: SoftPerClass(sigma, max_per_class),
        "voting": lambda: Voting(iou),
        "voting_of_several": lambda: Voting(iou, 2),
        "soft_voting": lambda: SoftVoting(iou, sigma),
    }
    lowering = LinearLowering(lowering_iou, lowering_score) if lowering_iou <= 1 else None
    return Nms(kinds[kind](), score, max_total, outside=outside, lowering=lowering)


@torch.library.custom_op(
    "boxwright::suppress",
    mutates_args=(),
    schema="(Tensor boxes, Tensor scores, Tensor windows, str kind, float score_threshold, float iou_threshold, "
    "float sigma, SymInt max_per_class, SymInt max_total, str outside, float lowering_iou, float lowering_score) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _operator(boxes: Tensor, scores: Tensor, windows: Tensor, *arguments: Any) -> _Tensors:
    """Return the fields of `PaddedDetections` up to `complete`."""
    return _tensors(_from_operator(arguments).image_by_image(boxes, scores, windows))


@_operator.register_fake
def _(boxes: Tensor, scores: Tensor, windows: Tensor, *arguments: Any) -> _Tensors:
    del windows
    return _tensors(_empty(boxes, scores, _from_operator(arguments).max_total_detections))


@_operator.register_kernel("cuda")
def suppress_on_cuda(boxes: Tensor, scores: Tensor, windows: Tensor, *arguments: Any) -> _Tensors:
    """Return what the operator does, of all images together; the program waits twice.

    It waits for the pairs that stay, and for whether that is all: where more than the candidates could matter, images
    are suppressed one by one.
    """
    nms = _from_operator(arguments)
    if nms.is_greedy:
        detections = nms.in_tensors(boxes, scores, windows, suppress_pairs=suppress_pairs_together)
        if image_by_image.all_complete(cast(Tensor, detections.complete)):
            return _tensors(detections)
    return _tensors(nms.image_by_image(boxes, scores, windows))


def pair_decompositions(times: int = 1) -> dict[Any, Callable[..., Any]]:
    """Return, for `torch.export`, suppression in fixed shapes; `boxwright::suppress_pairs` stays, for runtimes.

    Args:
        times: As for `Nms.in_tensors`.
    """

    def suppress(boxes: Tensor, scores: Tensor, windows: Tensor, *arguments: Any) -> _Tensors:
        nms, pairs = _from_operator(arguments), torch.ops.boxwright.suppress_pairs
        return _tensors(nms.in_tensors(boxes, scores, windows, suppress_pairs=pairs, times=times))

    return {torch.ops.boxwright.suppress.default: suppress}


def decompositions(times: int = 1) -> dict[Any, Callable[..., Any]]:
    """Return, for `torch.export`, both operators in terms of PyTorch's own.

    Args:
        times: As for `Nms.in_tensors`.
    """
    return {**pair_decompositions(times), torch.ops.boxwright.suppress_pairs.default: suppress_in_rounds}


def _tensors(of: PaddedDetections) -> _Tensors:
    return of.boxes, of.scores, of.labels, of.anchors, of.valid, cast(Tensor, of.complete)
