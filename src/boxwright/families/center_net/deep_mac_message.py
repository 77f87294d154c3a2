"""CenterNet's DeepMAC.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from itertools import pairwise

from boxwright.config.field import AllowedValues, Enum, field, number
from boxwright.config.message import Message
from boxwright.config.messages.losses import ClassificationLoss
from boxwright.config.messages.preprocessor import RandomJitterBoxesJitterMode
from boxwright.config.rules import Rule, distinct, ordered, refuse


class LossNormalize(Enum):
    """Values of `LossNormalize`."""

    NORMALIZE_AUTO = 0
    NORMALIZE_GROUNDTRUTH_COUNT = 1
    NORMALIZE_BALANCED = 3

class FeatureConsistencyType(Enum):
    """Values of `FeatureConsistencyType`."""

    CONSISTENCY_DEFAULT_LAB = 0
    CONSISTENCY_FEATURE_MAP = 1

class FeatureConsistencyComparison(Enum):
    """Values of `FeatureConsistencyComparison`."""

    COMPARISON_DEFAULT_GAUSSIAN = 0
    COMPARISON_NORMALIZED_DOTPROD = 1

class AugmentedSelfSupervisionLoss(Enum):
    """Values of `AugmentedSelfSupervisionLoss`."""

    LOSS_UNSET = 0
    LOSS_DICE = 1
    LOSS_MSE = 2
    LOSS_KL_DIV = 3

# DeepMAC's mask networks by TF's names.
MASK_HOURGLASS_TYPES = ("hourglass10", "hourglass20", "hourglass32", "hourglass52", "hourglass100",
    "hourglass20_uniform_size", "hourglass20_no_shortcut")
MASK_RESNET_TYPES = ("resnet4", "resnet8", "resnet12", "resnet16", "resnet20")
MASK_CONDITIONAL_TYPES = tuple(f"cond_inst{depth}" for depth in range(1, 6))
_MASK_WEIGHTS = ("task_loss_weight", "box_consistency_loss_weight", "feature_consistency_loss_weight",
    "augmented_self_supervision_loss_weight", "pointly_supervised_keypoint_loss_weight")
# The sides of a mask have to be multiples of these numbers.
_MASK_MULTIPLES = {"hourglass10": 2, "hourglass20": 4, "hourglass20_no_shortcut": 4, "hourglass32": 8,
    "hourglass52": 32, "hourglass100": 32}


def mask_multiple(network_type: str) -> int:
    """Return of what number the sides of a mask network's input have to be multiples."""
    return _MASK_MULTIPLES.get(network_type, 1)


def _mask_loss(config: "CenterNetDeepMACMaskEstimation") -> str | None:
    loss = config.classification_loss
    return None if loss is None else loss.which("classification_loss")


def _uses_embedding(config: "CenterNetDeepMACMaskEstimation") -> bool:
    return config.network_type in ("embedding_projection", *MASK_CONDITIONAL_TYPES)


def _conditional_problem(config: "CenterNetDeepMACMaskEstimation") -> str:
    """Return what is wrong with the length of an embedding whose numbers are weights of convolutions."""
    if config.network_type not in MASK_CONDITIONAL_TYPES:
        return ""
    depth, width = int(config.network_type.removeprefix("cond_inst")), config.num_init_channels
    pixels = config.pixel_embedding_dim + 2 * config.use_xy
    if depth == 1 and pixels != width:
        return f"cond_inst1 has no width of its own; set num_init_channels: {pixels}, as TF demands"
    channels = [pixels, *[width] * (depth - 1), 1]
    expected = sum((before + 1) * after for before, after in pairwise(channels))
    return "" if config.dim == expected else f"{config.network_type} reads {expected} numbers, found {config.dim}"


