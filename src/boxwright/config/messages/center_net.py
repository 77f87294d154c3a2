"""CenterNet.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from itertools import pairwise

from boxwright.config.field import Enum, Values, field, number
from boxwright.config.message import Message
from boxwright.config.messages.image_resizer import ImageResizer
from boxwright.config.messages.losses import ClassificationLoss, LocalizationLoss, Loss
from boxwright.config.messages.post_processing import PostProcessing
from boxwright.config.reasons import LATER
from boxwright.config.rules import TYPE, Rule, color_only, default_only, distinct, of_type, ordered, refuse


class RandomJitterBoxesJitterMode(Enum):
    """Values of `RandomJitterBoxes.JitterMode`."""

    DEFAULT = 0
    EXPAND = 1
    SHRINK = 2
    EXPAND_SYMMETRIC = 4
    SHRINK_SYMMETRIC = 5
    EXPAND_SYMMETRIC_XY = 6
    SHRINK_SYMMETRIC_XY = 7

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

_OF_VECTORS = "compares boxes, not vectors; TF fails with it too: use l1_localization_loss"


# Ranking modes that do without the sizes of boxes.
_WITHOUT_BOXES = ("min_distance", "score_distance_ratio")


def _is_of_one_class(config: "CenterNet") -> bool:
    return config.num_classes == 1 and len(config.keypoint_estimation_task) == 1


def _centers_from_keypoints(config: "CenterNet") -> bool:
    centers = config.object_center_params
    return centers is not None and bool(centers.keypoint_weights_for_center)


def _changes_frame(config: "CenterNet") -> bool:
    suppression = config.post_processing.batch_non_max_suppression if config.post_processing is not None else None
    return suppression is not None and suppression.change_coordinate_frame


# What TF's DeepMAC is built without, whatever the configuration says.
_NOT_OF_DEEPMAC = ("keypoint_estimation_task", "mask_estimation_task", "temporal_offset_task", "use_depthwise",
    "post_processing")


def _ignored_beside_deepmac(config: "CenterNet") -> str:
    if config.deepmac_mask_estimation is None:
        return ""
    other = next((name for name in _NOT_OF_DEEPMAC if getattr(config, name)), None)
    return "" if other is None else f"TF ignores {other} beside it; remove one of both"


def _compares_boxes(config: Message) -> bool:
    loss = getattr(config, "localization_loss", None)
    return isinstance(loss, LocalizationLoss) and loss.which("localization_loss") in ("weighted_iou", "weighted_giou")


# Extractors by TF's names.
HOURGLASS_TYPES = ("hourglass_10", "hourglass_20", "hourglass_32", "hourglass_52", "hourglass_104")
RESNET_TYPES = ("resnet_v2_50", "resnet_v2_101")
RESNET_FPN_TYPES = ("resnet_v1_18_fpn", "resnet_v1_34_fpn", "resnet_v1_50_fpn", "resnet_v1_101_fpn")
MOBILENET_TYPES = ("mobilenet_v2", "mobilenet_v2_fpn", "mobilenet_v2_fpn_sep_conv")


# DeepMAC's mask networks by TF's names.
MASK_HOURGLASS_TYPES = ("hourglass10", "hourglass20", "hourglass32", "hourglass52", "hourglass100",
    "hourglass20_uniform_size", "hourglass20_no_shortcut")
MASK_RESNET_TYPES = ("resnet4", "resnet8", "resnet12", "resnet16", "resnet20")
MASK_CONDITIONAL_TYPES = tuple(f"cond_inst{depth}" for depth in range(1, 6))
_MASK_WEIGHTS = ("task_loss_weight", "box_consistency_loss_weight", "feature_consistency_loss_weight",
    "augmented_self_supervision_loss_weight", "pointly_supervised_keypoint_loss_weight")
# Of what number the sides of a mask have to be multiples.
_MASK_MULTIPLES = {"hourglass10": 2, "hourglass20": 4, "hourglass20_no_shortcut": 4, "hourglass32": 8,
    "hourglass52": 32, "hourglass100": 32}


def mask_multiple(network_type: str) -> int:
    """Return of what number the sides of a mask network's input have to be multiples."""
    return _MASK_MULTIPLES.get(network_type, 1)


def _mask_loss(config: "CenterNetDeepMACMaskEstimation") -> str | None:
    loss = config.classification_loss
    return None if loss is None else loss.which("classification_loss")


def _made_of_embedding(config: "CenterNetDeepMACMaskEstimation") -> bool:
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


_HAS_FIXED_NECK = of_type("hourglass|resnet|mobilenet_v2$")


