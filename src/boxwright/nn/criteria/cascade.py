"""The criterion of multi-step detectors (RefineDet, SRN, AlignDet): SSD's for each step.

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from boxwright.nn.criteria.anchor import AnchorCriterion
from boxwright.nn.criteria.criterion import Description, LossTerm
from boxwright.nn.criteria.target_assigner import AnchorTargets
from boxwright.types import AnchorPredictions, CascadePredictions, Targets

_CLASSIFICATION, _LOCALIZATION = "Loss/classification_loss", "Loss/localization_loss"


def as_classes(targets: Targets) -> Targets:
    """Return the groundtruth unchanged: a step learns classes."""
    return targets


def as_objects(targets: Targets) -> Targets:
    """Return the groundtruth with a single class: a step learns objectness."""
    # Scores and confidences have a column for each class, and would be read in place of the labels.
    return replace(targets, labels=torch.zeros_like(targets.labels), class_scores=None, confidences=None)


@dataclass(frozen=True)
class Step:
    """The criterion of one step.

    Attributes:
        name: Part of its losses' names, as in `Loss/refinement/localization_loss`; empty for the last step.
        class_levels: The levels whose anchors learn classes, by index from the finest; None for all, () for none.
    """

    criterion: AnchorCriterion
    name: str = ""
    classification: str = "classification_loss"
    targets: Callable[[Targets], Targets] = as_classes
    class_levels: tuple[int, ...] | None = None
    box_levels: tuple[int, ...] | None = None

    def __call__(self, predictions: AnchorPredictions, targets: Targets) -> dict[str, LossTerm]:
        """Return the terms; each is summed over its own levels, and divided by the positives among them."""
        prefix = f"Loss/{self.name}/" if self.name else "Loss/"
        names = {_LOCALIZATION: f"{prefix}localization_loss", _CLASSIFICATION: f"{prefix}{self.classification}"}
        wanted, criterion = self.targets(targets), self.criterion
        if self.class_levels is None and self.box_levels is None:
            return {names[name]: term for name, term in criterion(predictions, wanted).items()}
        assigned, anchors, wanted = criterion.assign(predictions, wanted)
        terms = {}
        # Data-parallel processes wait for every gradient: predictions without a loss join a term, multiplied by 0.
        unjudged = 0.0 * (predictions.box_codes.sum() + predictions.class_logits.sum())
        for name, levels in ((_LOCALIZATION, self.box_levels), (_CLASSIFICATION, self.class_levels)):
            if levels != ():
                chosen = _on_levels(predictions, assigned, anchors, levels)
                term = criterion.losses(*chosen, wanted)[name]
                terms[names[name]] = replace(term, total=term.total + unjudged)
        return terms

    @property
    def tag(self) -> str:
        """The prefix of its tags in a log."""
        return f"{self.name.title().replace('_', '')}/" if self.name else ""


@dataclass(frozen=True)
class CascadeCriterion:
    """Compare the predictions of every step with groundtruth.

    Each step matches the boxes that it starts from, and has its own positives, negatives and divisor. No gradient of a
    later step reaches an earlier one through boxes or a filter (the network detaches them).
    """

    steps: tuple[Step, ...]

    def __call__(self, predictions: CascadePredictions, targets: Targets) -> dict[str, LossTerm]:
        """Return the terms of all steps, first to last."""
        terms: dict[str, LossTerm] = {}
        for step, said in zip(self.steps, predictions.steps, strict=True):
            terms |= step(said, targets)
        return terms

    @torch.no_grad()
    def describe(self, predictions: CascadePredictions, targets: Targets) -> Description:
        """Return SSD's tags of each step, earlier ones' with a prefix such as `Refinement/`, and filter counts.

        Anchors of all levels are described, including those that a step does not learn from.
        """
        whole = Description({}, {})
        following = (*predictions.steps[1:], None)
        for step, said, after in zip(self.steps, predictions.steps, following, strict=True):
            part, tag = step.criterion.describe(said, step.targets(targets)), step.tag
            scalars = {f"{tag}{name}": value for name, value in part.scalars.items()}
            if after is not None:
                filtered = torch.zeros(()) if after.filtered is None else after.filtered.sum(1).float().mean()
                scalars[f"{tag}AvgNumFilteredAnchorsPerImage"] = filtered
            distributions = {f"{tag}{name}": values for name, values in part.distributions.items()}
            whole = Description(whole.scalars | scalars, whole.distributions | distributions)
        return whole


def _on_levels(
    predictions: AnchorPredictions, assigned: AnchorTargets, anchors: Tensor, levels: tuple[int, ...] | None
) -> tuple[AnchorPredictions, AnchorTargets, Tensor]:
    """Return predictions, targets and anchors restricted to some levels."""
    if levels is None:
        return predictions, assigned, anchors
    rows = predictions.rows_of_levels(levels)

    def of_levels(values: Tensor, dimension: int = 1) -> Tensor:
        parts = [values.narrow(dimension, part.start, part.stop - part.start) for part in rows]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dimension)

    part = replace(
        predictions,
        box_codes=of_levels(predictions.box_codes),
        class_logits=of_levels(predictions.class_logits),
        anchors=of_levels(predictions.anchors, -2),
        # The part has no levels: its rows are no longer those that the network's maps laid.
        level_sizes=(),
        filtered=None if predictions.filtered is None else of_levels(predictions.filtered),
    )
    targets = AnchorTargets(*(of_levels(getattr(assigned, field.name)) for field in fields(assigned)))
    return part, targets, of_levels(anchors, -2)
