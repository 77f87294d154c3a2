"""SSD's criterion: assignment, losses, mining, weights (SSD, section 2.2; TF's SSDMetaArch.loss).

Multi-step detectors (RefineDet, SRN, AlignDet) have one for each step.

Expected loss weights are the average effect of sampling negatives, without its noise. TensorFlow's configuration
describes these methods, but its public code lacks them; they are implemented from the fields' descriptions. Both weight
the negatives of an image by a common β, so that they count as `negative_ratio` per positive, but at least as
`min_negatives`: β = min(1, max(negative_ratio × positives, min_negatives) / negatives).

Dimensions: B batch, A anchors, C columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.profiler import record_function

from boxwright.base.device import constants
from boxwright.nn.criteria.criterion import Description, LossTerm
from boxwright.nn.criteria.example_selection import BalancedSampler, HardExampleMiner
from boxwright.nn.criteria.losses import NO_COLUMN, ClassificationLoss, LocalizationLoss
from boxwright.nn.criteria.target_assigner import (
    IGNORED,
    UNMATCHED,
    AnchorTargets,
    ClassColumns,
    TargetAssigner,
    has_match,
)
from boxwright.types import AnchorPredictions, CascadePredictions, Targets


@dataclass(frozen=True)
class Balance:
    """The effective number of negatives.

    Attributes:
        min_negatives: The minimum of effective negatives per image.
        negative_ratio: Effective negatives per positive.
    """

    min_negatives: float = 0.0
    negative_ratio: float = 3.0

    def beta(self, positive: Tensor) -> Tensor:
        """Return the weight of negatives, float [B, 1], from each anchor's probability to be positive, float [B, A]."""
        positives = positive.sum(1, keepdim=True)
        # At least 1: an image in which all anchors match has no negatives to divide by.
        negatives = (positive.shape[1] - positives).clamp(min=1.0)
        return ((self.negative_ratio * positives).clamp(min=self.min_negatives) / negatives).clamp(max=1.0)


