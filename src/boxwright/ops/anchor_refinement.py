"""Between two steps of a detector: what the later one starts from.

RefineDet, sections 3.2 and 3.3; SRN's selective two-step classification and regression (STC, STR), which are the same
two ideas on some levels alone.

Dimensions: B batch, A anchors, C columns of the class head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.ops.box_coder import BoxCoder
from boxwright.types import AnchorPredictions

Levels = tuple[int, ...] | None


@dataclass(frozen=True)
class RefinedStart:
    """Start from the boxes that the first step moved the anchors to: two-step cascaded regression.

    Attributes:
        box_coder: Decodes the first step's codes.
        levels: Where that is so, by number from the finest, while anchors of other levels stay (SRN's STR); None for
            all.
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
    """Start from the anchors as they were laid: one-step regression."""

    def __call__(self, first: AnchorPredictions) -> Tensor:
        """Return the same anchors."""
        return first.anchors


StartRule = RefinedStart | TiledStart


@dataclass(frozen=True)
class AnchorFilter:
    """Negative anchor filtering: leave out anchors that surely hold no object.

    Attributes:
        objectness_threshold: The least probability of an object, 1 - θ; 0 leaves out none.
        to_scores: Makes the first step's logits [B, A, C] probabilities, as its loss means them.
        background: Columns before the classes; the likeliest class counts.
        levels: Where anchors are left out, by number from the finest (SRN's STC); None for all.
    """

    objectness_threshold: float
    to_scores: Callable[[Tensor], Tensor]
    background: int = 1
    levels: Levels = None

    def __call__(self, first: AnchorPredictions) -> Tensor:
        """Return bool [B, A]: whether an anchor is left out."""
        scores = self.to_scores(first.class_logits.detach().float())
        left_out = scores[..., self.background :].amax(-1) < self.objectness_threshold
        return left_out if self.levels is None else left_out & first.on_levels(self.levels)


@dataclass(frozen=True)
class SecondStep:
    """What a second step starts from.

    Attributes:
        start: From which boxes it measures.
        filter: Which anchors it leaves out; None for no such rule.
    """

    start: StartRule
    filter: AnchorFilter | None = None

    def __call__(self, first: AnchorPredictions) -> tuple[Tensor, Tensor | None]:
        """Return anchors [B, A, 4] or [A, 4], xyxy in pixels, and which are left out, [B, A]; without gradient."""
        return self.start(first), None if self.filter is None else self.filter(first)
