"""Target assignment: the groundtruth box that each anchor matches, and the anchor's targets and weights.

Groundtruth and anchors share a frame: pixels, or units of the network's input (0..1) for coders or similarities that
depend on the unit, as TensorFlow uses the latter.

Dimensions: B batch, G groundtruth boxes (padded), A anchors, C columns of the class targets.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.base.device import is_plain
from boxwright.nn.criteria.losses import NO_COLUMN
from boxwright.nn.ops.boxes import BoxCoder, KeypointBoxCoder, Similarity, negative_squared_distance, pairwise_iou
from boxwright.types import Targets

UNMATCHED = -1
IGNORED = -2
# Caffe's: its bipartite step takes pairs that overlap by more.
_LEAST_SIMILARITY = 1e-6


class Matcher(Protocol):
    """Matches anchors to groundtruth boxes by similarity."""

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED.

        Args:
            similarity: float [B, G, A]; -inf in rows of padding.
            valid: bool [B, G]; False for padding, and for boxes without weight.
        """
        ...


def has_match(match: Tensor, among: Tensor, count: int) -> Tensor:
    """Return which groundtruth boxes are matched, bool [B, G], by the anchors `among` bool [B, A]."""
    # An extra column takes unmatched anchors, and makes one for any number of objects. True is written directly, as
    # CUDA has no scatter maximum of bools.
    matched = torch.zeros(len(match), count + 1, dtype=torch.bool, device=match.device)
    return matched.scatter_(1, torch.where(among & (match >= 0), match, count), True)[:, :count]


