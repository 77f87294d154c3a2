"""Target assignment: what each anchor should predict, and how much it counts.

Groundtruth and anchors come in one frame: pixels, or units of the network's input (0..1) where a
coder or similarity depends on that, as TensorFlow's frame is the latter.

Dimensions: B batch, G groundtruth boxes (padded), A anchors, C columns of the class targets.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.criteria.class_index_losses import NO_COLUMN
from boxwright.ops.box_coder import BoxCoder, KeypointBoxCoder
from boxwright.ops.boxes import pairwise_iou
from boxwright.ops.matcher import IGNORED, UNMATCHED, Matcher
from boxwright.ops.similarity import Similarity, negative_squared_distance
from boxwright.types import Targets


@dataclass(frozen=True)
class ClassColumns:
    """Which columns a class head has, and what they say of an anchor without an object.

    Attributes:
        num_classes: Foreground classes, K.
        background: Columns before the foreground: 1 where column 0 is background, else 0.
        unmatched: The column of an anchor without an object; NO_COLUMN where background is encoded as all zeros.
            Where there is no background, TF takes the first class for it.
    """

    num_classes: int
    background: int = 1
    unmatched: int = 0

    @property
    def count(self) -> int:
        """Columns in all, C."""
        return self.num_classes + self.background

    def with_object(self, classes: Tensor) -> Tensor:
        """Return which targets, int64 [B, A] or float [B, A, C], are of anything but background: bool [B, A]."""
        return classes >= self.background if classes.ndim == 2 else (classes[..., self.background :] > 0).any(-1)


@dataclass(frozen=True)
class AnchorTargets:
    """What each anchor should predict.

    Attributes:
        match: int64 [B, A]: the matched groundtruth box, or the matcher's UNMATCHED or IGNORED.
        box_codes: float32 [B, A, code size]; zeros where unmatched, NaN where not known (keypoints).
        box_weights: float32 [B, A]; zero where unmatched.
        classes: int64 [B, A]: the column that should be 1, or NO_COLUMN; float32 [B, A, C] where targets are soft.
        class_weights: float32 [B, A, 1], or [B, A, C] where columns count apart; zero where ignored.
    """

    match: Tensor
    box_codes: Tensor
    box_weights: Tensor
    classes: Tensor
    class_weights: Tensor

    def rows(self, index: Tensor) -> AnchorTargets:
        """Return the targets of some anchors, whose index int64 [B, N] differs from image to image."""
        return AnchorTargets(*(rows_of(getattr(self, field.name), index) for field in fields(self)))


def rows_of(values: Tensor, index: Tensor) -> Tensor:
    """Return some rows of each image.

    Args:
        values: [B, A, …].
        index: int64 [B, N].

    Returns:
        [B, N, …].
    """
    if values.ndim == 2:
        return values.gather(1, index)
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))


class Assigner(Protocol):
    """Decides what each anchor should predict."""

    @property
    def columns(self) -> ClassColumns:
        """The class head's columns."""
        ...

    @property
    def box_coder(self) -> BoxCoder:
        """Writes boxes as codes."""
        ...

    @property
    def unit_free(self) -> bool:
        """Whether the same comes out whatever the units of x and y."""
        ...

    def __call__(self, anchors: Tensor, targets: Targets) -> AnchorTargets:
        """Assign.

        Args:
            anchors: float32 [A, 4] or [B, A, 4], xyxy.
            targets: The groundtruth, in the same frame.
        """
        ...


@dataclass(frozen=True)
class TargetAssigner:
    """Compare, match, and write down the targets of the whole batch.

    Attributes:
        columns: The class head's columns.
        matcher: Decides from similarities.
        box_coder: Writes the matched box as the anchor's code.
        similarity: Compares [B, G, 4] and [A, 4] boxes into [B, G, A].
        negative_class_weight: The weight of unmatched anchors in classification.
    """

    columns: ClassColumns
    matcher: Matcher
    box_coder: BoxCoder
    similarity: Similarity = pairwise_iou
    negative_class_weight: float = 1.0

    @property
    def unit_free(self) -> bool:
        """Whether the same comes out whatever the units of x and y."""
        return self.box_coder.unit_free and self.similarity is not negative_squared_distance

    @torch.no_grad()
    def __call__(self, anchors: Tensor, targets: Targets) -> AnchorTargets:
        """Return the targets of every anchor."""
        if targets.boxes.shape[1] == 0:
            targets = _one_padding_row(targets)
        similarity = self.similarity(targets.boxes, anchors).masked_fill_(~targets.valid[..., None], -torch.inf)
        match = self.matcher(similarity, targets.valid & (targets.weights > 0))
        # Whatever the matcher makes of padding: in an image without boxes nothing matches, and nothing is ignored.
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
    """Take confidences as class targets (TF's `use_confidences_as_targets`).

    A confidence above 0 is an explicit positive, and the target itself; one below 0 an explicit
    negative, with target 0; 0 says nothing. Explicit columns count fully, others by
    `implicit_weight`. Boxes are learnt where some class is positive. The weights of objects do not
    enter, and anchors between the matcher's thresholds are implicit negatives, as in TensorFlow.

    Attributes:
        assigner: Matches anchors and writes box codes.
        implicit_weight: What a column counts of which nothing is said.
    """

    assigner: TargetAssigner
    implicit_weight: float = 1.0

    @property
    def columns(self) -> ClassColumns:
        """The class head's columns."""
        return self.assigner.columns

    @property
    def box_coder(self) -> BoxCoder:
        """Writes boxes as codes."""
        return self.assigner.box_coder

    @property
    def unit_free(self) -> bool:
        """Whether the same comes out whatever the units of x and y."""
        return self.assigner.unit_free

    @torch.no_grad()
    def __call__(self, anchors: Tensor, targets: Targets) -> AnchorTargets:
        """Return the targets of every anchor; `class_weights` is [B, A, C]."""
        found = self.assigner(anchors, targets)
        confidences = self._confidences(targets, found.match)
        explicit = (confidences != 0).float()
        positive = (confidences > 0).any(-1, keepdim=True).float()
        classes, weights = confidences.clamp(min=0), explicit + (1 - explicit) * self.implicit_weight
        if self.columns.background:
            background_weight = positive + (1 - positive) * self.implicit_weight
            classes = torch.cat([1 - positive, classes], dim=-1)
            weights = torch.cat([background_weight, weights], dim=-1)
        return replace(
            found,
            box_codes=torch.where(positive > 0, found.box_codes, 0.0),
            box_weights=positive.squeeze(-1),
            classes=classes,
            class_weights=weights,
        )

    def _confidences(self, targets: Targets, match: Tensor) -> Tensor:
        """Return the confidences of each anchor's object, float [B, A, K]; 0 where it has none."""
        stated = targets.confidences
        if stated is None:
            stated = F.one_hot(targets.labels, self.columns.num_classes).float()
        if stated.shape[1] == 0:
            return stated.new_zeros(*match.shape, stated.shape[2])
        rows = match.clamp(min=0)[..., None].expand(-1, -1, stated.shape[2])
        return torch.where((match >= 0)[..., None], stated.gather(1, rows), 0.0)


def _one_padding_row(targets: Targets) -> Targets:
    """Give a batch without any box one row of padding, so that there is a row to gather."""
    batch = targets.boxes.shape[0]
    return Targets(
        boxes=targets.boxes.new_zeros(batch, 1, 4),
        labels=targets.labels.new_zeros(batch, 1),
        weights=targets.weights.new_zeros(batch, 1),
        valid=targets.valid.new_zeros(batch, 1),
    )
