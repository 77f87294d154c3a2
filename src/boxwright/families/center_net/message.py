"""CenterNet.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import AllowedValues, field, number
from boxwright.config.message import Message
from boxwright.config.messages.image_resizer import ImageResizer
from boxwright.config.messages.losses import ClassificationLoss, LocalizationLoss, Loss
from boxwright.config.messages.post_processing import PostProcessing
from boxwright.config.rules import TYPE, Rule, color_only, default_only, distinct, of_type, refuse
from boxwright.families.center_net.deep_mac_message import CenterNetDeepMACMaskEstimation

DENSE_POSE_PARTS = 24
_OF_VECTORS = "compares boxes, not vectors; TF fails with it too: use l1_localization_loss"


# Ranking modes that do without the sizes of boxes.
_WITHOUT_BOXES = ("min_distance", "score_distance_ratio")


def _has_one_class(config: "CenterNet") -> bool:
    return config.num_classes == 1 and len(config.keypoint_estimation_task) == 1


def _centers_from_keypoints(config: "CenterNet") -> bool:
    centers = config.object_center_params
    return centers is not None and bool(centers.keypoint_weights_for_center)


def _changes_frame(config: "CenterNet") -> bool:
    suppression = config.post_processing.batch_non_max_suppression if config.post_processing is not None else None
    return suppression is not None and suppression.change_coordinate_frame


# What TF's DeepMAC is built without, whatever the configuration says.
_NOT_OF_DEEPMAC = ("keypoint_estimation_task", "mask_estimation_task", "densepose_estimation_task",
    "track_estimation_task", "temporal_offset_task", "use_depthwise", "post_processing")


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


_HAS_FIXED_NECK = of_type("hourglass|resnet|mobilenet_v2$")


class CenterNetFeatureExtractor(Message):
    """Backbone of a CenterNet model and its input normalization."""

    type: str = field("",
        "Backbone and upsampling, e.g. hourglass_104 or resnet_v2_50; timm/NAME takes a backbone of timm.",
        values=AllowedValues((*HOURGLASS_TYPES, *RESNET_TYPES, *RESNET_FPN_TYPES, *MOBILENET_TYPES), prefix="timm/"))
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
        values=AllowedValues(("nearest", "bilinear")))

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
        "Count the heatmap loss only on the classes that each image lists as labeled.",
        note="they are image/class/label of a record, or Open Images' image-level labels; TensorFlow's own readers "
             "never fill its groundtruth_labeled_classes, and it stops with an error")
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
        values=AllowedValues(("min_distance", "score_distance_ratio", "score_scaled_distance_ratio",
            "gaussian_weighted", "gaussian_weighted_const")))
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

class CenterNetDensePoseEstimation(Message, name="CenterNet.DensePoseEstimation"):
    """DensePose head: body part and surface coordinates per pixel."""

    task_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the whole DensePose loss.")
    class_id: int = number(0, "[0, 100000)", "Class with DensePose labels, usually person, counted from 0.")
    loss: Loss | None = field(None, "Part loss (classification part) and coordinate loss (localization part).")
    num_parts: int = field(24, "Number of body parts to tell apart; 24.")
    part_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the body part loss.")
    coordinate_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the surface coordinate loss.")
    upsample_to_input_res: bool = field(True,
        "Upsample the head's outputs to input size before the loss; predictions keep the output stride.")
    heatmap_bias_init: float = number(-2.19, "(-inf, inf)", "Initial bias (logit) of the part head's last layer.")

    rules = (
        refuse("num_parts", "TF's targets are of 24 parts, and its loss raises for another number; remove the line",
            when=lambda c: c.num_parts != DENSE_POSE_PARTS),
        refuse("loss.localization_loss", _OF_VECTORS, when=lambda c: c.loss is not None and _compares_boxes(c.loss)),
        refuse("loss", "only its classification_loss and localization_loss are used; weigh them with part_loss_weight "
            "and coordinate_loss_weight", when=lambda c: c.loss is not None and
            set(c.loss.present()) - {"classification_loss", "localization_loss"}),
    )

class CenterNetTrackEstimation(Message, name="CenterNet.TrackEstimation"):
    """Identity embedding head, trained by classifying track ids."""

    task_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the tracking loss.")
    num_track_ids: int = number(0, "[0, 10000000]",
        "Number of distinct track ids in the training data, which count from 0.")
    reid_embed_size: int = number(128, "[1, 65536]", "Length of each identity embedding.")
    num_fc_layers: int = number(1, "[1, 64]", "Dense layers between the embedding and the track id scores.")
    classification_loss: ClassificationLoss | None = field(None, "Loss of the track id classification.")

    rules = (refuse("num_track_ids", "missing; set it to the number of track ids in the training data",
        when=lambda c: c.num_track_ids == 0),)

class CenterNetTemporalOffsetEstimation(Message, name="CenterNet.TemporalOffsetEstimation"):
    """Head for each object's displacement between two frames."""

    task_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the temporal offset loss.")
    localization_loss: LocalizationLoss | None = field(None, "Regression loss of the displacement.")

    rules = (refuse("localization_loss", _OF_VECTORS, when=_compares_boxes),)

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
        "Head for body parts and surface coordinates; needs mask_estimation_task.")
    track_estimation_task: CenterNetTrackEstimation | None = field(None, "Head for an identity embedding per object.")
    temporal_offset_task: CenterNetTemporalOffsetEstimation | None = field(None,
        "Head for each object's displacement between two frames.")
    deepmac_mask_estimation: CenterNetDeepMACMaskEstimation | None = field(None,
        "DeepMAC mask head, able to segment classes trained without masks.")
    post_processing: PostProcessing | None = field(None, "Optional non-max suppression after the peaks are read.")
    output_prediction_dict: bool = field(False, "Also return the raw head outputs with the detections.",
        no_effect="raw outputs are what predict() returns always; an export has detections alone")

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
            "TF; remove predict_depth", when=lambda c: not _has_one_class(c) and
            any(task.predict_depth for task in c.keypoint_estimation_task)),
        refuse("keypoint_estimation_task", "argmax_postprocessing works only with num_classes: 1 and one keypoint task",
            when=lambda c: not _has_one_class(c) and
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
        refuse("densepose_estimation_task", "parts and coordinates are those of masks, without which TF raises; set "
            "mask_estimation_task", when=lambda c: c.densepose_estimation_task is not None and
            c.mask_estimation_task is None),
        refuse("densepose_estimation_task.class_id", "counted from 0, of {num_classes} classes",
            when=lambda c: c.densepose_estimation_task is not None and
            c.densepose_estimation_task.class_id >= c.num_classes),
        refuse("deepmac_mask_estimation", "masks are predicted for boxes; set object_detection_task",
            when=lambda c: c.deepmac_mask_estimation is not None and c.object_detection_task is None),
        Rule("deepmac_mask_estimation", lambda c: _ignored_beside_deepmac(c)),
        refuse("deepmac_mask_estimation.allowed_masked_classes_ids", "an id is over num_classes {num_classes}",
            when=lambda c: c.deepmac_mask_estimation is not None and
            max(c.deepmac_mask_estimation.allowed_masked_classes_ids, default=0) > c.num_classes),
    )