class CenterNetDeepMACMaskEstimation(Message, name="CenterNet.DeepMACMaskEstimation"):
    """DeepMAC mask head: a deep class-agnostic network run on each box."""

    classification_loss: ClassificationLoss | None = field(None,
        "Per-pixel mask loss, also used by the box consistency and point losses.")
    task_loss_weight: float = number(1.0, "[0, inf)",
        "Multiplier on the mask loss from groundtruth masks; 0 = off, and no masks are needed.")
    dim: int = number(256, "[1, 65536]", "Length of the per-instance embedding.")
    pixel_embedding_dim: int = number(16, "[1, 4096]", "Channels of the per-pixel embedding.")
    allowed_masked_classes_ids: list[int] = number([], "[1, 100000]",
        "Class ids whose groundtruth masks are used in training; empty = all.")
    mask_size: int = number(32, "[1, 1024]",
        "Side of the square mask predicted per box; unused with full resolution masks.")
    mask_num_subsamples: int = number(-1, "(-inf, 0]",
        "Meant as the number of masks sampled per image for the loss; -1 = all.",
        no_effect="TF raises for a number above 0, and all masks are learned otherwise")
    use_xy: bool = field(True, "Give the mask network box-relative pixel coordinates as extra input.")
    network_type: str = field("hourglass52",
        "Mask network, e.g. hourglass10, 20, 32, 52 or 100, resnet4, 8 or 16, cond_inst1.",
        values=AllowedValues((*MASK_HOURGLASS_TYPES, *MASK_RESNET_TYPES, "fully_connected", "embedding_projection",
            *MASK_CONDITIONAL_TYPES)))
    use_instance_embedding: bool = field(True, "Give the mask network the embedding of the instance as input.")
    num_init_channels: int = number(64, "[1, 4096]", "Channels of the first block of the mask network.")
    predict_full_resolution_masks: bool = field(False,
        "Predict each mask over the whole feature map, not a crop of its box.")
    postprocess_crop_size: int = number(256, "[1, 4096]",
        "Side of the mask cropped per box at inference; full resolution masks only.")
    max_roi_jitter_ratio: float = number(0.0, "[0, 1]",
        "Most random box jitter in training, as a fraction of box size; 0 = none.")
    jitter_mode: RandomJitterBoxesJitterMode = field(RandomJitterBoxesJitterMode.DEFAULT,
        "How training boxes are jittered, e.g. DEFAULT, EXPAND_SYMMETRIC, SHRINK_SYMMETRIC.")
    box_consistency_loss_weight: float = number(0.0, "[0, inf)",
        "Multiplier on the loss that the mask's row and column extent fits the box; 0 = off.")
    feature_consistency_threshold: float = number(0.4, "(-inf, inf)",
        "Neighbor pixels more similar than this are pushed to the same mask label.")
    feature_consistency_dilation: int = number(2, "[1, 64]",
        "Distance between compared neighbor pixels, in feature map pixels.")
    feature_consistency_loss_weight: float = number(0.0, "[0, inf)",
        "Multiplier on the feature consistency loss; 0 = off; without full resolution masks the loss is 0, as in TF.")
    box_consistency_loss_normalize: LossNormalize = field(LossNormalize.NORMALIZE_AUTO,
        "Averaging of the box consistency loss: AUTO, by GROUNDTRUTH_COUNT, or BALANCED.")
    box_consistency_tightness: bool = field(False,
        "Along the box, take the projection maximum only inside the box, so masks must touch its edges.")
    feature_consistency_warmup_steps: int = number(0, "[0, inf)",
        "Steps over which the feature consistency loss grows to full weight; 0 = full weight from the first step.")
    feature_consistency_warmup_start: int = number(0, "[0, inf)",
        "Step at which the feature consistency loss starts to grow.")
    feature_consistency_type: FeatureConsistencyType = field(FeatureConsistencyType.CONSISTENCY_DEFAULT_LAB,
        "What is compared: CONSISTENCY_DEFAULT_LAB (Lab color) or CONSISTENCY_FEATURE_MAP.")
    feature_consistency_comparison: FeatureConsistencyComparison = field(
        FeatureConsistencyComparison.COMPARISON_DEFAULT_GAUSSIAN,
        "Similarity: COMPARISON_DEFAULT_GAUSSIAN or COMPARISON_NORMALIZED_DOTPROD.")
    use_only_last_stage: bool = field(False,
        "Learn masks only from the backbone's last output, not from every stage.")
    augmented_self_supervision_max_translation: float = number(0.0, "[0, 1]",
        "Most shift of the augmented copy, as a fraction of image size.")
    augmented_self_supervision_flip_probability: float = number(0.0, "[0, 1]",
        "Chance that the augmented copy is mirrored; 0..1.")
    augmented_self_supervision_loss_weight: float = number(0.0, "[0, inf)",
        "Multiplier on the loss between masks of the image and of its augmented copy; 0 = off.")
    augmented_self_supervision_warmup_start: int = number(0, "[0, inf)",
        "Step at which the self-supervision loss starts to grow.")
    augmented_self_supervision_warmup_steps: int = number(0, "[0, inf)",
        "Steps over which the self-supervision loss grows to full weight; 0 = full weight from the first step.")
    augmented_self_supervision_loss: AugmentedSelfSupervisionLoss = field(AugmentedSelfSupervisionLoss.LOSS_DICE,
        "Loss between the two masks: LOSS_DICE, LOSS_MSE or LOSS_KL_DIV.")
    augmented_self_supervision_scale_min: float = number(1.0, "(0, 100]",
        "Smallest random scale of the augmented copy, drawn separately in x and y.")
    augmented_self_supervision_scale_max: float = number(1.0, "(0, 100]",
        "Largest random scale of the augmented copy, drawn separately in x and y.")
    pointly_supervised_keypoint_loss_weight: float = number(0.0, "[0, inf)",
        "Multiplier on the loss from labeled points, given as keypoints whose depth sign is the label.")
    ignore_per_class_box_overlap: bool = field(False,
        "Zero the mask logits, in the mask loss, where boxes of one class overlap.")

    rules = (
        refuse("", "no loss has a weight; set task_loss_weight, or the weight of another loss",
            when=lambda c: not any(getattr(c, name) for name in _MASK_WEIGHTS)),
        distinct("allowed_masked_classes_ids"),
        refuse("classification_loss", "a softmax over the one column of a mask is always 0; use weighted_sigmoid",
            when=lambda c: _mask_loss(c) in ("weighted_softmax", "weighted_logits_softmax")),
        refuse("use_instance_embedding", "{network_type} has no layers that read the embedding, and is made of it "
            "instead; set use_instance_embedding: false, as TF demands",
            when=lambda c: _uses_embedding(c) and c.use_instance_embedding),
        refuse("use_xy", "embedding_projection multiplies embeddings alone; set use_xy: false, as TF demands",
            when=lambda c: c.network_type == "embedding_projection" and c.use_xy),
        refuse("dim", "embedding_projection multiplies embeddings of one length; set both to the same",
            when=lambda c: c.network_type == "embedding_projection" and c.dim != c.pixel_embedding_dim),
        Rule("dim", lambda c: _conditional_problem(c)),
        refuse("network_type", "a crop of mask_size is what fully_connected reads; set "
            "predict_full_resolution_masks: false",
            when=lambda c: c.network_type == "fully_connected" and c.predict_full_resolution_masks),
        refuse("mask_size", "{network_type} halves it several times; take a multiple of 2 for hourglass10, 4 for 20, 8 "
            "for 32, and of 32 for 52 and 100", when=lambda c: not c.predict_full_resolution_masks and
            c.mask_size % mask_multiple(c.network_type)),
        refuse("max_roi_jitter_ratio", "full resolution masks are not cropped, and TF raises; remove the line",
            when=lambda c: c.predict_full_resolution_masks and c.max_roi_jitter_ratio),
        refuse("box_consistency_loss_normalize", "NORMALIZE_BALANCED needs a loss of each pixel, which a dice loss is "
            "not; TF raises", when=lambda c: c.box_consistency_loss_normalize.name == "NORMALIZE_BALANCED" and
            _mask_loss(c) == "weighted_dice_classification_loss"),
        refuse("augmented_self_supervision_loss", "LOSS_UNSET is none, and TF raises; choose LOSS_DICE, LOSS_MSE or "
            "LOSS_KL_DIV", when=lambda c: c.augmented_self_supervision_loss_weight and
            c.augmented_self_supervision_loss.name == "LOSS_UNSET"),
        ordered("augmented_self_supervision_scale_min", "augmented_self_supervision_scale_max"),
        refuse("pointly_supervised_keypoint_loss_weight", "points lie in the image; set "
            "predict_full_resolution_masks: true, without which TF raises",
            when=lambda c: c.pointly_supervised_keypoint_loss_weight and not c.predict_full_resolution_masks),
    )
