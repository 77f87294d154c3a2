"""`Loss`: the criterion of an SSD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boxwright.config import messages as m
from boxwright.config.support import refuse_contradictions
from boxwright.families.shared.choice import build_chosen, require
from boxwright.nn.criteria.anchor import AnchorCriterion, LossNormalizer
from boxwright.nn.criteria.classification_losses import (
    BootstrappedSigmoid,
    ClassificationLoss,
    Dice,
    PenaltyReducedFocal,
    SigmoidCrossEntropy,
    SigmoidFocal,
    SoftmaxAgainstLogits,
    SoftmaxCrossEntropy,
)
from boxwright.nn.criteria.example_sampler import BalancedSampler
from boxwright.nn.criteria.expected_weights import Balance, ExpectedSampling, ExpectedWeights, ReweightUnmatched
from boxwright.nn.criteria.hard_example_miner import HardExampleMiner
from boxwright.nn.criteria.localization_losses import (
    AbsoluteError,
    GeneralizedIouLoss,
    IouLoss,
    LocalizationLoss,
    SmoothL1,
    SquaredError,
)
from boxwright.nn.criteria.target_assigner import Assigner


def build_criterion(
    loss: m.Loss, assigner: Assigner, *, by_num_matches: bool = True, by_code_size: bool = False
) -> AnchorCriterion:
    """Build the criterion of an SSD, or of one step of a multi-step detector.

    Args:
        by_num_matches: Whether losses are divided by the number of matched anchors.
        by_code_size: Whether the box loss is divided by the code's length.
    """
    refuse_contradictions(loss)
    miner = loss.hard_example_miner
    return AnchorCriterion(
        assigner=assigner,
        classification=build_classification_loss(require(loss.classification_loss, loss, "classification_loss")),
        localization=build_localization_loss(require(loss.localization_loss, loss, "localization_loss")),
        normalizer=LossNormalizer(
            classification_weight=loss.classification_weight,
            localization_weight=loss.localization_weight,
            by_num_matches=by_num_matches,
            by_code_size=by_code_size,
        ),
        miner=None
        if miner is None
        else build_hard_example_miner(miner, loss.classification_weight, loss.localization_weight),
        sampler=_sampler(loss.random_example_sampler),
        expected=_expected(loss),
    )


def _sampler(config: m.RandomExampleSampler | None) -> BalancedSampler | None:
    if config is None:
        return None
    return BalancedSampler(config.positive_sample_fraction)


def _expected(loss: m.Loss) -> ExpectedWeights | None:
    name = loss.expected_loss_weights.name
    if name == "NONE":
        return None
    balance = Balance(loss.min_num_negative_samples, loss.desired_negative_sampling_ratio)
    return ExpectedSampling(balance) if name == "EXPECTED_SAMPLING" else ReweightUnmatched(balance)


def build_classification_loss(config: m.ClassificationLoss) -> ClassificationLoss:
    """Build a classification loss."""
    return build_chosen(config, "classification_loss", _CLASSIFICATION)


def _focal(config: m.SigmoidFocalClassificationLoss) -> ClassificationLoss:
    return SigmoidFocal(config.gamma, config.alpha if config.has("alpha") else None)


def _softmax(config: m.WeightedSoftmaxClassificationLoss) -> ClassificationLoss:
    return SoftmaxCrossEntropy(config.logit_scale)


def _softmax_against_logits(config: m.WeightedSoftmaxClassificationAgainstLogitsLoss) -> ClassificationLoss:
    return SoftmaxAgainstLogits(config.logit_scale)


_CLASSIFICATION: dict[str, Callable[[Any], ClassificationLoss]] = {
    "weighted_sigmoid": lambda _: SigmoidCrossEntropy(),
    "weighted_sigmoid_focal": _focal,
    "weighted_softmax": _softmax,
    "weighted_logits_softmax": _softmax_against_logits,
    "bootstrapped_sigmoid": lambda config: BootstrappedSigmoid(config.alpha, config.hard_bootstrap),
    "penalty_reduced_logistic_focal_loss": lambda config: PenaltyReducedFocal(config.alpha, config.beta),
    "weighted_dice_classification_loss": lambda config: Dice(
        config.squared_normalization, config.is_prediction_probability
    ),
}


def build_localization_loss(config: m.LocalizationLoss) -> LocalizationLoss:
    """Build a localization loss."""
    return build_chosen(config, "localization_loss", _LOCALIZATION)


_LOCALIZATION: dict[str, Callable[[Any], LocalizationLoss]] = {
    "weighted_smooth_l1": lambda config: SmoothL1(config.delta),
    "weighted_l2": lambda _: SquaredError(),
    "weighted_iou": lambda _: IouLoss(),
    "weighted_giou": lambda _: GeneralizedIouLoss(),
    "l1_localization_loss": lambda _: AbsoluteError(),
}


def build_hard_example_miner(
    config: m.HardExampleMiner, classification_weight: float, localization_weight: float
) -> HardExampleMiner:
    """Build a miner; the weights are those of `loss_type: BOTH`."""
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
