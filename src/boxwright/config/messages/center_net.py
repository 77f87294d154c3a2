"""CenterNet.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Enum, Float, Int32, Message, String
from boxwright.config.messages.image_resizer import ImageResizer
from boxwright.config.messages.losses import ClassificationLoss, LocalizationLoss, Loss
from boxwright.config.messages.post_processing import PostProcessing
from boxwright.config.reasons import OTHER_FAMILY


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


class CenterNetFeatureExtractor(Message):
    """Backbone of a CenterNet model and its input normalization."""

    proto_name: ClassVar[str] = "CenterNetFeatureExtractor"
    refused: ClassVar[str] = OTHER_FAMILY

    type: String = Field(
        "", description="Registered extractor name, e.g. hourglass_104 or resnet_v2_50; an unknown name fails at build."
    )
    channel_means: list[Float] = Field(
        default_factory=list,
        description="Per-channel values subtracted from the image, on the 0..255 scale, in the network's channel order.",
    )
    channel_stds: list[Float] = Field(
        default_factory=list, description="Per-channel values that divide the image after the means are subtracted."
    )
    bgr_ordering: Bool = Field(
        False, description="The network takes blue-green-red input: channels are reversed before normalization."
    )
    use_depthwise: Bool = Field(
        False, description="Use depthwise separable convolutions in the backbone's upsampling part, where supported."
    )
    depth_multiplier: Float = Field(
        1.0, description="Factor on the channel count of the backbone; MobileNet backbones."
    )
    use_separable_conv: Bool = Field(
        False, description="Use separable convolutions in the feature pyramid, where supported."
    )
    upsampling_interpolation: String = Field(
        "nearest", description="Upsampling in the feature pyramid: nearest or bilinear."
    )


class CenterNetPredictionHeadParams(Message):
    """Hidden convolutions of one prediction head; both lists need the same length."""

    proto_name: ClassVar[str] = "CenterNet.PredictionHeadParams"
    refused: ClassVar[str] = OTHER_FAMILY

    num_filters: list[Int32] = Field(
        default_factory=list,
        description="Channels of each hidden convolution, in order; the default head has one of 256.",
    )
    kernel_sizes: list[Int32] = Field(
        default_factory=list,
        description="Kernel side of each hidden convolution, in order; the default head has one of 3.",
    )


class CenterNetObjectDetection(Message):
    """Box heads of CenterNet: size and center offset."""

    proto_name: ClassVar[str] = "CenterNet.ObjectDetection"
    refused: ClassVar[str] = OTHER_FAMILY

    task_loss_weight: Float = Field(1.0, description="Multiplier on the whole box task loss.")
    offset_loss_weight: Float = Field(1.0, description="Multiplier on the center offset loss.")
    scale_loss_weight: Float = Field(
        0.1,
        description="Multiplier on the height and width loss; errors are in output pixels, so it depends on input size.",
    )
    localization_loss: LocalizationLoss | None = Field(
        None, description="Regression loss for offset and size, usually l1_localization_loss."
    )
    scale_head_params: CenterNetPredictionHeadParams | None = Field(
        None, description="Layers of the height and width head."
    )
    offset_head_params: CenterNetPredictionHeadParams | None = Field(
        None, description="Layers of the center offset head."
    )


class CenterNetObjectCenterParams(Message):
    """Center heatmap of CenterNet: loss, targets and peak reading."""

    proto_name: ClassVar[str] = "CenterNet.ObjectCenterParams"
    refused: ClassVar[str] = OTHER_FAMILY

    object_center_loss_weight: Float = Field(1.0, description="Multiplier on the center heatmap loss.")
    classification_loss: ClassificationLoss | None = Field(
        None, description="Heatmap loss, usually penalty_reduced_logistic_focal_loss."
    )
    heatmap_bias_init: Float = Field(
        -2.19, description="Initial bias (logit) of the heatmap's last layer; -2.19 is a probability near 0.1."
    )
    min_box_overlap_iou: Float = Field(
        0.7, description="IoU a shifted box must keep; sets the radius of the target Gaussian; 0..1."
    )
    max_box_predictions: Int32 = Field(100, description="Most detections returned per image.")
    use_labeled_classes: Bool = Field(
        False, description="Count the heatmap loss only on the classes that each image lists as labeled."
    )
    keypoint_weights_for_center: list[Float] = Field(
        default_factory=list,
        description="Place centers at this weighted mean of keypoints; one weight per keypoint; empty = box center.",
    )
    center_head_params: CenterNetPredictionHeadParams | None = Field(
        None, description="Layers of the center heatmap head."
    )
    peak_max_pool_kernel_size: Int32 = Field(
        3, description="Side of the window in which a peak must be the maximum, in output pixels; 1 = no suppression."
    )


class CenterNetKeypointEstimationKeypointLabelToStdEntry(Message):
    """One map entry: keypoint label and its standard deviation."""

    proto_name: ClassVar[str] = "CenterNet.KeypointEstimation.KeypointLabelToStdEntry"
    refused: ClassVar[str] = OTHER_FAMILY

    key: String = Field("", description="Keypoint label, as written in the keypoint label map.")
    value: Float = Field(
        0.0, description="Standard deviation of this keypoint's target Gaussian, relative to object size."
    )


class CenterNetKeypointEstimation(Message):
    """One keypoint task: heatmap, offset and regression heads for one class."""

    proto_name: ClassVar[str] = "CenterNet.KeypointEstimation"
    refused: ClassVar[str] = OTHER_FAMILY

    task_name: String = Field("", description="Unique name of this keypoint task.")
    task_loss_weight: Float = Field(1.0, description="Multiplier on the whole keypoint task loss.")
    loss: Loss | None = Field(
        None, description="Heatmap loss (classification part) and regression and offset loss (localization part)."
    )
    keypoint_class_name: String = Field(
        "", description="Object class that owns these keypoints, as written in the object label map."
    )
    keypoint_label_to_std: list[CenterNetKeypointEstimationKeypointLabelToStdEntry] = Field(
        default_factory=list,
        description="Keypoint label to standard deviation, sizing its target Gaussian; its keys are the keypoints used.",
    )
    keypoint_regression_loss_weight: Float = Field(
        1.0, description="Multiplier on the loss of center-to-keypoint vectors; depends on input size."
    )
    keypoint_heatmap_loss_weight: Float = Field(1.0, description="Multiplier on the keypoint heatmap loss.")
    keypoint_offset_loss_weight: Float = Field(1.0, description="Multiplier on the keypoint sub-pixel offset loss.")
    heatmap_bias_init: Float = Field(
        -2.19, description="Initial bias (logit) of the keypoint heatmap's last layer; -2.19 is a probability near 0.1."
    )
    keypoint_candidate_score_threshold: Float = Field(
        0.1, description="Heatmap peaks scoring below this are not keypoint candidates; 0..1."
    )
    num_candidates_per_keypoint: Int32 = Field(100, description="Most heatmap peaks kept per keypoint type and image.")
    peak_max_pool_kernel_size: Int32 = Field(
        3, description="Side of the window in which a peak must be the maximum, in output pixels; 1 = no suppression."
    )
    unmatched_keypoint_score: Float = Field(
        0.1, description="Score of a keypoint left at its regressed place because no candidate fits; 0..1."
    )
    box_scale: Float = Field(1.2, description="Factor that enlarges the object box in which candidates are accepted.")
    candidate_search_scale: Float = Field(
        0.3, description="Search radius around the regressed keypoint, as a fraction of the longer box side."
    )
    candidate_ranking_mode: String = Field(
        "min_distance",
        description="min_distance, score_distance_ratio, score_scaled_distance_ratio or gaussian_weighted[_const].",
    )
    score_distance_offset: Float = Field(
        1.0,
        description="Added to the distance in score / (distance + offset); larger favors score; score_distance_ratio only.",
    )
    score_distance_multiplier: Float = Field(
        0.1, description="Box size times this is the distance offset; score_scaled_distance_ratio only."
    )
    std_dev_multiplier: Float = Field(
        1.0, description="Factor on the keypoint standard deviations when ranking; gaussian_weighted only."
    )
    offset_peak_radius: Int32 = Field(
        0, description="Radius around a keypoint that gets offset targets, in output pixels; 0 = the peak cell only."
    )
    per_keypoint_offset: Bool = Field(
        False, description="Predict an own offset for each keypoint type; advised when offset_peak_radius is not 0."
    )
    predict_depth: Bool = Field(False, description="Also predict a depth for each keypoint.")
    per_keypoint_depth: Bool = Field(
        False, description="Predict depth in one channel per keypoint type instead of one shared channel."
    )
    keypoint_depth_loss_weight: Float = Field(1.0, description="Multiplier on the keypoint depth loss.")
    clip_out_of_frame_keypoints: Bool = Field(
        False, description="Move keypoints outside the image to its border and set their score to 0."
    )
    rescore_instances: Bool = Field(False, description="Recompute each instance's score from its keypoint scores.")
    rescoring_threshold: Float = Field(
        0.0, description="Only keypoints scoring above this enter the new instance score; needs rescore_instances."
    )
    gaussian_denom_ratio: Float = Field(
        0.1,
        description="Feature map's shorter side times this is the Gaussian's denominator; gaussian_weighted_const only.",
    )
    argmax_postprocessing: Bool = Field(
        False,
        description="Read keypoints with argmax instead of top-k; works only with one class and one keypoint task.",
    )
    heatmap_head_params: CenterNetPredictionHeadParams | None = Field(
        None, description="Layers of the keypoint heatmap head."
    )
    offset_head_params: CenterNetPredictionHeadParams | None = Field(
        None, description="Layers of the keypoint offset head."
    )
    regress_head_params: CenterNetPredictionHeadParams | None = Field(
        None, description="Layers of the center-to-keypoint regression head."
    )


class CenterNetMaskEstimation(Message):
    """Instance masks from a per-class segmentation, cropped by the detected boxes."""

    proto_name: ClassVar[str] = "CenterNet.MaskEstimation"
    refused: ClassVar[str] = OTHER_FAMILY

    task_loss_weight: Float = Field(1.0, description="Multiplier on the mask loss.")
    classification_loss: ClassificationLoss | None = Field(None, description="Per-pixel segmentation loss.")
    mask_height: Int32 = Field(256, description="Rows of each output mask, in mask pixels.")
    mask_width: Int32 = Field(256, description="Columns of each output mask, in mask pixels.")
    score_threshold: Float = Field(0.5, description="Mask pixels with a probability above this are foreground; 0..1.")
    heatmap_bias_init: Float = Field(-2.19, description="Initial bias (logit) of the segmentation's last layer.")
    mask_head_params: CenterNetPredictionHeadParams | None = Field(None, description="Layers of the segmentation head.")


class CenterNetDensePoseEstimation(Message):
    """DensePose head: body part and surface coordinates per pixel."""

    proto_name: ClassVar[str] = "CenterNet.DensePoseEstimation"
    refused: ClassVar[str] = OTHER_FAMILY

    task_loss_weight: Float = Field(1.0, description="Multiplier on the whole DensePose loss.")
    class_id: Int32 = Field(0, description="Label map id of the class with DensePose labels, usually person.")
    loss: Loss | None = Field(
        None, description="Part loss (classification part) and coordinate loss (localization part)."
    )
    num_parts: Int32 = Field(24, description="Number of body parts to tell apart.")
    part_loss_weight: Float = Field(1.0, description="Multiplier on the body part loss.")
    coordinate_loss_weight: Float = Field(1.0, description="Multiplier on the surface coordinate loss.")
    upsample_to_input_res: Bool = Field(
        True,
        description="Upsample the head's outputs to input size before the loss; predictions keep the output stride.",
    )
    heatmap_bias_init: Float = Field(-2.19, description="Initial bias (logit) of the part head's last layer.")


class CenterNetTrackEstimation(Message):
    """Identity embedding head, trained by classifying track ids."""

    proto_name: ClassVar[str] = "CenterNet.TrackEstimation"
    refused: ClassVar[str] = OTHER_FAMILY

    task_loss_weight: Float = Field(1.0, description="Multiplier on the tracking loss.")
    num_track_ids: Int32 = Field(0, description="Number of distinct track ids in the training data.")
    reid_embed_size: Int32 = Field(128, description="Length of each identity embedding.")
    num_fc_layers: Int32 = Field(1, description="Dense layers between the embedding and the track id scores.")
    classification_loss: ClassificationLoss | None = Field(None, description="Loss of the track id classification.")


class CenterNetTemporalOffsetEstimation(Message):
    """Head for each object's displacement between two frames."""

    proto_name: ClassVar[str] = "CenterNet.TemporalOffsetEstimation"
    refused: ClassVar[str] = OTHER_FAMILY

    task_loss_weight: Float = Field(1.0, description="Multiplier on the temporal offset loss.")
    localization_loss: LocalizationLoss | None = Field(None, description="Regression loss of the displacement.")


