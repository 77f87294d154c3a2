"""Losses, mining and sampling.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Enum, Float, Int32, Message, String
from boxwright.config.reasons import PER_ANCHOR


class HardExampleMinerLossType(Enum):
    """Values of `HardExampleMiner.LossType`."""

    BOTH = 0
    CLASSIFICATION = 1
    LOCALIZATION = 2


class LossExpectedLossWeights(Enum):
    """Values of `Loss.ExpectedLossWeights`."""

    NONE = 0
    EXPECTED_SAMPLING = 1
    REWEIGHTING_UNMATCHED_ANCHORS = 2


class HardExampleMiner(Message):
    """Keeps only the examples with the highest loss, after NMS on their boxes."""

    proto_name: ClassVar[str] = "HardExampleMiner"

    num_hard_examples: Int32 = Field(
        64, description="Most examples kept per image; 0 or less keeps all that survive NMS."
    )
    iou_threshold: Float = Field(
        0.7, ge=0, le=1, description="Examples overlapping a harder one by more than this IoU are dropped; 0..1."
    )
    loss_type: HardExampleMinerLossType = Field(
        HardExampleMinerLossType.BOTH, description="Loss used to rank examples: CLASSIFICATION, LOCALIZATION or BOTH."
    )
    max_negatives_per_positive: Int32 = Field(
        0, ge=0, description="Most negatives kept per positive; 0 or less means no limit."
    )
    min_negatives_per_image: Int32 = Field(
        0,
        ge=0,
        description="Negatives allowed per image even if it has no positives; used with max_negatives_per_positive.",
    )


class WeightedSigmoidClassificationLoss(Message):
    """Sigmoid cross-entropy computed per class."""

    proto_name: ClassVar[str] = "WeightedSigmoidClassificationLoss"

    anchorwise_output: Bool = Field(
        False,
        no_effect=PER_ANCHOR,
        description="Old switch for one loss value per anchor; losses now always work that way.",
    )


class WeightedSoftmaxClassificationLoss(Message):
    """Softmax cross-entropy over classes."""

    proto_name: ClassVar[str] = "WeightedSoftmaxClassificationLoss"

    anchorwise_output: Bool = Field(
        False,
        no_effect=PER_ANCHOR,
        description="Old switch for one loss value per anchor; losses now always work that way.",
    )
    logit_scale: Float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="Predicted logits are divided by this before the softmax; above 1 softens, never 0.",
    )


class WeightedSoftmaxClassificationAgainstLogitsLoss(Message):
    """Softmax cross-entropy against targets that are logits."""

    proto_name: ClassVar[str] = "WeightedSoftmaxClassificationAgainstLogitsLoss"

    anchorwise_output: Bool = Field(
        False,
        no_effect=PER_ANCHOR,
        description="Old switch for one loss value per anchor; losses now always work that way.",
    )
    logit_scale: Float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="Predicted and target logits are divided by this before the softmax; never 0.",
    )


class BootstrappedSigmoidClassificationLoss(Message):
    """Sigmoid cross-entropy that partly trusts the model over noisy labels."""

    proto_name: ClassVar[str] = "BootstrappedSigmoidClassificationLoss"

    alpha: Float = Field(
        0.0, ge=0, le=1, description="Weight of the label in the mixed target, the prediction gets 1 - alpha; 0..1."
    )
    hard_bootstrap: Bool = Field(False, description="Round the prediction to 0 or 1 before mixing it in.")
    anchorwise_output: Bool = Field(
        False,
        no_effect=PER_ANCHOR,
        description="Old switch for one loss value per anchor; losses now always work that way.",
    )


class SigmoidFocalClassificationLoss(Message):
    """Sigmoid focal loss: cross-entropy that plays down easy examples."""

    proto_name: ClassVar[str] = "SigmoidFocalClassificationLoss"

    anchorwise_output: Bool = Field(
        False,
        no_effect=PER_ANCHOR,
        description="Old switch for one loss value per anchor; losses now always work that way.",
    )
    gamma: Float = Field(
        2.0,
        ge=0,
        allow_inf_nan=False,
        description="Focusing power; larger ignores easy examples more, 0 gives plain cross-entropy.",
    )
    alpha: Float = Field(
        0.0,
        allow_inf_nan=False,
        description="Weight of positives, negatives get 1 - alpha; 0..1, no balancing when unset.",
    )


class PenaltyReducedLogisticFocalLoss(Message):
    """Focal loss on Gaussian heatmap targets, as in CenterNet."""

    proto_name: ClassVar[str] = "PenaltyReducedLogisticFocalLoss"

    alpha: Float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Focusing power on the prediction error; CenterNet uses 2."
    )
    beta: Float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Power of (1 - target) that lightens the penalty near object centers; CenterNet uses 4.",
    )


class WeightedDiceClassificationLoss(Message):
    """Dice loss: 1 minus the overlap of prediction and target."""

    proto_name: ClassVar[str] = "WeightedDiceClassificationLoss"

    squared_normalization: Bool = Field(
        False, description="Square predictions and targets in the denominator of the dice score."
    )
    is_prediction_probability: Bool = Field(
        False, description="Predictions are already probabilities, so no sigmoid is applied."
    )


class ClassificationLoss(Message):
    """Loss on class predictions; set exactly one field."""

    proto_name: ClassVar[str] = "ClassificationLoss"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "classification_loss": (
            "weighted_sigmoid",
            "weighted_softmax",
            "weighted_logits_softmax",
            "bootstrapped_sigmoid",
            "weighted_sigmoid_focal",
            "penalty_reduced_logistic_focal_loss",
            "weighted_dice_classification_loss",
        )
    }

    weighted_sigmoid: WeightedSigmoidClassificationLoss | None = Field(
        None, description="Independent sigmoid cross-entropy per class."
    )
    weighted_softmax: WeightedSoftmaxClassificationLoss | None = Field(
        None, description="Softmax cross-entropy over all classes."
    )
    weighted_logits_softmax: WeightedSoftmaxClassificationAgainstLogitsLoss | None = Field(
        None, description="Softmax cross-entropy where targets are logits too (distillation)."
    )
    bootstrapped_sigmoid: BootstrappedSigmoidClassificationLoss | None = Field(
        None, description="Sigmoid cross-entropy with targets mixed with the predictions, for noisy labels."
    )
    weighted_sigmoid_focal: SigmoidFocalClassificationLoss | None = Field(
        None, description="Focal loss, which plays down easy examples."
    )
    penalty_reduced_logistic_focal_loss: PenaltyReducedLogisticFocalLoss | None = Field(
        None, description="Focal loss for CenterNet heatmaps, softer near object centers."
    )
    weighted_dice_classification_loss: WeightedDiceClassificationLoss | None = Field(
        None, description="Dice overlap loss, for masks (DeepMAC)."
    )


class WeightedL2LocalizationLoss(Message):
    """Half squared error on the box codes, weighted per anchor."""

    proto_name: ClassVar[str] = "WeightedL2LocalizationLoss"

    anchorwise_output: Bool = Field(
        False,
        no_effect=PER_ANCHOR,
        description="Old switch for a per-anchor instead of a summed loss; current losses are always per anchor.",
    )


class WeightedSmoothL1LocalizationLoss(Message):
    """Huber loss on the box codes, weighted per anchor."""

    proto_name: ClassVar[str] = "WeightedSmoothL1LocalizationLoss"

    anchorwise_output: Bool = Field(
        False,
        no_effect=PER_ANCHOR,
        description="Old switch for a per-anchor instead of a summed loss; current losses are always per anchor.",
    )
    delta: Float = Field(
        1.0, gt=0, allow_inf_nan=False, description="Absolute error at which the loss turns from quadratic to linear."
    )


class WeightedIOULocalizationLoss(Message):
    """Loss 1 - IoU between decoded and groundtruth boxes; no settings."""

    proto_name: ClassVar[str] = "WeightedIOULocalizationLoss"


class L1LocalizationLoss(Message):
    """Sum of absolute errors, as CenterNet uses for sizes and offsets; no settings."""

    proto_name: ClassVar[str] = "L1LocalizationLoss"


class WeightedGIOULocalizationLoss(Message):
    """Loss 1 - generalized IoU between decoded and groundtruth boxes; no settings."""

    proto_name: ClassVar[str] = "WeightedGIOULocalizationLoss"


class LocalizationLoss(Message):
    """Chooses the box regression loss; set exactly one."""

    proto_name: ClassVar[str] = "LocalizationLoss"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "localization_loss": (
            "weighted_l2",
            "weighted_smooth_l1",
            "weighted_iou",
            "l1_localization_loss",
            "weighted_giou",
        )
    }

    weighted_l2: WeightedL2LocalizationLoss | None = Field(None, description="Half squared error.")
    weighted_smooth_l1: WeightedSmoothL1LocalizationLoss | None = Field(
        None, description="Huber (smooth L1) loss: quadratic near zero, linear beyond delta."
    )
    weighted_iou: WeightedIOULocalizationLoss | None = Field(
        None,
        note="computed of decoded boxes (TF's SSD compares codes as if they were corners)",
        description="1 - IoU of the decoded boxes.",
    )
    l1_localization_loss: L1LocalizationLoss | None = Field(
        None, note="weighted for each anchor (TF's SSD stops with an error)", description="Absolute error (CenterNet)."
    )
    weighted_giou: WeightedGIOULocalizationLoss | None = Field(
        None,
        note="computed of decoded boxes (TF's SSD compares codes as if they were corners)",
        description="1 - generalized IoU of the decoded boxes.",
    )


class RandomExampleSampler(Message):
    """Random choice of anchors that enter the loss, with a fixed share of positives."""

    proto_name: ClassVar[str] = "RandomExampleSampler"

    positive_sample_fraction: Float = Field(
        0.01, le=1, gt=0, description="Wanted share of positives in the sample; above 0, at most 1."
    )


class LossEqualizationLoss(Message):
    """Settings of the SSD equalization loss."""

    proto_name: ClassVar[str] = "Loss.EqualizationLoss"

    weight: Float = Field(
        0.0,
        no_effect="TF stores it and never reads it",
        description="Multiplier on the equalization loss; 0 turns it off.",
    )
    exclude_prefixes: list[String] = Field(
        default_factory=list,
        no_effect="TF stores it and never reads it",
        description="Ops whose names start with one of these prefixes are left out of the equalization loss.",
    )


class Loss(Message):
    """Training losses of a detector, their weights and their example selection."""

    proto_name: ClassVar[str] = "Loss"

    localization_loss: LocalizationLoss | None = Field(None, description="Loss of the box regression.")
    classification_loss: ClassificationLoss | None = Field(None, description="Loss of the class prediction.")
    hard_example_miner: HardExampleMiner | None = Field(
        None, description="Keep only the anchors with the highest loss; cannot go with the sigmoid focal loss."
    )
    classification_weight: Float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Multiplier on the classification loss."
    )
    localization_weight: Float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Multiplier on the localization loss."
    )
    random_example_sampler: RandomExampleSampler | None = Field(
        None, description="Sample a random subset of anchors for the loss; runs before hard example mining."
    )
    equalization_loss: LossEqualizationLoss | None = Field(
        None,
        no_effect="TF stores it and never reads it",
        description="Settings of the SSD equalization loss, an added penalty; off at weight 0.",
    )
    expected_loss_weights: LossExpectedLossWeights = Field(
        LossExpectedLossWeights.NONE,
        note="as its description says; the functions that it names are not in TF's public code",
        description="Reweight anchors of the class loss: NONE, EXPECTED_SAMPLING, REWEIGHTING_UNMATCHED_ANCHORS.",
    )
    min_num_negative_samples: Float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Lower bound on the effective negative count; used when expected_loss_weights is set.",
    )
    desired_negative_sampling_ratio: Float = Field(
        3.0,
        ge=0,
        allow_inf_nan=False,
        description="Target negatives per positive; used when expected_loss_weights is set.",
    )
