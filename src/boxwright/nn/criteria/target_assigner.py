"""Target assignment: the targets and weights of each anchor.

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

from boxwright.nn.criteria.class_index_losses import NO_COLUMN
from boxwright.nn.ops.box_coder import BoxCoder, KeypointBoxCoder
from boxwright.nn.ops.boxes import Similarity, negative_squared_distance, pairwise_iou
from boxwright.nn.ops.matcher import IGNORED, UNMATCHED, Matcher
from boxwright.types import Targets


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
        return AnchorTargets(*(rows_of(getattr(self, field.name), index) for field in fields(self)))


def rows_of(values: Tensor, index: Tensor) -> Tensor:
    """Return the rows [B, N, …] of values [B, A, …] at an index int64 [B, N]."""
    if values.ndim == 2:
        return values.gather(1, index)
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))


class Assigner(Protocol):
    """Assigns targets to anchors."""

    @property
    def columns(self) -> ClassColumns:
        """The class head's columns."""
        ...

    @property
    def box_coder(self) -> BoxCoder:
        """Encodes boxes."""
        ...

    @property
    def unit_free(self) -> bool:
        """Whether the result is independent of the units of x and y."""
        ...

    def __call__(self, anchors: Tensor, targets: Targets) -> AnchorTargets:
        """Return the targets of every anchor.

        Args:
            anchors: float32 [A, 4] or [B, A, 4], xyxy.
        """
        ...


@dataclass(frozen=True)
class TargetAssigner:
    """Compare, match, and encode the targets of a batch.

    Attributes:
        box_coder: Encodes the matched box relative to the anchor.
        similarity: From boxes [B, G, 4] and [A, 4] to [B, G, A].
        negative_class_weight: The weight of unmatched anchors in classification.
    """

    columns: ClassColumns
    matcher: Matcher
    box_coder: BoxCoder
    similarity: Similarity = pairwise_iou
    negative_class_weight: float = 1.0

    @property
    def unit_free(self) -> bool:
        """Whether the result is independent of the units of x and y."""
        # Overlaps are ratios of areas; distances have a unit.
        return self.box_coder.unit_free and self.similarity is not negative_squared_distance

    @torch.no_grad()
    def __call__(self, anchors: Tensor, targets: Targets) -> AnchorTargets:
        """Return the targets of every anchor."""
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
        return AnchorTargets(
            match=match,
            box_codes=self._codes(targets, row, anchors).masked_fill_(unmatched[..., None], 0.0),
            box_weights=weights.masked_fill_(unmatched, 0.0),
            classes=self._class_targets(unmatched, targets, row),
            class_weights=class_weights[..., None],
        )

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
class ConfidenceTargetAssigner:
    """Use confidences as class targets (TF's `use_confidences_as_targets`).

    A confidence above 0 is an explicit positive and its own target; one below 0 is an explicit negative with target 0;
    0 is implicit. Explicit columns have weight 1, others `implicit_weight`. Boxes are learned if some class is
    positive. As in TensorFlow, object weights are ignored, and anchors between the matcher's thresholds are implicit
    negatives.

    Attributes:
        implicit_weight: The weight of columns without explicit confidence.
    """

    assigner: TargetAssigner
    implicit_weight: float = 1.0

    @property
    def columns(self) -> ClassColumns:
        """The class head's columns."""
        return self.assigner.columns

    @property
    def box_coder(self) -> BoxCoder:
        """Encodes boxes."""
        return self.assigner.box_coder

    @property
    def unit_free(self) -> bool:
        """Whether the result is independent of the units of x and y."""
        return self.assigner.unit_free

    @torch.no_grad()
    def __call__(self, anchors: Tensor, targets: Targets) -> AnchorTargets:
        """Return the targets of every anchor; `class_weights` is [B, A, C]."""
        assigned = self.assigner(anchors, targets)
        confidences = self._confidences(targets, assigned.match)
        explicit = (confidences != 0).float()
        positive = (confidences > 0).any(-1, keepdim=True).float()
        classes, weights = confidences.clamp(min=0), explicit + (1 - explicit) * self.implicit_weight
        if self.columns.background:
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

    def _confidences(self, targets: Targets, match: Tensor) -> Tensor:
        """Return the confidences of each anchor's object, float [B, A, K]; 0 if it has none."""
        stated = targets.confidences
        if stated is None:
            stated = F.one_hot(targets.labels, self.columns.num_classes).float()
        if stated.shape[1] == 0:
            return stated.new_zeros(*match.shape, stated.shape[2])
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
