"""Between RefineDet's two steps: what the second one starts from (RefineDet, sections 3.2 and 3.3).

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from boxwright.ops.box_coder import BoxCoder
from boxwright.types import Predictions, Refinement

__all__ = ["AnchorFilter", "RefinedStart", "SecondStep", "StartRule", "TiledStart"]


@dataclass(frozen=True)
class RefinedStart:
    """Start from the boxes that the first step moved the anchors to: two-step cascaded regression.

    Attributes:
        box_coder: Decodes the first step's codes.
    """

    box_coder: BoxCoder

    def __call__(self, anchors: Tensor, refinement: Refinement) -> Tensor:
        """Move the anchors.

        Args:
            anchors: float32 [A, 4], xyxy, as they were laid.
            refinement: What the first step said; no gradient flows back to it.

        Returns:
            float32 [B, A, 4], xyxy in the same unit; not clipped.
        """
        return self.box_coder.decode(refinement.box_codes.detach().float(), anchors)


@dataclass(frozen=True)
class TiledStart:
    """Start from the anchors as they were laid: one-step regression."""

    def __call__(self, anchors: Tensor, refinement: Refinement) -> Tensor:
        """Leave the anchors.

        Args:
            anchors: float32 [A, 4], xyxy, as they were laid.
            refinement: Ignored.

        Returns:
            The same anchors.
        """
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

    def __call__(self, refinement: Refinement) -> Tensor:
        """Judge.

        Args:
            refinement: What the first step said.

        Returns:
            bool [B, A]: whether an anchor is left out.
        """
        objectness = self.to_scores(refinement.class_logits.detach().float())[..., 1]
        return objectness < self.objectness_threshold


@dataclass(frozen=True)
class SecondStep:
    """Bring a two-step network's predictions into the form of a one-step network's.

    Criterion and postprocessor of SSD then do for the second step what they do for SSD.

    Attributes:
        start: From which boxes the second step measures.
        filter: Which anchors it passes over.
    """

    start: StartRule
    filter: AnchorFilter

    def __call__(self, predictions: Predictions) -> Predictions:
        """Enter the anchors that the second step starts from.

        Args:
            predictions: What the network said.

        Returns:
            The same with anchors [B, A, 4] or [A, 4] and `passed_over` [B, A].

        Raises:
            ValueError: Where the network has no first step.
        """
        refinement = predictions.refinement
        if refinement is None:
            raise ValueError("the predictions have no first step: is the network a RefineDet?")
        anchors = self.start(predictions.anchors, refinement)
        return replace(predictions, anchors=anchors, passed_over=self.filter(refinement), refinement=None)
