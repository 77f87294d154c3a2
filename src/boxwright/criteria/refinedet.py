"""RefineDet's criterion: that of SSD, twice (RefineDet, section 3.4, equation 1).

Dimensions: B batch, A anchors, G groundtruth boxes (padded).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxwright.criteria.criterion import Count, Description, count_here
from boxwright.criteria.ssd import SSDCriterion
from boxwright.ops.anchor_refinement import SecondStep
from boxwright.types import Predictions, Targets

__all__ = ["RefineDetCriterion"]

_FIRST = {
    "Loss/localization_loss": "Loss/refinement/localization_loss",
    "Loss/classification_loss": "Loss/refinement/objectness_loss",
}


@dataclass(frozen=True)
class RefineDetCriterion:
    """Compare both steps' predictions with groundtruth.

    The first step learns, from the anchors as they were laid, whether there is an object and where. The
    second is matched anew, on the boxes that the first arrived at, and learns of which class it is and
    where from there. Each has negatives and a divisor of its own. No gradient of the second step
    reaches the first through boxes or through the filter.

    Attributes:
        refinement: Judges the first step, with one class: object.
        detection: Judges the second.
        second_step: Says what the second step starts from.
    """

    refinement: SSDCriterion
    detection: SSDCriterion
    second_step: SecondStep

    @property
    def divisors(self) -> int:
        """How often `count` is called."""
        return self.refinement.divisors + self.detection.divisors

    def __call__(self, predictions: Predictions, targets: Targets, count: Count = count_here) -> dict[str, Tensor]:
        """Compute the losses of a batch, or of a part of one.

        Args:
            predictions: What the network said.
            targets: The groundtruth, in pixels of the network's input.
            count: Turns the matched anchors here into those of the whole batch, by which losses are
                divided; called for the first step, then for the second.

        Returns:
            `Loss/refinement/localization_loss`, `Loss/refinement/objectness_loss`, `Loss/localization_loss`
            and `Loss/classification_loss`, scalars; those of the parts of a batch add up to those of the batch.
        """
        first = self.refinement(_first_step(predictions), _as_objects(targets), count)
        second = self.detection(self.second_step(predictions), targets, count)
        return {_FIRST[name]: loss for name, loss in first.items()} | second

    @torch.no_grad()
    def describe(self, predictions: Predictions, targets: Targets) -> Description:
        """Say how a batch was assigned in both steps, and what its anchors cost.

        Args:
            predictions: What the network said.
            targets: The groundtruth, in pixels of the network's input.

        Returns:
            The second step's tags as SSD's; the first step's, with `Refinement/` before them.
        """
        first = self.refinement.describe(_first_step(predictions), _as_objects(targets))
        step = self.second_step(predictions)
        second = self.detection.describe(step, targets)
        passed_over = step.passed_over.sum(1).float().mean() if step.passed_over is not None else torch.zeros(())
        return Description(
            scalars={f"Refinement/{tag}": value for tag, value in first.scalars.items()}
            | {"Refinement/AvgNumFilteredAnchorsPerImage": passed_over}
            | second.scalars,
            distributions={f"Refinement/{tag}": values for tag, values in first.distributions.items()}
            | second.distributions,
        )


def _first_step(predictions: Predictions) -> Predictions:
    """Bring the first step's predictions into the form of a one-step network's."""
    refinement = predictions.refinement
    if refinement is None:
        raise ValueError("the predictions have no first step: is the network a RefineDet?")
    return replace(predictions, box_codes=refinement.box_codes, class_logits=refinement.class_logits, refinement=None)


def _as_objects(targets: Targets) -> Targets:
    """Make one class of all."""
    return replace(targets, labels=torch.zeros_like(targets.labels), class_scores=None, confidences=None)