class CenterNetDeepMACMaskEstimation(Message):
    """DeepMAC mask head: a deep class-agnostic network run on each box."""

    proto_name: ClassVar[str] = "CenterNet.DeepMACMaskEstimation"
    refused: ClassVar[str] = OTHER_FAMILY

    classification_loss: ClassificationLoss | None = Field(
        None, description="Per-pixel mask loss, also used by the box consistency and point losses."
    )
    task_loss_weight: Float = Field(1.0, description="Multiplier on the mask loss from groundtruth masks.")
    dim: Int32 = Field(256, description="Length of the per-instance embedding.")
    pixel_embedding_dim: Int32 = Field(16, description="Channels of the per-pixel embedding.")
    allowed_masked_classes_ids: list[Int32] = Field(
        default_factory=list, description="Class ids whose groundtruth masks are used in training; empty = all."
    )
    mask_size: Int32 = Field(
        32, description="Side of the square mask predicted per box; unused with full resolution masks."
    )
    mask_num_subsamples: Int32 = Field(
        -1, description="Meant as the number of masks sampled per image for the loss; -1 = all."
    )
    use_xy: Bool = Field(True, description="Give the mask network box-relative pixel coordinates as extra input.")
    network_type: String = Field(
        "hourglass52", description="Mask network, e.g. hourglass10, 20, 32, 52 or 100, resnet4, 8 or 16, cond_inst1."
    )
    use_instance_embedding: Bool = Field(
        True, description="Give the mask network the embedding of the instance as input."
    )
    num_init_channels: Int32 = Field(64, description="Channels of the first block of the mask network.")
    predict_full_resolution_masks: Bool = Field(
        False, description="Predict each mask over the whole feature map, not a crop of its box."
    )
    postprocess_crop_size: Int32 = Field(
        256, description="Side of the mask cropped per box at inference; full resolution masks only."
    )
    max_roi_jitter_ratio: Float = Field(
        0.0, description="Most random box jitter in training, as a fraction of box size; 0 = none."
    )
    jitter_mode: RandomJitterBoxesJitterMode = Field(
        RandomJitterBoxesJitterMode.DEFAULT,
        description="How training boxes are jittered, e.g. DEFAULT, EXPAND_SYMMETRIC, SHRINK_SYMMETRIC.",
    )
    box_consistency_loss_weight: Float = Field(
        0.0, description="Multiplier on the loss that the mask's row and column extent fits the box; 0 = off."
    )
    feature_consistency_threshold: Float = Field(
        0.4, description="Neighbor pixels more similar than this are pushed to the same mask label."
    )
    feature_consistency_dilation: Int32 = Field(
        2, description="Distance between compared neighbor pixels, in feature map pixels."
    )
    feature_consistency_loss_weight: Float = Field(
        0.0, description="Multiplier on the feature consistency loss; 0 = off; needs full resolution masks."
    )
    box_consistency_loss_normalize: LossNormalize = Field(
        LossNormalize.NORMALIZE_AUTO,
        description="Averaging of the box consistency loss: AUTO, by GROUNDTRUTH_COUNT, or BALANCED.",
    )
    box_consistency_tightness: Bool = Field(
        False,
        description="Along the box, take the projection maximum only inside the box, so masks must touch its edges.",
    )
    feature_consistency_warmup_steps: Int32 = Field(
        0, description="Steps over which the feature consistency loss grows to full weight."
    )
    feature_consistency_warmup_start: Int32 = Field(0, description="Step at which the feature consistency loss starts.")
    feature_consistency_type: FeatureConsistencyType = Field(
        FeatureConsistencyType.CONSISTENCY_DEFAULT_LAB,
        description="What is compared: CONSISTENCY_DEFAULT_LAB (Lab color) or CONSISTENCY_FEATURE_MAP.",
    )
    feature_consistency_comparison: FeatureConsistencyComparison = Field(
        FeatureConsistencyComparison.COMPARISON_DEFAULT_GAUSSIAN,
        description="Similarity: COMPARISON_DEFAULT_GAUSSIAN or COMPARISON_NORMALIZED_DOTPROD.",
    )
    use_only_last_stage: Bool = Field(
        False, description="Compute masks only from the backbone's last output, not from every stage."
    )
    augmented_self_supervision_max_translation: Float = Field(
        0.0, description="Most shift of the augmented copy, as a fraction of image size."
    )
    augmented_self_supervision_flip_probability: Float = Field(
        0.0, description="Chance that the augmented copy is mirrored; 0..1."
    )
    augmented_self_supervision_loss_weight: Float = Field(
        0.0, description="Multiplier on the loss between masks of the image and of its augmented copy; 0 = off."
    )
    augmented_self_supervision_warmup_start: Int32 = Field(
        0, description="Step at which the self-supervision loss starts."
    )
    augmented_self_supervision_warmup_steps: Int32 = Field(
        0, description="Steps over which the self-supervision loss grows to full weight."
    )
    augmented_self_supervision_loss: AugmentedSelfSupervisionLoss = Field(
        AugmentedSelfSupervisionLoss.LOSS_DICE,
        description="Loss between the two masks: LOSS_DICE, LOSS_MSE or LOSS_KL_DIV.",
    )
    augmented_self_supervision_scale_min: Float = Field(
        1.0, description="Smallest random scale of the augmented copy, drawn separately in x and y."
    )
    augmented_self_supervision_scale_max: Float = Field(
        1.0, description="Largest random scale of the augmented copy, drawn separately in x and y."
    )
    pointly_supervised_keypoint_loss_weight: Float = Field(
        0.0, description="Multiplier on the loss from labeled points, given as keypoints whose depth sign is the label."
    )
    ignore_per_class_box_overlap: Bool = Field(
        False, description="Zero the mask logits, in the mask loss, where boxes of one class overlap."
    )