class CenterNetFeatureExtractor(Message):
    """Backbone of a CenterNet model and its input normalization."""

    type: str = field("",
        "Backbone and upsampling, e.g. hourglass_104 or resnet_v2_50; timm/NAME takes a backbone of timm.",
        values=Values((*HOURGLASS_TYPES, *RESNET_TYPES, *RESNET_FPN_TYPES, *MOBILENET_TYPES), prefix="timm/"))
    channel_means: list[float] = number([], "(-inf, inf)",
        "Per-channel values subtracted from the image, on the 0..255 scale, in the network's channel order.", length=3)
    channel_stds: list[float] = number([], "(0, inf)",
        "Per-channel values that divide the image after the means are subtracted.", length=3)
    bgr_ordering: bool = field(False,
        "The network takes blue-green-red input: channels are reversed before normalization.")
    use_depthwise: bool = field(False,
        "Use depthwise separable convolutions in the backbone's upsampling part, where supported.",
        no_effect="no extractor of TF reads it; for separable convolutions there set use_separable_conv")
    depth_multiplier: float = number(1.0, "(0, 100]",
        "Factor on the channel count of the backbone; MobileNet backbones.")
    use_separable_conv: bool = field(False, "Use separable convolutions in the feature pyramid, where supported.")
    upsampling_interpolation: str = field("nearest", "Upsampling in the feature pyramid: nearest or bilinear.",
        values=Values(("nearest", "bilinear")))

    rules = (
        TYPE,
        default_only("depth_multiplier", when=of_type("hourglass|resnet|timm/")),
        default_only("use_separable_conv", when=_HAS_FIXED_NECK),
        default_only("upsampling_interpolation", when=_HAS_FIXED_NECK),
    )

class CenterNetPredictionHeadParams(Message, name="CenterNet.PredictionHeadParams"):
    """Hidden convolutions of one prediction head; both lists need the same length."""

    num_filters: list[int] = number([], "[1, 8192]",
        "Channels of each hidden convolution, in order; the default head has one of 256.")
    kernel_sizes: list[int] = number([], "[1, 31]",
        "Kernel side of each hidden convolution, in order; the default head has one of 3.")

    rules = (refuse("kernel_sizes", "expected as many as num_filters",
        when=lambda c: len(c.num_filters) != len(c.kernel_sizes)),)

class CenterNetObjectDetection(Message, name="CenterNet.ObjectDetection"):
    """Box heads of CenterNet: size and center offset."""

    task_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the whole box task loss.")
    offset_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the center offset loss.")
    scale_loss_weight: float = number(0.1, "[0, inf)",
        "Multiplier on the height and width loss; errors are in output pixels, so it depends on input size.")
    localization_loss: LocalizationLoss | None = field(None,
        "Regression loss for offset and size, usually l1_localization_loss.")
    scale_head_params: CenterNetPredictionHeadParams | None = field(None, "Layers of the height and width head.")
    offset_head_params: CenterNetPredictionHeadParams | None = field(None, "Layers of the center offset head.")

    rules = (refuse("localization_loss", _OF_VECTORS, when=_compares_boxes),)

class CenterNetObjectCenterParams(Message, name="CenterNet.ObjectCenterParams"):
    """Center heatmap of CenterNet: loss, targets and peak reading."""

    object_center_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the center heatmap loss.")
    classification_loss: ClassificationLoss | None = field(None,
        "Heatmap loss, usually penalty_reduced_logistic_focal_loss.")
    heatmap_bias_init: float = number(-2.19, "(-inf, inf)",
        "Initial bias (logit) of the heatmap's last layer; -2.19 is a probability near 0.1.")
    min_box_overlap_iou: float = number(0.7, "(0, 1]",
        "IoU a shifted box must keep; sets the radius of the target Gaussian; 0..1.")
    max_box_predictions: int = number(100, "[1, 10000]", "Most detections returned per image.")
    use_labeled_classes: bool = field(False,
        "Count the heatmap loss only on the classes that each image lists as labeled.", refused=LATER)
    keypoint_weights_for_center: list[float] = number([], "[0, inf)",
        "Place centers at this weighted mean of keypoints; one weight per keypoint; empty = box center.")
    center_head_params: CenterNetPredictionHeadParams | None = field(None, "Layers of the center heatmap head.")
    peak_max_pool_kernel_size: int = number(3, "[0, 99]",
        "Side of the window in which a peak must be the maximum, in output pixels; 1 = no suppression.")

