"""The criterion of two-stage detectors (Faster R-CNN, equation 1; Mask R-CNN, section 3; TF's FasterRCNNMetaArch.loss).

Dimensions: B batch, A anchors, R proposals of an image, K foreground classes, D regions with masks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.families.two_stage.third_stage import masks_of_classes
from boxwright.nn.criteria.criterion import Description, LossTerm
from boxwright.nn.criteria.example_selection import HardExampleMiner, MinibatchSampler
from boxwright.nn.criteria.losses import ClassificationLoss, LocalizationLoss, as_columns
from boxwright.nn.criteria.target_assigner import UNMATCHED, AnchorTargets, TargetAssigner, gather_rows, has_match
from boxwright.nn.ops.roi import mask_targets
from boxwright.types import AnchorPredictions, InstancePredictions, Proposals, RegionPredictions, Targets
from boxwright.types.predictions import TwoStagePredictions


@dataclass(frozen=True)
class ProposalCriterion:
    """Losses of the region proposal network on sampled anchors.

    Attributes:
        assigner: Assigns targets to anchors; the only class is "object".
        by_weight: Whether objectness is weighted by the object's weight and each image normalized by the sum of weights
            (kerod), rather than by its number of anchors (TF).
    """

    assigner: TargetAssigner
    sampler: MinibatchSampler
    classification: ClassificationLoss
    localization: LocalizationLoss
    objectness_weight: float = 1.0
    localization_weight: float = 1.0
    by_weight: bool = False

    def __call__(self, predictions: AnchorPredictions, targets: Targets, images: Tensor) -> dict[str, LossTerm]:
        """Return the terms, averaged over `images`, each normalized by its sampled anchors."""
        assigned = self.assigner(predictions.anchors, as_objects(targets))
        sampled = self.sample(assigned)
        # A few hundred of hundreds of thousands of anchors are sampled: only their losses are computed.
        rows = sampled.float().topk(min(self.sampler.size, sampled.shape[1]), dim=1).indices
        sampled, assigned = sampled.gather(1, rows), assigned.rows(rows)
        counts = assigned.class_weights.squeeze(-1) * sampled if self.by_weight else sampled
        # Images that are not annotated have no loss, but count among those that are averaged, as in TF.
        share = _annotated(targets)[:, None] / counts.sum(1, keepdim=True).clamp(min=1)
        class_losses = self.classification(
            gather_rows(predictions.class_logits, rows).float(), assigned.classes, (counts * share)[..., None]
        )
        box_weights = assigned.box_weights * sampled * share
        box_losses = self.localization(
            gather_rows(predictions.box_codes, rows).float(), assigned.box_codes, box_weights
        )
        return {
            "Loss/RPNLoss/localization_loss": LossTerm(self.localization_weight * box_losses.sum(), images),
            "Loss/RPNLoss/objectness_loss": LossTerm(self.objectness_weight * class_losses.sum(), images),
        }

    @torch.no_grad()
    def sample(self, assigned: AnchorTargets) -> Tensor:
        """Return which anchors are sampled, bool [B, A]."""
        return self.sampler(assigned.match >= 0, assigned.class_weights.squeeze(-1) > 0)


@dataclass(frozen=True)
class BoxClassifierCriterion:
    """Losses of the second stage.

    Attributes:
        miner: Selects proposals by their losses; None for all.
        by_weight: Whether each image is normalized by the sum of its proposals' weights (kerod), rather than their
            number.
    """

    assigner: TargetAssigner
    classification: ClassificationLoss
    localization: LocalizationLoss
    classification_weight: float = 1.0
    localization_weight: float = 1.0
    miner: HardExampleMiner | None = None
    by_weight: bool = False

    def __call__(
        self, regions: RegionPredictions, proposals: Proposals, targets: Targets, images: Tensor
    ) -> dict[str, LossTerm]:
        """Return the terms, averaged over `images`, each normalized by its proposals."""
        assigned = self.assigner(proposals.boxes, targets)
        counts = assigned.class_weights.mean(-1) * proposals.valid if self.by_weight else proposals.valid
        share = proposals.valid / counts.sum(1, keepdim=True).clamp(min=1) * _annotated(targets)[:, None]
        class_losses = self.classification(
            regions.class_logits.float(), assigned.classes, assigned.class_weights * share[..., None]
        )
        # Rows of background take the first class's codes, which their weight of 0 leaves out.
        codes = codes_of_classes(regions.box_codes.float(), object_labels(assigned))
        box_losses = self.localization(codes, assigned.box_codes, assigned.box_weights * share)
        if self.miner is not None:
            # Every image is mined; TF's returns within its loop, and so mines the batch's first image only.
            chosen = self.miner(class_losses, box_losses, proposals.boxes, assigned.match)
            class_losses, box_losses = class_losses * chosen, box_losses * chosen
        return {
            "Loss/BoxClassifierLoss/localization_loss": LossTerm(self.localization_weight * box_losses.sum(), images),
            "Loss/BoxClassifierLoss/classification_loss": LossTerm(
                self.classification_weight * class_losses.sum(), images
            ),
        }


@dataclass(frozen=True)
class MaskCriterion:
    """The loss of the third stage: the mask of the groundtruth's class, for regions with an object.

    Attributes:
        fade: As for `crop_and_resize`, which crops the groundtruth.
    """

    assigner: TargetAssigner
    weight: float = 1.0
    fade: bool = False

    def __call__(
        self, instances: InstancePredictions, targets: Targets, input_size: tuple[int, int]
    ) -> dict[str, LossTerm]:
        """Return `Loss/BoxClassifierLoss/mask_loss`, divided by the pixels of the batch's masks.

        Raises:
            DataError: If there are objects without masks.
        """
        targets.require_masks("set load_instance_masks and mask_type in the input reader, or number_of_stages: 2")
        if targets.masks is None:
            # Data-parallel processes wait for every gradient, the mask head's too.
            nothing = instances.logits.sum() * 0.0
            return {"Loss/BoxClassifierLoss/mask_loss": LossTerm(nothing, nothing.detach())}
        assigned = self.assigner(instances.boxes, targets)
        weights = assigned.box_weights * instances.valid * _annotated(targets)[:, None]
        logits = masks_of_classes(instances.logits.float(), object_labels(assigned))
        size = (logits.shape[-2], logits.shape[-1])
        with torch.no_grad():
            wanted = mask_targets(targets.masks, assigned.match, instances.boxes, size, input_size, fade=self.fade)
        pixels = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum((-2, -1))
        count = weights.sum() * size[0] * size[1]
        return {"Loss/BoxClassifierLoss/mask_loss": LossTerm(self.weight * (pixels * weights).sum(), count)}


@dataclass(frozen=True)
class TwoStageCriterion:
    """Compare the predictions of each stage with groundtruth.

    No gradient of a later stage reaches an earlier one through its boxes.
    """

    first: ProposalCriterion
    second: BoxClassifierCriterion | None = None
    masks: MaskCriterion | None = None

    def __call__(self, predictions: TwoStagePredictions, targets: Targets) -> dict[str, LossTerm]:
        """Return the terms of all stages, by TF's names."""
        # Filled on the device: `torch.tensor` would copy from the CPU, and wait for a GPU.
        images = torch.full((), float(len(targets.boxes)), device=predictions.proposals.scores.device)
        terms = self.first(predictions.first, targets, images)
        if self.second is not None and predictions.regions is not None:
            terms |= self.second(predictions.regions, predictions.proposals, targets, images)
        if self.masks is not None and predictions.instances is not None:
            terms |= self.masks(predictions.instances, targets, predictions.first.input_size)
        return terms

    @torch.no_grad()
    def describe(self, predictions: TwoStagePredictions, targets: Targets) -> Description:
        """Return the fractions of groundtruth boxes that are proposed, and the accuracies of classification."""
        valid = targets.valid & (targets.weights > 0)
        proposals = predictions.proposals
        scalars: dict[str, Tensor] = {}
        assigned = self.first.assigner(predictions.first.anchors, as_objects(targets))
        positive, negative = assigned.match >= 0, assigned.match == UNMATCHED
        seen = predictions.first.class_logits.argmax(-1) > 0
        scalars["RPN/positive_anchors"] = positive.sum(1).float().mean()
        scalars["RPN/negative_anchors"] = negative.sum(1).float().mean()
        scalars["RPN/anchor_recall"] = _share(positive & seen, positive)
        if self.second is not None and predictions.regions is not None:
            region_targets = self.second.assigner(proposals.boxes, targets)
            held = has_match(region_targets.match, proposals.valid, valid.shape[1])
            scalars["RPN/recall"] = _share(held & valid, valid)
            scalars |= accuracies(predictions.regions.class_logits, region_targets, proposals.valid)
        return Description(scalars=scalars, distributions={})


