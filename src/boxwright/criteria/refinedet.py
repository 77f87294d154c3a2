"""RefineDet's criterion: that of SSD, twice (RefineDet, section 3.4, equation 1).

Dimensions: B batch, A anchors, G groundtruth boxes (padded).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from boxwright.criteria.anchor import AnchorCriterion
from boxwright.criteria.criterion import Description
from boxwright.criteria.terms import LossTerm
from boxwright.ops.anchor_refinement import SecondStep
from boxwright.types import RefineDetPredictions, Targets

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

    refinement: AnchorCriterion
    detection: AnchorCriterion
    second_step: SecondStep

    def __call__(self, predictions: RefineDetPredictions, targets: Targets) -> dict[str, LossTerm]:
        """Return `Loss/refinement/localization_loss`, `Loss/refinement/objectness_loss`, and the second step's."""
        first = self.refinement(predictions.refinement, _as_objects(targets))
        second = self.detection(self.second_step(predictions), targets)
        return {_FIRST[name]: term for name, term in first.items()} | second

    @torch.no_grad()
    def describe(self, predictions: RefineDetPredictions, targets: Targets) -> Description:
        """Say how a batch was assigned in both steps, and what its anchors cost.

        Args:
            predictions: What the network said.
            targets: The groundtruth, in pixels of the network's input.

        Returns:
            The second step's tags as SSD's; the first step's, with `Refinement/` before them.
        """
        first = self.refinement.describe(predictions.refinement, _as_objects(targets))
        step = self.second_step(predictions)
        second = self.detection.describe(step, targets)
        filtered = torch.zeros(()) if step.filtered is None else step.filtered.sum(1).float().mean()
        return Description(
            scalars={f"Refinement/{tag}": value for tag, value in first.scalars.items()}
            | {"Refinement/AvgNumFilteredAnchorsPerImage": filtered}
            | second.scalars,
            distributions={f"Refinement/{tag}": values for tag, values in first.distributions.items()}
            | second.distributions,
        )


def _as_objects(targets: Targets) -> Targets:
    """Make one class of all."""
    return replace(targets, labels=torch.zeros_like(targets.labels), class_scores=None, confidences=None)