@dataclass(frozen=True)
class ExpectedSampling:
    """Weight each anchor by the foreground probability in its targets (EXPECTED_SAMPLING)."""

    balance: Balance

    def __call__(self, foreground: Tensor, match: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights, float [B, A], of each anchor's loss against its targets and against unmatched targets.

        Args:
            foreground: float [B, A] in 0..1; the sum of an anchor's foreground targets.
        """
        likely = foreground.clamp(0.0, 1.0)
        return likely, (1 - likely) * self.balance.beta(likely)


@dataclass(frozen=True)
class ReweightUnmatched:
    """Weight unmatched anchors only (REWEIGHTING_UNMATCHED_ANCHORS)."""

    balance: Balance

    def __call__(self, foreground: Tensor, match: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights as `ExpectedSampling` does, from `match` int64 [B, A]; `foreground` is unused."""
        matched = (match >= 0).to(foreground.dtype)
        return matched, (1 - matched) * self.balance.beta(matched)


ExpectedWeights = ExpectedSampling | ReweightUnmatched


# TF1 repeats the family before and after the scope.
TARGET_ASSIGNMENT = "TargetAssignment/Loss/TargetAssignment"


@dataclass(frozen=True)
class LossNormalizer:
    """The weights and divisors of the summed losses.

    Attributes:
        by_num_matches: Whether to divide by the batch's matched anchors (at least 1).
        by_code_size: Whether to divide the localization loss by the box code's size.
    """

    classification_weight: float = 1.0
    localization_weight: float = 1.0
    by_num_matches: bool = True
    by_code_size: bool = False


@dataclass(frozen=True)
class AnchorCriterion:
    """Compare predictions with groundtruth.

    Attributes:
        localization: The loss of box codes, or of decoded boxes.
        miner: Selects anchors by their losses; None for all.
        sampler: Samples anchors before mining; None for all.
        expected: Weights anchors as sampling would on average, in place of mining; None for no weights.
    """

    assigner: TargetAssigner
    classification: ClassificationLoss
    localization: LocalizationLoss
    normalizer: LossNormalizer
    miner: HardExampleMiner | None = None
    sampler: BalancedSampler | None = None
    expected: ExpectedWeights | None = None

    def __call__(self, predictions: AnchorPredictions, targets: Targets) -> dict[str, LossTerm]:
        """Return `Loss/localization_loss` and `Loss/classification_loss` of a batch, or of a part of one."""
        with record_function("assignment"):
            assigned, anchors, targets = self.assign(predictions, targets)
        return self.losses(predictions, assigned, anchors, targets)

    def losses(
        self, predictions: AnchorPredictions, assigned: AnchorTargets, anchors: Tensor, targets: Targets
    ) -> dict[str, LossTerm]:
        """Return `Loss/localization_loss` and `Loss/classification_loss`; anchors are in the coder's units."""
        # TF also counts the matches of unannotated images.
        count = assigned.box_weights.sum() if self.normalizer.by_num_matches else None
        # In half precision a sum over hundreds of thousands of anchors keeps too few digits.
        class_logits, box_codes = predictions.class_logits.float(), predictions.box_codes.float()
        if targets.annotated is not None:
            class_logits, box_codes, assigned = _only_annotated(class_logits, box_codes, assigned, targets.annotated)
        class_losses = self.classification(class_logits, assigned.classes, assigned.class_weights)
        box_losses = self._box_losses(box_codes, assigned, anchors)
        if self.expected is not None:
            columns = self.assigner.columns
            matched, unmatched = self.expected(_foreground(assigned.classes, columns), assigned.match)
            nothing = torch.full_like(assigned.match, columns.unmatched)
            against_nothing = self.classification(class_logits, nothing, assigned.class_weights)
            class_losses = matched * class_losses + unmatched * against_nothing
            box_losses = box_losses * matched
        elif self.miner is not None:
            # TF suppresses the predicted boxes here, not the anchors.
            boxes = self.assigner.box_coder.decode(box_codes.detach(), anchors)
            chosen = self.miner(class_losses, box_losses, boxes, assigned.match)
            class_losses, box_losses = class_losses * chosen, box_losses * chosen
        rules = self.normalizer
        box_weight = rules.localization_weight / (self.assigner.box_coder.code_size if rules.by_code_size else 1)
        return {
            "Loss/localization_loss": LossTerm(box_weight * box_losses.sum(), count),
            "Loss/classification_loss": LossTerm(rules.classification_weight * class_losses.sum(), count),
        }

    def assign(self, predictions: AnchorPredictions, targets: Targets) -> tuple[AnchorTargets, Tensor, Targets]:
        """Return the targets of every anchor, and anchors and groundtruth in the coder's units."""
        anchors = predictions.anchors
        if not self.assigner.unit_free:
            anchors, targets = _scale_to_input(predictions, targets)
        assigned = self.assigner(anchors, targets)
        if predictions.filtered is not None:
            assigned = _ignoring(assigned, predictions.filtered)
        return (assigned if self.sampler is None else self._sampled(assigned, self.sampler)), anchors, targets

    @torch.no_grad()
    def describe(self, predictions: AnchorPredictions, targets: Targets) -> Description:
        """Return TF's tags: averages over images of assignment and mining, and classification losses before mining."""
        assigned, anchors, targets = self.assign(predictions, targets)
        match, weights = assigned.match, assigned.class_weights
        counted = weights.sum(-1) > 0
        positive, negative = match >= 0, match == UNMATCHED
        losses = self.classification(predictions.class_logits.float(), assigned.classes, weights)
        taken = has_match(match, positive, targets.valid.shape[1])
        per_image = {
            "AvgNumGroundtruthBoxesPerImage": targets.valid,
            "AvgNumGroundtruthBoxesMatchedPerImage": taken & targets.valid,
            "AvgNumPositiveAnchorsPerImage": positive,
            "AvgNumNegativeAnchorsPerImage": negative,
            "AvgNumIgnoredAnchorsPerImage": ~positive & ~negative,
        }
        per_image = {f"{TARGET_ASSIGNMENT}/{name}": what for name, what in per_image.items()}
        # Expected weights take the place of mining in `losses`, too.
        if self.miner is not None and self.expected is None:
            codes = predictions.box_codes.float()
            boxes = self.assigner.box_coder.decode(codes, anchors)
            mined = self.miner(losses, self._box_losses(codes, assigned, anchors), boxes, match)
            per_image |= {
                "HardExampleMiner/NumPositives": mined & positive,
                "HardExampleMiner/NumNegatives": mined & negative,
            }
        return Description(
            scalars={name: what.sum(1).float().mean() for name, what in per_image.items()},
            # Boolean masks wait for a GPU, which only described steps do (docs/gpu.md).
            distributions={
                "Loss/PositiveAnchorLossCDF": losses[positive & counted],
                "Loss/NegativeAnchorLossCDF": losses[negative & counted],
            },
        )

    def _sampled(self, assigned: AnchorTargets, sampler: BalancedSampler) -> AnchorTargets:
        weights = assigned.class_weights
        candidates = weights.mean(-1) > 0
        # By the target's class and not by the match: TF's sampler reads what the classifier learns.
        chosen = sampler(self.assigner.columns.with_object(assigned.classes), candidates)
        return replace(
            assigned,
            box_weights=assigned.box_weights * chosen,
            class_weights=weights * chosen[..., None],
        )

    def _box_losses(self, codes: Tensor, assigned: AnchorTargets, anchors: Tensor) -> Tensor:
        wanted = assigned.box_codes
        if self.localization.of_boxes:
            # TF compares the codes themselves as if they were corners, which is meaningless.
            coder = self.assigner.box_coder
            return self.localization(coder.decode(codes, anchors), coder.decode(wanted, anchors), assigned.box_weights)
        # Unknown values, such as a hidden keypoint's, have no loss.
        return self.localization(codes, torch.where(wanted.isnan(), codes, wanted), assigned.box_weights)


def _scale_to_input(predictions: AnchorPredictions, targets: Targets) -> tuple[Tensor, Targets]:
    """Return anchors and groundtruth in 0..1 of the input, TF's unit for coding boxes."""
    height, width = predictions.input_size
    unit = constants([width, height, width, height], predictions.anchors.device)
    keypoints = None if targets.keypoints is None else targets.keypoints / unit[:2]
    return predictions.anchors / unit, replace(targets, boxes=targets.boxes / unit, keypoints=keypoints)


def _ignoring(assigned: AnchorTargets, filtered: Tensor) -> AnchorTargets:
    """Return targets that ignore filtered negatives; matched anchors stay."""
    ignored = filtered & (assigned.match == UNMATCHED)
    weights = assigned.class_weights
    return replace(
        assigned,
        match=torch.where(ignored, IGNORED, assigned.match),
        class_weights=weights * ~ignored[..., None],
    )


def _foreground(classes: Tensor, columns: ClassColumns) -> Tensor:
    """Return the sum of each anchor's foreground targets, float [B, A]."""
    if classes.ndim == 2:
        return columns.with_object(classes).float()
    return classes[..., columns.background :].sum(-1)


def _classes_where(annotated: Tensor, classes: Tensor) -> Tensor:
    """Return class targets, none for unannotated images."""
    if classes.ndim == 2:
        return torch.where(annotated[:, None], classes, NO_COLUMN)
    return classes * annotated.to(classes.dtype)[:, None, None]


def _only_annotated(
    class_logits: Tensor, box_codes: Tensor, assigned: AnchorTargets, annotated: Tensor
) -> tuple[Tensor, Tensor, AnchorTargets]:
    """Return predictions, targets and weights with those of unannotated images multiplied by 0, as in TF."""
    image = annotated.to(class_logits.dtype)[:, None]
    weights = assigned.class_weights
    kept = replace(
        assigned,
        box_codes=assigned.box_codes * image[..., None],
        box_weights=assigned.box_weights * image,
        classes=_classes_where(annotated, assigned.classes),
        class_weights=weights * image[..., None],
    )
    return class_logits * image[..., None], box_codes * image[..., None], kept


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
