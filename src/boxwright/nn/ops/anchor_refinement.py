"""The refined anchors of a detector's second step.

RefineDet, sections 3.2 and 3.3; SRN's selective two-step classification and regression (STC, STR) are the same two
ideas on some levels only.

Dimensions: B batch, A anchors, C columns of the class head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.nn.ops.box_coder import BoxCoder
from boxwright.types import AnchorPredictions

Levels = tuple[int, ...] | None


@dataclass(frozen=True)
class RefinedStart:
    """Start from the boxes decoded by the first step: two-step cascaded regression.

    Attributes:
        levels: The levels with refined boxes, by index from the finest, while others keep their anchors (SRN's STR);
            None for all.
    """

    box_coder: BoxCoder
    levels: Levels = None

    def __call__(self, first: AnchorPredictions) -> Tensor:
        """Return float32 [B, A, 4], xyxy in pixels; not clipped."""
        moved = self.box_coder.decode(first.box_codes.detach().float(), first.anchors)
        if self.levels is None:
            return moved
        return torch.where(first.on_levels(self.levels)[:, None], moved, first.anchors)


@dataclass(frozen=True)
class TiledStart:
    """Start from the original anchors: one-step regression."""

    def __call__(self, first: AnchorPredictions) -> Tensor:
        """Return the same anchors."""
        return first.anchors


StartRule = RefinedStart | TiledStart


@dataclass(frozen=True)
class AnchorFilter:
    """Negative anchor filtering: drop anchors that confidently hold no object.

    Attributes:
        objectness_threshold: The minimum probability of an object, 1 - θ; 0 drops none.
        to_scores: Converts the first step's logits [B, A, C] to probabilities.
        background: Columns before the classes, of which the most likely counts.
        levels: The levels that are filtered, by index from the finest (SRN's STC); None for all.
    """

    objectness_threshold: float
    to_scores: Callable[[Tensor], Tensor]
    background: int = 1
    levels: Levels = None

    def __call__(self, first: AnchorPredictions) -> Tensor:
        """Return which anchors are dropped, bool [B, A]."""
        scores = self.to_scores(first.class_logits.detach().float())
        left_out = scores[..., self.background :].amax(-1) < self.objectness_threshold
        return left_out if self.levels is None else left_out & first.on_levels(self.levels)


@dataclass(frozen=True)
class SecondStep:
    """The boxes and anchors of a second step.

    Attributes:
        filter: Selects the anchors to drop; None for none.
    """

    start: StartRule
    filter: AnchorFilter | None = None

    def __call__(self, first: AnchorPredictions) -> tuple[Tensor, Tensor | None]:
        """Return anchors [B, A, 4] or [A, 4], xyxy in pixels, and which are dropped, [B, A], without gradient."""
        return self.start(first), None if self.filter is None else self.filter(first)