class CenterNetKeypointEstimationKeypointLabelToStdEntry(Message,
    name="CenterNet.KeypointEstimation.KeypointLabelToStdEntry"):
    """One map entry: keypoint label and its standard deviation."""

    key: str = field("", "Keypoint label, as written in the keypoint label map.")
    value: float = number(0.0, "(0, inf)", "Standard deviation of this keypoint's target Gaussian, relative to object "
        "size.")

class CenterNetKeypointEstimation(Message, name="CenterNet.KeypointEstimation"):
    """One keypoint task: heatmap, offset and regression heads for one class."""

    task_name: str = field("", "Unique name of this keypoint task.")
    task_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the whole keypoint task loss.")
    loss: Loss | None = field(None,
        "Heatmap loss (classification part) and regression and offset loss (localization part).")
    keypoint_class_name: str = field("", "Object class that owns these keypoints, as written in the object label map.")
    keypoint_label_to_std: list[CenterNetKeypointEstimationKeypointLabelToStdEntry] = field([],
        "Keypoint label to standard deviation, sizing its target Gaussian; one for each keypoint of the class; 1 for "
        "all if empty.")
    keypoint_regression_loss_weight: float = number(1.0, "[0, inf)",
        "Multiplier on the loss of center-to-keypoint vectors; depends on input size.")
    keypoint_heatmap_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the keypoint heatmap loss.")
    keypoint_offset_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the keypoint sub-pixel offset loss.")
    heatmap_bias_init: float = number(-2.19, "(-inf, inf)",
        "Initial bias (logit) of the keypoint heatmap's last layer; -2.19 is a probability near 0.1.")
    keypoint_candidate_score_threshold: float = number(0.1, "[0, 1]",
        "Heatmap peaks scoring below this are not keypoint candidates; 0..1.")
    num_candidates_per_keypoint: int = number(100, "[1, 10000]", "Most heatmap peaks kept per keypoint type and image.")
    peak_max_pool_kernel_size: int = number(3, "[0, 99]",
        "Side of the window in which a peak must be the maximum, in output pixels; 1 = no suppression.")
    unmatched_keypoint_score: float = number(0.1, "[0, 1]",
        "Score of a keypoint left at its regressed place because no candidate fits; 0..1.")
    box_scale: float = number(1.2, "(0, inf)",
        "Factor that enlarges the object box in which candidates are accepted.")
    candidate_search_scale: float = number(0.3, "[0, inf)",
        "Search radius around the regressed keypoint, as a fraction of the longer box side.")
    candidate_ranking_mode: str = field("min_distance",
        "min_distance, score_distance_ratio, score_scaled_distance_ratio or gaussian_weighted[_const].",
        values=Values(("min_distance", "score_distance_ratio", "score_scaled_distance_ratio", "gaussian_weighted",
            "gaussian_weighted_const")))
    score_distance_offset: float = number(1.0, "(0, inf)",
        "Added to the distance in score / (distance + offset); larger favors score; score_distance_ratio only.")
    score_distance_multiplier: float = number(0.1, "(0, inf)",
        "Box size times this is the distance offset; score_scaled_distance_ratio only.")
    std_dev_multiplier: float = number(1.0, "(0, inf)",
        "Factor on the keypoint standard deviations when ranking; gaussian_weighted only.")
    offset_peak_radius: int = number(0, "[0, 64]",
        "Radius around a keypoint that gets offset targets, in output pixels; 0 = the peak cell only.")
    per_keypoint_offset: bool = field(False,
        "Predict an own offset for each keypoint type; advised when offset_peak_radius is not 0.")
    predict_depth: bool = field(False, "Also predict a depth for each keypoint.")
    per_keypoint_depth: bool = field(False,
        "Predict depth in one channel per keypoint type instead of one shared channel.")
    keypoint_depth_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the keypoint depth loss.")
    clip_out_of_frame_keypoints: bool = field(False,
        "Move keypoints outside the image to its border and set their score to 0; all keypoint tasks have to agree.")
    rescore_instances: bool = field(False, "Recompute each instance's score from its keypoint scores.")
    rescoring_threshold: float = number(0.0, "[0, 1]",
        "Only keypoints scoring above this enter the new instance score; needs rescore_instances.")
    gaussian_denom_ratio: float = number(0.1, "(0, inf)",
        "Feature map's shorter side times this is the Gaussian's denominator; gaussian_weighted_const only.")
    argmax_postprocessing: bool = field(False,
        "Read keypoints with argmax instead of top-k; works only with one class and one keypoint task.")
    heatmap_head_params: CenterNetPredictionHeadParams | None = field(None, "Layers of the keypoint heatmap head.")
    offset_head_params: CenterNetPredictionHeadParams | None = field(None, "Layers of the keypoint offset head.")
    regress_head_params: CenterNetPredictionHeadParams | None = field(None,
        "Layers of the center-to-keypoint regression head.")

    rules = (
        refuse("task_name", "missing; give the task a name of its own", when=lambda c: not c.task_name),
        refuse("loss.localization_loss", _OF_VECTORS, when=lambda c: c.loss is not None and _compares_boxes(c.loss)),
        refuse("loss", "only its classification_loss and localization_loss are used; weigh them with "
            "keypoint_heatmap_loss_weight and the like", when=lambda c: c.loss is not None and
            set(c.loss.present()) - {"classification_loss", "localization_loss"}),
        refuse("argmax_postprocessing", "ranks by gaussian_weighted_const alone; set candidate_ranking_mode to it",
            when=lambda c: c.argmax_postprocessing and c.candidate_ranking_mode != "gaussian_weighted_const"),
        refuse("candidate_ranking_mode", "gaussian_weighted_const needs argmax_postprocessing: true",
            when=lambda c: not c.argmax_postprocessing and c.candidate_ranking_mode == "gaussian_weighted_const"),
        refuse("argmax_postprocessing", "needs per_keypoint_offset: true",
            when=lambda c: c.argmax_postprocessing and not c.per_keypoint_offset),
        refuse("per_keypoint_depth", "no depth is predicted; set predict_depth: true",
            when=lambda c: c.per_keypoint_depth and not c.predict_depth),
    )

