"""SSD's criterion: assignment, losses, mining, weights (SSD, section 2.2; TF's SSDMetaArch.loss).

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.criteria.classification_losses import ClassificationLoss
from boxwright.criteria.hard_example_miner import HardExampleMiner
from boxwright.criteria.localization_losses import LocalizationLoss
from boxwright.criteria.target_assigner import TargetAssigner
from boxwright.types import Predictions, Targets

__all__ = ["LossNormalizer", "SSDCriterion"]


@dataclass(frozen=True)
class LossNormalizer:
    """What the summed losses are multiplied with and divided by.

    Attributes:
        classification_weight: Multiplies the classification loss.
        localization_weight: Multiplies the localization loss.
        by_num_matches: Whether to divide by the batch's matched anchors (at least 1).
        by_code_size: Whether to divide the localization loss by the box code's size.
    """

    classification_weight: float = 1.0
    localization_weight: float = 1.0
    by_num_matches: bool = True
    by_code_size: bool = False


@dataclass(frozen=True)
class SSDCriterion:
    """Compare predictions with groundtruth.

    Attributes:
        assigner: Decides what each anchor should predict.
        classification: The loss of class logits.
        localization: The loss of box codes.
        normalizer: Weights and divisors.
        miner: Chooses the anchors that count, or None for all.
    """

    assigner: TargetAssigner
    classification: ClassificationLoss
    localization: LocalizationLoss
    normalizer: LossNormalizer
    miner: HardExampleMiner | None = None

    def __call__(self, predictions: Predictions, targets: Targets) -> dict[str, Tensor]:
        """Compute the losses of a batch.

        Args:
            predictions: What the network said.
            targets: The groundtruth, in pixels of the network's input.

        Returns:
            `Loss/localization_loss` and `Loss/classification_loss`, scalars.
        """
        assigned = self.assigner(predictions.anchors, targets)
        class_logits, box_codes = predictions.class_logits.float(), predictions.box_codes.float()
        class_losses = self.classification(class_logits, assigned.classes, assigned.class_weights)
        box_losses = self.localization(box_codes, assigned.box_codes, assigned.box_weights)
        if self.miner is not None:
            boxes = self.assigner.box_coder.decode(box_codes.detach(), predictions.anchors)
            chosen = self.miner(class_losses, box_losses, boxes, assigned.match)
            class_losses, box_losses = class_losses * chosen, box_losses * chosen
        rules = self.normalizer
        divisor = assigned.box_weights.sum().clamp(min=1.0) if rules.by_num_matches else torch.ones(())
        box_divisor = divisor * self.assigner.box_coder.code_size if rules.by_code_size else divisor
        return {
            "Loss/localization_loss": rules.localization_weight / box_divisor * box_losses.sum(),
            "Loss/classification_loss": rules.classification_weight / divisor * class_losses.sum(),
        }