class CenterNet(Message):
    """Anchor-free detector that finds objects as peaks of a center heatmap."""

    proto_name: ClassVar[str] = "CenterNet"
    refused: ClassVar[str] = OTHER_FAMILY

    num_classes: Int32 = Field(0, description="Number of object classes, background not counted.")
    feature_extractor: CenterNetFeatureExtractor | None = Field(
        None, description="Backbone and its input normalization."
    )
    image_resizer: ImageResizer | None = Field(None, description="How input images are resized before the network.")
    use_depthwise: Bool = Field(False, description="Use depthwise separable convolutions in the prediction heads.")
    compute_heatmap_sparse: Bool = Field(
        False, description="Draw target heatmaps with the sparse op: scales better with classes, may use more memory."
    )
    object_detection_task: CenterNetObjectDetection | None = Field(
        None, description="Box size and center offset heads; omit for a model without boxes."
    )
    object_center_params: CenterNetObjectCenterParams | None = Field(
        None, description="Center heatmap head, shared by all tasks."
    )
    keypoint_label_map_path: String = Field(
        "", description="Label map file naming the keypoints; needed by the keypoint tasks."
    )
    keypoint_estimation_task: list[CenterNetKeypointEstimation] = Field(
        default_factory=list, description="Keypoint tasks, one entry per class with keypoints."
    )
    mask_estimation_task: CenterNetMaskEstimation | None = Field(
        None, description="Mask head by per-class segmentation, cut out by the boxes."
    )
    densepose_estimation_task: CenterNetDensePoseEstimation | None = Field(
        None, description="Head for body parts and surface coordinates."
    )
    track_estimation_task: CenterNetTrackEstimation | None = Field(
        None, description="Head for an identity embedding per object."
    )
    temporal_offset_task: CenterNetTemporalOffsetEstimation | None = Field(
        None, description="Head for each object's displacement between two frames."
    )
    deepmac_mask_estimation: CenterNetDeepMACMaskEstimation | None = Field(
        None, description="DeepMAC mask head, able to segment classes trained without masks."
    )
    post_processing: PostProcessing | None = Field(
        None, description="Optional non-max suppression after the peaks are read."
    )
    output_prediction_dict: Bool = Field(False, description="Also return the raw head outputs with the detections.")