def accuracies(logits: Tensor, assigned: AnchorTargets, valid: Tensor) -> dict[str, Tensor]:
    """Return accuracies by kerod's tags: over all proposals, over positives, and positives predicted as background.

    Args:
        logits: float [B, R, K + 1].
        valid: bool [B, R].
    """
    guess, wanted = logits.argmax(-1), as_columns(assigned.classes)
    counted = valid & (assigned.class_weights.mean(-1) > 0)
    foreground = counted & (wanted > 0)
    return {
        "BoxClassifier/accuracy": _share((guess == wanted) & counted, counted),
        "BoxClassifier/fg_accuracy": _share((guess == wanted) & foreground, foreground),
        "BoxClassifier/false_negative": _share((guess == 0) & foreground, foreground),
    }


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return part.sum() / whole.sum().clamp(min=1)


def as_objects(targets: Targets) -> Targets:
    """Return the groundtruth with the single class "object"."""
    return replace(targets, labels=torch.zeros_like(targets.labels), confidences=None, class_scores=None, masks=None)


def object_labels(assigned: AnchorTargets) -> Tensor:
    """Return the class of each region's object, int64 [B, R]; 0 if it has none."""
    return (as_columns(assigned.classes) - 1).clamp(min=0)


def codes_of_classes(codes: Tensor, labels: Tensor) -> Tensor:
    """Return the codes [B, R, 4] of labels, selected from [B, R, K or 1, 4]."""
    if codes.shape[2] == 1:
        return codes.squeeze(2)
    return codes.gather(2, labels[..., None, None].expand(-1, -1, 1, codes.shape[3])).squeeze(2)


def _annotated(targets: Targets) -> Tensor:
    """Return float [B]: 0 for unannotated images, else 1."""
    if targets.annotated is None:
        return torch.ones(len(targets.boxes), device=targets.boxes.device)
    return targets.annotated.float()
