"""Non-maximum suppression of a batch: its rules, and its operator in graphs.

`Nms` is the only description of the rules. Its kernels in `nn/suppression/` are exact, image by image, or use tensors
of fixed shape; the operator `boxwright::suppress` carries the same rules as a flat list of arguments.

Dimensions: B batch, A anchors, K foreground classes, D detections (padded).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from boxwright.base.device import is_plain
from boxwright.nn.ops.gpu_kernels import has_kernels
from boxwright.nn.suppression import fixed_shape, image_by_image
from boxwright.nn.suppression.fixed_shape import CheckedPairs, Lower, SuppressPairs, suppress_in_rounds
from boxwright.nn.suppression.image_by_image import soft_vote, suppress_pairs_together, vote
from boxwright.types import PaddedDetections


@dataclass(frozen=True)
class PerClass:
    """Suppress each class separately.

    Attributes:
        iou_threshold: Boxes that overlap a better one of their class by more are dropped.
    """

    iou_threshold: float = 0.6
    max_detections_per_class: int = 100


@dataclass(frozen=True)
class ClassAgnostic:
    """Suppress across classes, with only the best class of each box. Boxes dropped by clipping are not replaced.

    Attributes:
        iou_threshold: Boxes that overlap a better one by more are dropped.
    """

    iou_threshold: float = 0.6


@dataclass(frozen=True)
class SoftPerClass:
    """Lower the scores of boxes that overlap better ones of their class, rather than drop them.

    A score is multiplied by exp(-IoU² / (2 σ)) for each better box (Bodla et al., 2017, equation 3,
    whose σ is twice TF's). Detections carry the lowered scores.

    Attributes:
        sigma: The width of the Gaussian that lowers scores.
    """

    sigma: float
    max_detections_per_class: int = 100


@dataclass(frozen=True)
class Voting:
    """Merge the boxes of a class that overlap the best into their mean, weighted by score.

    Attributes:
        iou_threshold: The minimum overlap with the best box to be merged.
        least_members: Smaller groups are dropped (SRN: 2).
    """

    iou_threshold: float = 0.45
    least_members: Literal[1, 2] = 1


@dataclass(frozen=True)
class SoftVoting:
    """Merge as `Voting`, and keep the merged boxes too, with scores lowered by their overlap with the best.

    Attributes:
        iou_threshold: The minimum overlap with the best box to be merged.
    """

    iou_threshold: float = 0.45
    score_threshold: float = 0.01


Suppression = PerClass | ClassAgnostic | SoftPerClass | Voting | SoftVoting


@dataclass(frozen=True)
class BestOfClass:
    """Suppress among the best of each class, as Caffe's detectors do."""

    count: int

    def __call__(self, scores: Tensor) -> Tensor:
        """Return scores [B, A, K] with all others minus infinity."""
        best = scores.topk(min(self.count, scores.shape[1]), dim=1)
        return torch.full_like(scores, -torch.inf).scatter(1, best.indices, best.values)


@dataclass(frozen=True)
class BestOfImage:
    """Suppress among the best of each image across classes."""

    count: int

    def __call__(self, scores: Tensor) -> Tensor:
        """Return scores [B, A, K] with all others minus infinity."""
        flat = scores.flatten(1)
        best = flat.topk(min(self.count, flat.shape[1]), dim=1)
        return torch.full_like(flat, -torch.inf).scatter(1, best.indices, best.values).view_as(scores)


@dataclass(frozen=True)
class LinearLowering:
    """After suppression, multiply a score by 1 - IoU for each better box of its class that overlaps by more.

    The order is updated after each step (Bodla et al., 2017, equation 2). RefineDet's authors evaluate COCO this way.

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
        suppression: The rule by which boxes suppress others.
        max_total_detections: The maximum per image, D.
        candidates: Selects the scores that take part; None for all.
        outside: The treatment of boxes that clipping leaves without area: "drop"; "keep", inverted, as in TF's combined
            operation; or "unclipped", where nothing is clipped.
        lowering: Lowers scores at the end; None for no lowering.
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
        """
        if is_plain(scores):
            with torch.no_grad():  # as in the operator
                return self.image_by_image(boxes, scores, windows, range(len(scores)))
        arguments = operator_arguments(self).values()
        return PaddedDetections(*_operator(boxes, self._select_scores(scores), windows, *arguments))

    def without_wait(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> PaddedDetections:
        """Return the same without synchronizing a GPU, with a flag per image for whether the result is complete.

        An image is complete, and exact, if nothing outside its candidates could matter and all chains of overlaps were
        followed to their ends. Soft suppression, voting and, without Triton, very many detections have no such form
        and synchronize.
        """
        # On a CPU there is nothing to wait for, and the exact result needs no second attempt.
        suppress_pairs = _pairs_on_gpu(self, scores) if boxes.is_cuda and self.is_greedy else None
        if suppress_pairs is None:
            return self(boxes, scores, windows)
        return self.in_rounds(boxes, scores, windows, suppress_pairs)

    def in_rounds(
        self,
        boxes: Tensor,
        scores: Tensor,
        windows: Tensor,
        suppress_pairs: CheckedPairs = fixed_shape.suppress_in_checked_rounds,
    ) -> PaddedDetections:
        """Return `in_tensors`'s result for greedy suppression; complete only if the rounds sufficed.

        Args:
            boxes: As for `__call__`, like scores and windows.
            suppress_pairs: Says also of which images its result is exact.
        """
        certain: list[Tensor] = []

        def noting(function: Callable[..., tuple[Any, Tensor]]) -> Callable[..., Any]:
            """Return a function without the second value of its result, which is noted."""

            def run(*arguments: Any) -> Any:
                result, sure = function(*arguments)
                certain.append(sure)
                return result

            return run

        detections = self.in_tensors(
            boxes,
            scores,
            windows,
            suppress_pairs=noting(suppress_pairs),
            lower=noting(fixed_shape.lowered_in_checked_rounds),
        )
        complete = cast(Tensor, detections.complete)
        for sure in certain:
            complete = complete & sure
        return replace(detections, complete=complete)

    def in_tensors(
        self,
        boxes: Tensor,
        scores: Tensor,
        windows: Tensor,
        *,
        suppress_pairs: SuppressPairs,
        times: int = 1,
        lower: Lower = fixed_shape.lowered_linearly,
    ) -> PaddedDetections:
        """Return the result over the best candidates, by kernels of fixed shape.

        Args:
            boxes: As for `__call__`, like scores and windows.
        """
        scores, most = self._select_scores(scores), self.max_total_detections
        if isinstance(self.suppression, ClassAgnostic):
            scores = fixed_shape.best_class_only(scores)
        count = times * fixed_shape.candidate_count(most)
        candidates = fixed_shape.best_candidates(boxes, scores, self.score_threshold, count)
        selection = fixed_shape.clipped(_selection(self, candidates, suppress_pairs), windows, self.outside)
        # Greedy suppression keeps the order, best first.
        selection = selection.front(most) if self.is_greedy else selection.sorted(most)
        if self.lowering is not None:
            selection = lower(selection, self.lowering.iou_threshold, self.lowering.score_threshold)
        best, complete = selection.padded(most), ~candidates.more
        if self.is_greedy:  # only better pairs drop a pair: the rest cannot change a full image
            complete = complete | best.kept.all(1)
        return PaddedDetections(best.boxes, best.scores, best.labels, best.anchors, best.kept, complete)

    def image_by_image(
        self, boxes: Tensor, scores: Tensor, windows: Tensor, indices: Sequence[int]
    ) -> PaddedDetections:
        """Return the exact result for some images, and nothing for others; each synchronizes a GPU several times.

        Args:
            boxes: As for `__call__`, like scores and windows.
        """
        detections, scores = _empty(boxes, scores, self.max_total_detections), self._select_scores(scores)
        for number in indices:
            kept = _suppress_image(self, boxes[number], scores[number], windows[number])
            if self.lowering is not None:
                lowering = self.lowering
                kept = image_by_image.lowered_linearly(kept, lowering.iou_threshold, lowering.score_threshold)
            count = len(kept.scores)
            for name, values in vars(kept).items():
                getattr(detections, name)[number, :count] = values
            detections.valid[number, :count] = True
        return detections

    def above(self, score: float) -> Nms:
        """Return rules that leave out scores below one from the start, where that changes no other detection.

        Greedy suppression is by better boxes only; rules that merge boxes or lower scores stay as they are.
        """
        if not self.is_greedy or self.lowering is not None:
            return self
        # Scores of exactly `score` stay; thresholds are exceeded.
        below = float(np.nextafter(np.float32(score), np.float32(-np.inf)))
        return replace(self, score_threshold=max(self.score_threshold, below))

    @property
    def is_greedy(self) -> bool:
        """Whether boxes are kept or dropped unchanged, by better ones only."""
        return isinstance(self.suppression, PerClass | ClassAgnostic)

    def _select_scores(self, scores: Tensor) -> Tensor:
        return scores if self.candidates is None else self.candidates(scores)


# Suppresses a batch as a method of its rules does: boxes, scores and windows as for `Nms.__call__`.
Suppress = Callable[[Nms, Tensor, Tensor, Tensor], PaddedDetections]
_OUTSIDE: dict[type, tuple[str, ...]] = {
    PerClass: ("drop", "keep", "unclipped"),
    Voting: ("unclipped",),
    SoftVoting: ("unclipped",),
}


def _suppress_image(nms: Nms, *image: Tensor) -> image_by_image.KeptDetections:
    """Return an image's detections, clipped to its window, before lowering."""
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
    """Return the candidates kept, before clipping and lowering."""
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


# The operator `boxwright::suppress`. Exported files contain its schema, so it must not change: a flat list, in which
# one number has a different meaning in soft suppression and soft voting, and an overlap of 2 means none.
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
    """Return the rules, except candidates, as the arguments after the tensors of `boxwright::suppress`."""
    rules, most = nms.suppression, nms.max_total_detections
    lowering = nms.lowering or _NO_LOWERING
    return {
        "kind": _VOTING[rules.least_members] if isinstance(rules, Voting) else _NAMES[type(rules)],
        "score_threshold": nms.score_threshold,
        # Soft suppression drops nothing by its overlap.
        "iou_threshold": 1.0 if isinstance(rules, SoftPerClass) else rules.iou_threshold,
        "sigma": rules.sigma if isinstance(rules, SoftPerClass) else getattr(rules, "score_threshold", 0.0),
        "max_per_class": getattr(rules, "max_detections_per_class", most),
        "max_total": most,
        "outside": nms.outside,
        "lowering_iou": lowering.iou_threshold,
        "lowering_score": lowering.score_threshold,
    }


def _from_operator(arguments: Sequence[Any]) -> Nms:
    """Return the rules from `operator_arguments`."""
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
    return _tensors(_from_operator(arguments).image_by_image(boxes, scores, windows, range(len(scores))))


@_operator.register_fake
def _(boxes: Tensor, scores: Tensor, windows: Tensor, *arguments: Any) -> _Tensors:
    del windows
    return _tensors(_empty(boxes, scores, _from_operator(arguments).max_total_detections))


@_operator.register_kernel("cuda")
def suppress_on_cuda(boxes: Tensor, scores: Tensor, windows: Tensor, *arguments: Any) -> _Tensors:
    """Return the operator's result for all images together, with one synchronization.

    It is for which images' results are exact: those of which more than the candidates could matter are suppressed one
    by one, and without Triton those with long chains of overlaps. Without Triton, more candidates than fit into tables
    of pairs are suppressed by torchvision's kernel, which synchronizes too.
    """
    nms = _from_operator(arguments)
    if not nms.is_greedy:
        return _tensors(nms.image_by_image(boxes, scores, windows, range(len(scores))))
    if suppress_pairs := _pairs_on_gpu(nms, scores):
        detections = nms.in_rounds(boxes, scores, windows, suppress_pairs)
    else:
        detections = nms.in_tensors(boxes, scores, windows, suppress_pairs=suppress_pairs_together)
    if rest := image_by_image.incomplete_images(cast(Tensor, detections.complete)):
        detections = detections.with_images(rest, nms.image_by_image(boxes, scores, windows, rest))
    return _tensors(detections)


def _pairs_on_gpu(nms: Nms, scores: Tensor) -> CheckedPairs | None:
    """Return what suppresses pairs without synchronization: kernels, or plain tensors if tables of all pairs fit."""
    if has_kernels():
        from boxwright.nn.suppression.bit_matrix import suppress_by_bits

        return suppress_by_bits
    return fixed_shape.suppress_in_checked_rounds if fixed_shape.fits_on_gpu(scores, nms.max_total_detections) else None


def pair_decompositions(times: int = 1) -> dict[Any, Callable[..., Any]]:
    """Return decompositions for `torch.export` into fixed shapes that keep `boxwright::suppress_pairs`, for runtimes.

    Args:
        times: As for `Nms.in_tensors`.
    """

    def suppress(boxes: Tensor, scores: Tensor, windows: Tensor, *arguments: Any) -> _Tensors:
        nms, pairs = _from_operator(arguments), torch.ops.boxwright.suppress_pairs
        return _tensors(nms.in_tensors(boxes, scores, windows, suppress_pairs=pairs, times=times))

    return {torch.ops.boxwright.suppress.default: suppress}


def decompositions(times: int = 1) -> dict[Any, Callable[..., Any]]:
    """Return decompositions for `torch.export` of both operators into PyTorch's own.

    Args:
        times: As for `Nms.in_tensors`.
    """
    return {**pair_decompositions(times), torch.ops.boxwright.suppress_pairs.default: suppress_in_rounds}


def _tensors(of: PaddedDetections) -> _Tensors:
    return of.boxes, of.scores, of.labels, of.anchors, of.valid, cast(Tensor, of.complete)
