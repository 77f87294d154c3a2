"""Losses, mining and sampling.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import Enum, field, number
from boxwright.config.message import Message
from boxwright.config.rules import PER_ANCHOR, excludes, refuse

# Meanings that several fields share.
ANCHORWISE_OUTPUT = "Old switch for one loss value per anchor; losses now always work that way."

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

    num_hard_examples: int = field(64, "Most examples kept per image; 0 or less keeps all that survive NMS.")
    iou_threshold: float = number(0.7, "[0, 1]", "Examples overlapping a harder one by more than this IoU are dropped.")
    loss_type: HardExampleMinerLossType = field(HardExampleMinerLossType.BOTH,
        "Loss used to rank examples: CLASSIFICATION, LOCALIZATION or BOTH.")
    max_negatives_per_positive: int = number(0, "[0, inf)",
        "Most negatives kept per positive; 0 or less means no limit.")
    min_negatives_per_image: int = number(0, "[0, inf)",
        "Negatives allowed per image even if it has no positives; used with max_negatives_per_positive.")

class WeightedSigmoidClassificationLoss(Message):
    """Sigmoid cross-entropy computed per class."""

    anchorwise_output: bool = field(False, ANCHORWISE_OUTPUT, no_effect=PER_ANCHOR)

class WeightedSoftmaxClassificationLoss(Message):
    """Softmax cross-entropy over classes."""

    anchorwise_output: bool = field(False, ANCHORWISE_OUTPUT, no_effect=PER_ANCHOR)
    logit_scale: float = number(1.0, "(0, inf)",
        "Predicted logits are divided by this before the softmax; above 1 softens, never 0.")

class WeightedSoftmaxClassificationAgainstLogitsLoss(Message):
    """Softmax cross-entropy against targets that are logits."""

    anchorwise_output: bool = field(False, ANCHORWISE_OUTPUT, no_effect=PER_ANCHOR)
    logit_scale: float = number(1.0, "(0, inf)",
        "Predicted and target logits are divided by this before the softmax; never 0.")

class BootstrappedSigmoidClassificationLoss(Message):
    """Sigmoid cross-entropy that partly trusts the model over noisy labels."""

    alpha: float = number(0.0, "[0, 1]", "Weight of the label in the mixed target, the prediction gets 1 - alpha.")
    hard_bootstrap: bool = field(False, "Round the prediction to 0 or 1 before mixing it in.")
    anchorwise_output: bool = field(False, ANCHORWISE_OUTPUT, no_effect=PER_ANCHOR)

class SigmoidFocalClassificationLoss(Message):
    """Sigmoid focal loss: cross-entropy that plays down easy examples."""

    anchorwise_output: bool = field(False, ANCHORWISE_OUTPUT, no_effect=PER_ANCHOR)
    gamma: float = number(2.0, "[0, inf)",
        "Focusing power; larger ignores easy examples more, 0 gives plain cross-entropy.")
    alpha: float = number(0.0, "(-inf, inf)",
        "Weight of positives, negatives get 1 - alpha; 0..1, no balancing when unset.")

class PenaltyReducedLogisticFocalLoss(Message):
    """Focal loss on Gaussian heatmap targets, as in CenterNet."""

    alpha: float = number(0.0, "[0, inf)", "Focusing power on the prediction error; CenterNet uses 2.")
    beta: float = number(0.0, "[0, inf)",
        "Power of (1 - target) that lightens the penalty near object centers; CenterNet uses 4.")

class WeightedDiceClassificationLoss(Message):
    """Dice loss: 1 minus the overlap of prediction and target."""

    squared_normalization: bool = field(False, "Square predictions and targets in the denominator of the dice score.")
    is_prediction_probability: bool = field(False, "Predictions are already probabilities, so no sigmoid is applied.")

class ClassificationLoss(Message, oneof="classification_loss"):
    """Loss on class predictions; set exactly one field."""

    weighted_sigmoid: WeightedSigmoidClassificationLoss | None = field(None,
        "Independent sigmoid cross-entropy per class.")
    weighted_softmax: WeightedSoftmaxClassificationLoss | None = field(None, "Softmax cross-entropy over all classes.")
    weighted_logits_softmax: WeightedSoftmaxClassificationAgainstLogitsLoss | None = field(None,
        "Softmax cross-entropy where targets are logits too (distillation).")
    bootstrapped_sigmoid: BootstrappedSigmoidClassificationLoss | None = field(None,
        "Sigmoid cross-entropy with targets mixed with the predictions, for noisy labels.")
    weighted_sigmoid_focal: SigmoidFocalClassificationLoss | None = field(None,
        "Focal loss, which plays down easy examples.")
    penalty_reduced_logistic_focal_loss: PenaltyReducedLogisticFocalLoss | None = field(None,
        "Focal loss for CenterNet heatmaps, softer near object centers.")
    weighted_dice_classification_loss: WeightedDiceClassificationLoss | None = field(None,
        "Dice overlap loss, for masks (DeepMAC).")

class WeightedL2LocalizationLoss(Message):
    """Half squared error on the box codes, weighted per anchor."""

    anchorwise_output: bool = field(False, "Old switch for a per-anchor instead of a summed loss; current losses are "
        "always per anchor.", no_effect=PER_ANCHOR)

class WeightedSmoothL1LocalizationLoss(Message):
    """Huber loss on the box codes, weighted per anchor."""

    anchorwise_output: bool = field(False, "Old switch for a per-anchor instead of a summed loss; current losses are "
        "always per anchor.", no_effect=PER_ANCHOR)
    delta: float = number(1.0, "(0, inf)", "Absolute error at which the loss turns from quadratic to linear.")

class WeightedIOULocalizationLoss(Message):
    """Loss 1 - IoU between decoded and groundtruth boxes; no settings."""

class L1LocalizationLoss(Message):
    """Sum of absolute errors, as CenterNet uses for sizes and offsets; no settings."""

class WeightedGIOULocalizationLoss(Message):
    """Loss 1 - generalized IoU between decoded and groundtruth boxes; no settings."""

class LocalizationLoss(Message, oneof="localization_loss"):
    """Chooses the box regression loss; set exactly one."""

    weighted_l2: WeightedL2LocalizationLoss | None = field(None, "Half squared error.")
    weighted_smooth_l1: WeightedSmoothL1LocalizationLoss | None = field(None,
        "Huber (smooth L1) loss: quadratic near zero, linear beyond delta.")
    weighted_iou: WeightedIOULocalizationLoss | None = field(None,
        "1 - IoU of the decoded boxes.",
        note="computed of decoded boxes (TF's SSD compares codes as if they were corners)")
    l1_localization_loss: L1LocalizationLoss | None = field(None,
        "Absolute error (CenterNet).", note="weighted for each anchor (TF's SSD stops with an error)")
    weighted_giou: WeightedGIOULocalizationLoss | None = field(None,
        "1 - generalized IoU of the decoded boxes.",
        note="computed of decoded boxes (TF's SSD compares codes as if they were corners)")

class RandomExampleSampler(Message):
    """Random choice of anchors that enter the loss, with a fixed share of positives."""

    positive_sample_fraction: float = number(0.01, "(0, 1]",
        "Wanted share of positives in the sample; above 0, at most 1.")

class LossEqualizationLoss(Message, name="Loss.EqualizationLoss"):
    """Settings of the SSD equalization loss."""

    weight: float = field(0.0,
        "Multiplier on the equalization loss; 0 turns it off.", no_effect="TF stores it and never reads it")
    exclude_prefixes: list[str] = field([], "Ops whose names start with one of these prefixes are left out of the "
        "equalization loss.", no_effect="TF stores it and never reads it")

class Loss(Message):
    """Training losses of a detector, their weights and their example selection."""

    localization_loss: LocalizationLoss | None = field(None, "Loss of the box regression.")
    classification_loss: ClassificationLoss | None = field(None, "Loss of the class prediction.")
    hard_example_miner: HardExampleMiner | None = field(None,
        "Keep only the anchors with the highest loss; cannot go with the sigmoid focal loss.")
    classification_weight: float = number(1.0, "[0, inf)", "Multiplier on the classification loss.")
    localization_weight: float = number(1.0, "[0, inf)", "Multiplier on the localization loss.")
    random_example_sampler: RandomExampleSampler | None = field(None,
        "Sample a random subset of anchors for the loss; runs before hard example mining.")
    equalization_loss: LossEqualizationLoss | None = field(None, "Settings of the SSD equalization loss, an added "
        "penalty; off at weight 0.", no_effect="TF stores it and never reads it")
    expected_loss_weights: LossExpectedLossWeights = field(LossExpectedLossWeights.NONE,
        "Reweight anchors of the class loss: NONE, EXPECTED_SAMPLING, REWEIGHTING_UNMATCHED_ANCHORS.",
        note="as its description says; the functions that it names are not in TF's public code")
    min_num_negative_samples: float = number(0.0, "[0, inf)",
        "Lower bound on the effective negative count; used when expected_loss_weights is set.")
    desired_negative_sampling_ratio: float = number(3.0, "[0, inf)",
        "Target negatives per positive; used when expected_loss_weights is set.")

    rules = (
        refuse("hard_example_miner", "focal loss weighs hard examples itself; remove one of the two",
            when=lambda c: c.hard_example_miner and _is(c.classification_loss, "weighted_sigmoid_focal")),
        refuse("classification_loss",
            "weighted_dice_classification_loss judges all anchors of an image together; remove hard_example_miner and "
            "expected_loss_weights",
            when=lambda c: (c.hard_example_miner or c.expected_loss_weights)
            and _is(c.classification_loss, "weighted_dice_classification_loss")),
        excludes("expected_loss_weights", "hard_example_miner", why="it takes its place; remove one of the two"),
    )


def _is(loss: ClassificationLoss | None, name: str) -> bool:
    return loss is not None and loss.which("classification_loss") == name