class CenterNetMaskEstimation(Message, name="CenterNet.MaskEstimation"):
    """Instance masks from a per-class segmentation, cropped by the detected boxes."""

    task_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the mask loss.")
    classification_loss: ClassificationLoss | None = field(None, "Per-pixel segmentation loss.")
    mask_height: int = number(256, "[1, 4096]", "Rows of each output mask, in mask pixels.")
    mask_width: int = number(256, "[1, 4096]", "Columns of each output mask, in mask pixels.")
    score_threshold: float = number(0.5, "[0, 1]", "Mask pixels with a probability above this are foreground; 0..1.")
    heatmap_bias_init: float = number(-2.19, "(-inf, inf)", "Initial bias (logit) of the segmentation's last layer.")
    mask_head_params: CenterNetPredictionHeadParams | None = field(None, "Layers of the segmentation head.")

class CenterNetDensePoseEstimation(Message, name="CenterNet.DensePoseEstimation", refused=LATER):
    """DensePose head: body part and surface coordinates per pixel."""

    task_loss_weight: float = field(1.0, "Multiplier on the whole DensePose loss.")
    class_id: int = field(0, "Label map id of the class with DensePose labels, usually person.")
    loss: Loss | None = field(None, "Part loss (classification part) and coordinate loss (localization part).")
    num_parts: int = field(24, "Number of body parts to tell apart.")
    part_loss_weight: float = field(1.0, "Multiplier on the body part loss.")
    coordinate_loss_weight: float = field(1.0, "Multiplier on the surface coordinate loss.")
    upsample_to_input_res: bool = field(True,
        "Upsample the head's outputs to input size before the loss; predictions keep the output stride.")
    heatmap_bias_init: float = field(-2.19, "Initial bias (logit) of the part head's last layer.")

class CenterNetTrackEstimation(Message, name="CenterNet.TrackEstimation", refused=LATER):
    """Identity embedding head, trained by classifying track ids."""

    task_loss_weight: float = field(1.0, "Multiplier on the tracking loss.")
    num_track_ids: int = field(0, "Number of distinct track ids in the training data.")
    reid_embed_size: int = field(128, "Length of each identity embedding.")
    num_fc_layers: int = field(1, "Dense layers between the embedding and the track id scores.")
    classification_loss: ClassificationLoss | None = field(None, "Loss of the track id classification.")

