"""Between RefineDet's two steps: what the second one starts from (RefineDet, sections 3.2 and 3.3).

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from boxwright.ops.box_coder import BoxCoder
from boxwright.types import AnchorPredictions, RefineDetPredictions

__all__ = ["AnchorFilter", "RefinedStart", "SecondStep", "StartRule", "TiledStart"]


@dataclass(frozen=True)
class RefinedStart:
    """Start from the boxes that the first step moved the anchors to: two-step cascaded regression.

    Attributes:
        box_coder: Decodes the first step's codes.
    """

    box_coder: BoxCoder

    def __call__(self, anchors: Tensor, refinement: AnchorPredictions) -> Tensor:
        """Return float32 [B, A, 4], xyxy in the same unit; not clipped."""
        return self.box_coder.decode(refinement.box_codes.detach().float(), anchors)


@dataclass(frozen=True)
class TiledStart:
    """Start from the anchors as they were laid: one-step regression."""

    def __call__(self, anchors: Tensor, refinement: AnchorPredictions) -> Tensor:
        """Return the same anchors."""
        del refinement
        return anchors


StartRule = RefinedStart | TiledStart


@dataclass(frozen=True)
class AnchorFilter:
    """Negative anchor filtering: leave out anchors that surely hold no object.

    Attributes:
        objectness_threshold: The least probability of an object, 1 - θ; 0 leaves out none.
        to_scores: Makes the first step's logits [B, A, 2] probabilities, as its loss means them.
    """

    objectness_threshold: float
    to_scores: Callable[[Tensor], Tensor]

    def __call__(self, refinement: AnchorPredictions) -> Tensor:
        """Return bool [B, A]: whether an anchor is left out."""
        objectness = self.to_scores(refinement.class_logits.detach().float())[..., 1]
        return objectness < self.objectness_threshold


@dataclass(frozen=True)
class SecondStep:
    """The second step's predictions, with the anchors that it starts from.

    What judges an SSD's predictions then does for them.

    Attributes:
        start: From which boxes the second step measures.
        filter: Which anchors it leaves out.
    """

    start: StartRule
    filter: AnchorFilter

    def __call__(self, predictions: RefineDetPredictions) -> AnchorPredictions:
        """Return the second step's predictions, with anchors [B, A, 4] or [A, 4] and `filtered` [B, A]."""
        first = predictions.refinement
        return replace(predictions.detection, anchors=self.start(first.anchors, first), filtered=self.filter(first))