@dataclass(frozen=True)
class ArgmaxMatcher:
    """Match each anchor to its most similar groundtruth box, if similar enough.

    With a best similarity s, an anchor is matched if s >= matched_threshold, negative if s < unmatched_threshold, and
    ignored in between; with `negatives_lower_than_unmatched` off, the latter two are swapped. With
    `force_match_for_each_row`, each groundtruth box also gets its most similar anchor, at any similarity; if two boxes
    want the same anchor, the first gets it. (TensorFlow's argmax_matcher.)

    Attributes:
        matched_threshold: The minimum similarity of a match; None matches every anchor to its best.
        negatives_lower_than_unmatched: Which of the two lower ranges is negative.
        force_match_for_each_row: Whether every groundtruth box gets an anchor.
    """

    matched_threshold: float | None = 0.5
    unmatched_threshold: float = 0.5
    negatives_lower_than_unmatched: bool = True
    force_match_for_each_row: bool = False

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED."""
        batch, rows, columns = similarity.shape
        if rows == 0:
            return torch.full((batch, columns), UNMATCHED, dtype=torch.int64, device=similarity.device)
        match = self._match_by_threshold(similarity)
        if not self.force_match_for_each_row:
            return match
        row = torch.arange(rows, device=similarity.device).expand(batch, rows)
        wanting = row.masked_fill(~valid, rows)
        forced = torch.full((batch, columns), rows, dtype=torch.int64, device=similarity.device)
        forced.scatter_reduce_(1, similarity.argmax(dim=2), wanting, reduce="amin")
        return torch.where(forced < rows, forced, match)

    def _match_by_threshold(self, similarity: Tensor) -> Tensor:
        # Both return the first of equals, but argmax takes ten times as long across rows.
        best, best_row = similarity.max(dim=1)
        if self.matched_threshold is None:
            return best_row
        low, between = (UNMATCHED, IGNORED) if self.negatives_lower_than_unmatched else (IGNORED, UNMATCHED)
        match = best_row.masked_fill(best < self.matched_threshold, between)
        return match.masked_fill_(best < self.unmatched_threshold, low)


@dataclass(frozen=True)
class OwnLowQualityMatcher:
    """Match each anchor to its most similar groundtruth box, if similar enough or a best anchor of some box.

    An anchor with the highest similarity to some groundtruth box, ties included, is matched at any similarity, but to
    its own most similar box. (Detectron's, torchvision's and kerod's rule.)

    Attributes:
        unmatched_threshold: Below it an anchor is negative; between the two it is ignored.
    """

    matched_threshold: float = 0.7
    unmatched_threshold: float = 0.3

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED."""
        match = ArgmaxMatcher(self.matched_threshold, self.unmatched_threshold)(similarity, valid)
        if similarity.shape[1] == 0:
            return match
        best = similarity.amax(dim=2, keepdim=True)
        surpassed_by_none = ((similarity == best) & valid[..., None]).any(dim=1)
        return torch.where(surpassed_by_none, similarity.max(dim=1).indices, match)


@dataclass(frozen=True)
class LastLowQualityMatcher:
    """Match each anchor to its most similar groundtruth box, if similar enough, else to one whose best anchor it is.

    As `OwnLowQualityMatcher`, but an anchor matched only for that reason is matched to the box whose best anchor it is,
    the last of several. For a box that overlaps nothing all anchors tie and match, unless other boxes claim them.
    (AlignDet's rule.)

    Attributes:
        unmatched_threshold: Below it an anchor is negative; between the two it is ignored.
    """

    matched_threshold: float = 0.7
    unmatched_threshold: float = 0.7

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED."""
        match = ArgmaxMatcher(self.matched_threshold, self.unmatched_threshold)(similarity, valid)
        rows = similarity.shape[1]
        if rows == 0:
            return match
        best = similarity.amax(dim=2, keepdim=True)
        row = torch.arange(rows, device=similarity.device)[:, None]
        last = torch.where((similarity == best) & valid[..., None], row, UNMATCHED).amax(dim=1)
        return torch.where((match < 0) & (last >= 0), last, match)


@dataclass(frozen=True)
class BipartiteMatcher:
    """Match pairs one to one, greedily by similarity.

    Every valid groundtruth box gets an anchor while there are any. (TF1's bipartite_matcher; among equally similar
    pairs the first box's first anchor wins, which TF leaves open.)
    """

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, or UNMATCHED."""
        similarity = similarity.masked_fill(~valid[..., None], -torch.inf)
        match: Tensor = (_greedy_pairs if is_plain(similarity) else _operator)(similarity)
        return match


def _greedy_pairs(similarity: Tensor) -> Tensor:
    """Return the row matched to each column of [B, G, A], or UNMATCHED, among values above -inf."""
    batch, rows, columns = similarity.shape
    left, pairs = similarity.clone(), []
    for _ in range(min(rows, columns)):
        best, place = left.flatten(1).max(1)
        row, column = place // columns, place % columns
        pairs.append((best, row, column))
        left.scatter_(1, row[:, None, None].expand(-1, 1, columns), -torch.inf)
        left.scatter_(2, column[:, None, None].expand(-1, rows, 1), -torch.inf)
    match = torch.full((batch, columns + 1), UNMATCHED, dtype=torch.int64, device=similarity.device)
    if pairs:
        scores, matched, places = (torch.stack(of_all, dim=1) for of_all in zip(*pairs, strict=True))
        # Rows without a pair are written to an extra column, which is cut off.
        match.scatter_(1, places.masked_fill_(scores == -torch.inf, columns), matched)
    return match[:, :columns].contiguous()


# Compiled as Python, its loop would be unrolled for every number of boxes.
_operator = torch.library.custom_op("boxwright::greedy_pairs", _greedy_pairs, mutates_args=())


@_operator.register_fake
def _(similarity: Tensor) -> Tensor:
    return similarity.new_empty(similarity.shape[0], similarity.shape[2], dtype=torch.int64)


@dataclass(frozen=True)
class BipartiteArgmaxMatcher:
    """Match each groundtruth box to a separate anchor, then match the other anchors by thresholds.

    The first step is greedy over all pairs with positive similarity, most similar first, so two boxes with the same
    best anchor get two anchors. (SSD's and RefineDet's Caffe code.)

    Attributes:
        matched_threshold: The minimum similarity of the other matches.
        unmatched_threshold: Below it an anchor is negative; between the two it is ignored.
    """

    matched_threshold: float = 0.5
    unmatched_threshold: float = 0.5

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED."""
        own = BipartiteMatcher()(similarity.masked_fill(similarity <= _LEAST_SIMILARITY, -torch.inf), valid)
        other = ArgmaxMatcher(self.matched_threshold, self.unmatched_threshold)(similarity, valid)
        return torch.where(own >= 0, own, other)


@dataclass(frozen=True)
class ClassColumns:
    """A class head's columns, and the column of unmatched anchors.

    Attributes:
        background: Columns before the foreground: 1 where column 0 is background, else 0.
        unmatched: The column of an unmatched anchor; NO_COLUMN for all zeros. Without background, TF uses the first
            class.
    """

    num_classes: int
    background: int = 1
    unmatched: int = 0

    @property
    def count(self) -> int:
        """The number of columns, C."""
        return self.num_classes + self.background

    def with_object(self, classes: Tensor) -> Tensor:
        """Return which targets, int64 [B, A] or float [B, A, C], are foreground: bool [B, A]."""
        return classes >= self.background if classes.ndim == 2 else (classes[..., self.background :] > 0).any(-1)


@dataclass(frozen=True)
class AnchorTargets:
    """The targets of each anchor.

    Attributes:
        match: int64 [B, A]: the matched groundtruth box, or the matcher's UNMATCHED or IGNORED.
        box_codes: float32 [B, A, code size]; zeros if unmatched, NaN if unknown (keypoints).
        box_weights: float32 [B, A]; zero if unmatched.
        classes: int64 [B, A]: the column that should be 1, or NO_COLUMN; float32 [B, A, C] for soft targets.
        class_weights: float32 [B, A, 1], or [B, A, C] for weights per column; zero if ignored.
    """

    match: Tensor
    box_codes: Tensor
    box_weights: Tensor
    classes: Tensor
    class_weights: Tensor

    def rows(self, index: Tensor) -> AnchorTargets:
        """Return the targets of the anchors of an index int64 [B, N]."""
        return AnchorTargets(*(gather_rows(getattr(self, field.name), index) for field in fields(self)))


def gather_rows(values: Tensor, index: Tensor) -> Tensor:
    """Return the rows [B, N, …] of values [B, A, …] at an index int64 [B, N]."""
    if values.ndim == 2:
        return values.gather(1, index)
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))


class Adjustment(Protocol):
    """Changes the targets that an assigner gives to anchors."""

    def __call__(
        self, assigner: TargetAssigner, anchors: Tensor, targets: Targets, assigned: AnchorTargets
    ) -> AnchorTargets:
        """Return the targets that are learned.

        Args:
            targets: The groundtruth; of a batch without any, a row of padding for each image.
            assigned: The targets before.
        """
        ...


@dataclass(frozen=True)
class TargetAssigner:
    """Compare, match, and encode the targets of a batch.

    Attributes:
        box_coder: Encodes the matched box relative to the anchor.
        similarity: From boxes [B, G, 4] and [A, 4] to [B, G, A].
        negative_class_weight: The weight of unmatched anchors in classification.
        adjust: What becomes of the targets before they are learned; None leaves them.
    """

    columns: ClassColumns
    matcher: Matcher
    box_coder: BoxCoder
    similarity: Similarity = pairwise_iou
    negative_class_weight: float = 1.0
    adjust: Adjustment | None = None

    @property
    def unit_free(self) -> bool:
        """Whether the result is independent of the units of x and y."""
        # Overlaps are ratios of areas; distances have a unit.
        return self.box_coder.unit_free and self.similarity is not negative_squared_distance

    @torch.no_grad()
    def __call__(self, anchors: Tensor, targets: Targets) -> AnchorTargets:
        """Return the targets of every anchor, float32 [A, 4] or [B, A, 4], xyxy."""
        if targets.boxes.shape[1] == 0:
            targets = _one_padding_row(targets)
        similarity = self.similarity(targets.boxes, anchors).masked_fill_(~targets.valid[..., None], -torch.inf)
        match = self.matcher(similarity, targets.valid & (targets.weights > 0))
        # In an image without boxes nothing matches and nothing is ignored, regardless of the matcher's result for
        # padding.
        match = match.masked_fill(~targets.valid.any(dim=1, keepdim=True), UNMATCHED)
        unmatched, row = match < 0, match.clamp(min=0)
        weights = targets.weights.gather(1, row)
        class_weights = weights.masked_fill(unmatched, self.negative_class_weight).masked_fill_(match == IGNORED, 0.0)
        assigned = AnchorTargets(
            match=match,
            box_codes=self._codes(targets, row, anchors).masked_fill_(unmatched[..., None], 0.0),
            box_weights=weights.masked_fill_(unmatched, 0.0),
            classes=self._class_targets(unmatched, targets, row),
            class_weights=class_weights[..., None],
        )
        return assigned if self.adjust is None else self.adjust(self, anchors, targets, assigned)

    def _codes(self, targets: Targets, row: Tensor, anchors: Tensor) -> Tensor:
        boxes = targets.boxes.gather(1, row[..., None].expand(-1, -1, 4))
        if not isinstance(self.box_coder, KeypointBoxCoder):
            return self.box_coder.encode(boxes, anchors)
        if targets.keypoints is None:
            return self.box_coder.encode(boxes, anchors)
        points = targets.keypoints.shape[2]
        keypoints = targets.keypoints.gather(1, row[..., None, None].expand(-1, -1, points, 2))
        return self.box_coder.encode(boxes, anchors, keypoints)

    def _class_targets(self, unmatched: Tensor, targets: Targets, row: Tensor) -> Tensor:
        columns = self.columns
        if targets.class_scores is None:
            return (targets.labels + columns.background).gather(1, row).masked_fill_(unmatched, columns.unmatched)
        scores = targets.class_scores.gather(1, row[..., None].expand(-1, -1, columns.num_classes))
        wanted = F.pad(scores, (columns.background, 0)).masked_fill_(unmatched[..., None], 0.0)
        if columns.unmatched != NO_COLUMN:
            wanted[..., columns.unmatched].masked_fill_(unmatched, 1.0)
        return wanted


@dataclass(frozen=True)
class ConfidenceTargets:
    """Learn confidences as class targets (TF's `use_confidences_as_targets`).

    A confidence above 0 is an explicit positive and its own target; one below 0 is an explicit negative with target 0;
    0 is implicit. Explicit columns have weight 1, others `implicit_weight`. Boxes are learned if some class is
    positive. As in TensorFlow, object weights are ignored, and anchors between the matcher's thresholds are implicit
    negatives.

    Attributes:
        implicit_weight: The weight of columns without explicit confidence.
    """

    implicit_weight: float = 1.0

    def __call__(
        self, assigner: TargetAssigner, anchors: Tensor, targets: Targets, assigned: AnchorTargets
    ) -> AnchorTargets:
        """Return the targets of every anchor; `class_weights` is [B, A, C]."""
        del anchors
        confidences = _confidences(targets, assigned.match, assigner.columns.num_classes)
        explicit = (confidences != 0).float()
        positive = (confidences > 0).any(-1, keepdim=True).float()
        classes, weights = confidences.clamp(min=0), explicit + (1 - explicit) * self.implicit_weight
        if assigner.columns.background:
            background_weight = positive + (1 - positive) * self.implicit_weight
            classes = torch.cat([1 - positive, classes], dim=-1)
            weights = torch.cat([background_weight, weights], dim=-1)
        return replace(
            assigned,
            box_codes=torch.where(positive > 0, assigned.box_codes, 0.0),
            box_weights=positive.squeeze(-1),
            classes=classes,
            class_weights=weights,
        )


def _confidences(targets: Targets, match: Tensor, num_classes: int) -> Tensor:
    """Return the confidences of each anchor's object, float [B, A, K]; 0 if it has none."""
    stated = targets.confidences
    if stated is None:
        stated = F.one_hot(targets.labels, num_classes).float()
    rows = match.clamp(min=0)[..., None].expand(-1, -1, stated.shape[2])
    return torch.where((match >= 0)[..., None], stated.gather(1, rows), 0.0)


def _one_padding_row(targets: Targets) -> Targets:
    """Return targets with a row of padding for a batch without boxes, so that gathering works."""
    batch = targets.boxes.shape[0]
    return Targets(
        boxes=targets.boxes.new_zeros(batch, 1, 4),
        labels=targets.labels.new_zeros(batch, 1),
        weights=targets.weights.new_zeros(batch, 1),
        valid=targets.valid.new_zeros(batch, 1),
    )