class CenterNetTemporalOffsetEstimation(Message, name="CenterNet.TemporalOffsetEstimation"):
    """Head for each object's displacement between two frames."""

    task_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the temporal offset loss.")
    localization_loss: LocalizationLoss | None = field(None, "Regression loss of the displacement.")

    rules = (refuse("localization_loss", _OF_VECTORS, when=_compares_boxes),)

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
        values=Values((*MASK_HOURGLASS_TYPES, *MASK_RESNET_TYPES, "fully_connected", "embedding_projection",
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
            when=lambda c: _made_of_embedding(c) and c.use_instance_embedding),
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

class CenterNet(Message):
    """Anchor-free detector that finds objects as peaks of a center heatmap."""

    num_classes: int = number(0, "[0, 100000]", "Number of object classes, background not counted.")
    feature_extractor: CenterNetFeatureExtractor | None = field(None, "Backbone and its input normalization.")
    image_resizer: ImageResizer | None = field(None, "How input images are resized before the network.")
    use_depthwise: bool = field(False, "Use depthwise separable convolutions in the prediction heads.")
    compute_heatmap_sparse: bool = field(False,
        "Draw target heatmaps with the sparse op: scales better with classes, may use more memory.",
        no_effect="both of TF's ways give the same heatmap; it is drawn in one, whatever the number of classes")
    object_detection_task: CenterNetObjectDetection | None = field(None,
        "Box size and center offset heads; omit for a model without boxes.")
    object_center_params: CenterNetObjectCenterParams | None = field(None, "Center heatmap head, shared by all tasks.")
    keypoint_label_map_path: str = field("", "Label map file naming the keypoints; needed by the keypoint tasks.")
    keypoint_estimation_task: list[CenterNetKeypointEstimation] = field([],
        "Keypoint tasks, one entry per class with keypoints.")
    mask_estimation_task: CenterNetMaskEstimation | None = field(None,
        "Mask head by per-class segmentation, cut out by the boxes.")
    densepose_estimation_task: CenterNetDensePoseEstimation | None = field(None,
        "Head for body parts and surface coordinates.", refused=LATER)
    track_estimation_task: CenterNetTrackEstimation | None = field(None, "Head for an identity embedding per object.",
        refused=LATER)
    temporal_offset_task: CenterNetTemporalOffsetEstimation | None = field(None,
        "Head for each object's displacement between two frames.")
    deepmac_mask_estimation: CenterNetDeepMACMaskEstimation | None = field(None,
        "DeepMAC mask head, able to segment classes trained without masks.")
    post_processing: PostProcessing | None = field(None, "Optional non-max suppression after the peaks are read.")
    output_prediction_dict: bool = field(False, "Also return the raw head outputs with the detections.", refused=LATER)

    rules = (
        color_only(""),
        refuse("", "neither boxes nor keypoints are learned; set object_detection_task or keypoint_estimation_task",
            when=lambda c: c.object_detection_task is None and not c.keypoint_estimation_task),
        refuse("object_center_params", "missing from the configuration", when=lambda c: c.object_center_params is None),
        refuse("keypoint_label_map_path", "missing; keypoint_estimation_task needs the names of the keypoints",
            when=lambda c: c.keypoint_estimation_task and not c.keypoint_label_map_path),
        distinct("keypoint_estimation_task", "task_name"),
        distinct("keypoint_estimation_task", "keypoint_class_name"),
        refuse("keypoint_estimation_task", "depths are predicted only with num_classes: 1 and one keypoint task, as in "
            "TF; remove predict_depth", when=lambda c: not _is_of_one_class(c) and
            any(task.predict_depth for task in c.keypoint_estimation_task)),
        refuse("keypoint_estimation_task", "argmax_postprocessing works only with num_classes: 1 and one keypoint task",
            when=lambda c: not _is_of_one_class(c) and
            any(task.argmax_postprocessing for task in c.keypoint_estimation_task)),
        refuse("keypoint_estimation_task", "this candidate_ranking_mode needs the sizes of boxes; set "
            "object_detection_task, or min_distance or score_distance_ratio", when=lambda c:
            c.object_detection_task is None and any(task.candidate_ranking_mode not in _WITHOUT_BOXES
            for task in c.keypoint_estimation_task)),
        refuse("object_center_params.keypoint_weights_for_center", "needs exactly one keypoint_estimation_task, and no "
            "object_detection_task", when=lambda c: _centers_from_keypoints(c) and
            (c.object_detection_task is not None or len(c.keypoint_estimation_task) != 1)),
        refuse("post_processing", "TF fails unless batch_non_max_suppression says change_coordinate_frame: false",
            when=_changes_frame),
        refuse("post_processing", "only batch_non_max_suppression is used, as scores are probabilities already",
            when=lambda c: c.post_processing is not None and
            set(c.post_processing.present()) - {"batch_non_max_suppression"}),
        refuse("deepmac_mask_estimation", "masks are predicted for boxes; set object_detection_task",
            when=lambda c: c.deepmac_mask_estimation is not None and c.object_detection_task is None),
        Rule("deepmac_mask_estimation", lambda c: _ignored_beside_deepmac(c)),
        refuse("deepmac_mask_estimation.allowed_masked_classes_ids", "an id is over num_classes {num_classes}",
            when=lambda c: c.deepmac_mask_estimation is not None and
            max(c.deepmac_mask_estimation.allowed_masked_classes_ids, default=0) > c.num_classes),
    )
