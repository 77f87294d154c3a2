"""`Loss` and what belongs to it: the SSD's criterion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boxwright.builders.choice import build_chosen, require
from boxwright.config import messages as m
from boxwright.criteria.classification_losses import (
    ClassificationLoss,
    SigmoidCrossEntropy,
    SigmoidFocal,
    SoftmaxCrossEntropy,
)
from boxwright.criteria.hard_example_miner import HardExampleMiner
from boxwright.criteria.localization_losses import LocalizationLoss, SmoothL1, SquaredError
from boxwright.criteria.ssd import LossNormalizer, SSDCriterion
from boxwright.criteria.target_assigner import TargetAssigner
from boxwright.errors import ConfigError

__all__ = [
    "build_classification_loss",
    "build_criterion",
    "build_hard_example_miner",
    "build_localization_loss",
]


def build_criterion(config: m.Ssd, assigner: TargetAssigner) -> SSDCriterion:
    """Build the criterion of an SSD.

    Args:
        config: The SSD's message.
        assigner: Decides what each anchor should predict.

    Returns:
        The criterion.
    """
    loss = require(config.loss, "model.ssd.loss")
    miner = loss.hard_example_miner
    return SSDCriterion(
        assigner=assigner,
        classification=build_classification_loss(
            require(loss.classification_loss, "model.ssd.loss.classification_loss")
        ),
        localization=build_localization_loss(require(loss.localization_loss, "model.ssd.loss.localization_loss")),
        normalizer=LossNormalizer(
            classification_weight=loss.classification_weight,
            localization_weight=loss.localization_weight,
            by_num_matches=config.normalize_loss_by_num_matches,
            by_code_size=config.normalize_loc_loss_by_codesize,
        ),
        miner=None
        if miner is None
        else build_hard_example_miner(miner, loss.classification_weight, loss.localization_weight),
    )


def build_classification_loss(config: m.ClassificationLoss) -> ClassificationLoss:
    """Build a classification loss.

    Args:
        config: The message.

    Returns:
        The loss.
    """
    return build_chosen(config, "classification_loss", _CLASSIFICATION)


def _focal(config: m.SigmoidFocalClassificationLoss) -> ClassificationLoss:
    return SigmoidFocal(config.gamma, config.alpha if config.has("alpha") else None)


def _softmax(config: m.WeightedSoftmaxClassificationLoss) -> ClassificationLoss:
    if config.logit_scale == 0:
        raise ConfigError("weighted_softmax.logit_scale divides the logits; it cannot be 0")
    return SoftmaxCrossEntropy(config.logit_scale)


_CLASSIFICATION: dict[str, Callable[[Any], ClassificationLoss]] = {
    "weighted_sigmoid": lambda _: SigmoidCrossEntropy(),
    "weighted_sigmoid_focal": _focal,
    "weighted_softmax": _softmax,
}


def build_localization_loss(config: m.LocalizationLoss) -> LocalizationLoss:
    """Build a localization loss.

    Args:
        config: The message.

    Returns:
        The loss.
    """
    return build_chosen(config, "localization_loss", _LOCALIZATION)


_LOCALIZATION: dict[str, Callable[[Any], LocalizationLoss]] = {
    "weighted_smooth_l1": lambda config: SmoothL1(config.delta),
    "weighted_l2": lambda _: SquaredError(),
}


def build_hard_example_miner(
    config: m.HardExampleMiner, classification_weight: float, localization_weight: float
) -> HardExampleMiner:
    """Build a miner.

    Args:
        config: The message.
        classification_weight: Weight of the classification loss, for `loss_type: BOTH`.
        localization_weight: Weight of the localization loss, for `loss_type: BOTH`.

    Returns:
        The miner.
    """
    shares = {
        "BOTH": (classification_weight, localization_weight),
        "CLASSIFICATION": (1.0, 0.0),
        "LOCALIZATION": (0.0, 1.0),
    }
    classification_share, localization_share = shares[config.loss_type.name]
    return HardExampleMiner(
        num_hard_examples=config.num_hard_examples if config.num_hard_examples > 0 else None,
        iou_threshold=config.iou_threshold,
        classification_share=classification_share,
        localization_share=localization_share,
        max_negatives_per_positive=config.max_negatives_per_positive if config.max_negatives_per_positive > 0 else None,
        min_negatives_per_image=config.min_negatives_per_image,
    )
