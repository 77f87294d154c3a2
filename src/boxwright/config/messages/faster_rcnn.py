"""Faster, Mask and Context R-CNN.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field, Values
from boxwright.config.message import Bool, Enum, Float, Int32, Message, String
from boxwright.config.messages.anchor_generator import AnchorGenerator
from boxwright.config.messages.box_coder import BoxCoder
from boxwright.config.messages.box_predictor import BoxPredictor
from boxwright.config.messages.fpn import FeaturePyramidNetworks
from boxwright.config.messages.hyperparams import Hyperparams, HyperparamsActivation
from boxwright.config.messages.image_resizer import ImageResizer
from boxwright.config.messages.losses import ClassificationLoss, HardExampleMiner, LocalizationLoss
from boxwright.config.messages.post_processing import PostProcessing

FASTER_RCNN_TF1_EXTRACTORS = (
    *(f"faster_rcnn_resnet{depth}" for depth in (50, 101, 152)),
    "faster_rcnn_inception_v2",
    "faster_rcnn_inception_resnet_v2",
)
FASTER_RCNN_EXTRACTORS = (
    *FASTER_RCNN_TF1_EXTRACTORS,
    *(f"faster_rcnn_resnet{depth}{neck}_keras" for neck in ("", "_fpn") for depth in (50, 101, 152)),
    "faster_rcnn_inception_resnet_v2_keras",
)
_OTHER_EXTRACTORS = {
    "faster_rcnn_nas": "(NASNet-A) is not supported; the nearest is faster_rcnn_inception_resnet_v2",
    "faster_rcnn_pnas": "(PNASNet-5) is not supported; the nearest is faster_rcnn_inception_resnet_v2",
    "faster_rcnn_mobilenet_v1": "is not supported; the nearest is timm/NAME with a pyramid, such as "
    "timm/mobilenetv3_large_100",
}
_CONTEXT = "Context R-CNN is not supported; remove context_config for the detector of single images"


class AttentionPosition(Enum):
    """Values of `AttentionPosition`."""

    ATTENTION_DEFAULT = 0
    POST_BOX_CLASSIFIER = 1
    POST_RPN = 2


class PyramidVariant(Enum):
    """How a feature pyramid is made (an extension of Boxwright)."""

    TENSORFLOW = 0
    SUBSAMPLED = 1
    POOLED = 2


class LowQualityMatches(Enum):
    """What becomes of boxes that no anchor is like enough (an extension of Boxwright)."""

    FORCED = 0
    OWN = 1


class FasterRcnnFeatureExtractor(Message):
    """Backbone of a Faster R-CNN model."""

    proto_name: ClassVar[str] = "FasterRcnnFeatureExtractor"

    type: String = Field(
        "",
        values=Values(FASTER_RCNN_EXTRACTORS, prefix="timm/", refused=_OTHER_EXTRACTORS),
        description="Backbone name, such as faster_rcnn_resnet50_keras, or timm/NAME with a pyramid.",
    )
    pretrained: Bool = Field(
        False,
        description="Fetch the weights of timm/NAME when a run starts afresh, once, from Hugging Face's hub "
        "(an extension of Boxwright).",
    )
    first_stage_features_stride: Int32 = Field(
        16,
        ge=1,
        le=64,
        description="Image pixels per cell of the RPN feature map; 8 or 16, of pyramids without effect.",
    )
    batch_norm_trainable: Bool = Field(
        False, description="Train batch-norm layers in the backbone; false freezes them, best with small batches."
    )
    conv_hyperparams: Hyperparams | None = Field(
        None, description="Settings for layers added on the backbone, and for the backbone itself if overridden."
    )
    override_base_feature_extractor_hyperparams: Bool = Field(
        False,
        note="of a backbone of timm's only the penalty on kernels",
        description="Apply conv_hyperparams to the backbone layers too, replacing their own defaults.",
    )
    pad_to_multiple: Int32 = Field(
        32,
        no_effect="TensorFlow does not hand it on: pyramids pad to 32, others never",
        description="Pad the input so its height and width are multiples of this, px; for FPN backbones.",
    )
    fpn: FeaturePyramidNetworks | None = Field(None, description="Feature pyramid settings, for backbones with an FPN.")
    pyramid: PyramidVariant = Field(
        PyramidVariant.TENSORFLOW,
        description="Ours: TENSORFLOW as its Keras code; SUBSAMPLED as the paper: every level smoothed without "
        "activation, sums handed down, coarser levels every second pixel; POOLED likewise, by maxima of 2x2 (kerod).",
    )


class RoiAlign(Message):
    """How proposals are cropped, other than TensorFlow does: RoIAlign of Mask R-CNN (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "RoiAlign"

    samples: Int32 = Field(2, ge=1, le=16, description="Samples of each cell in y and in x, which are averaged.")
    aligned: Bool = Field(
        True, description="Pixels have their centres half a pixel in; false as torchvision's detectors have it."
    )
    num_levels: Int32 = Field(
        4,
        ge=1,
        le=16,
        description="How many levels are cropped from, the finest first; a side of 224 pixels has level 4 (the paper's).",
    )


class LevelProposals(Message):
    """How proposals are chosen, other than TensorFlow does: the best of each level (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "LevelProposals"

    per_level: Int32 = Field(1000, ge=1, le=100000, description="Most boxes of each level that enter suppression.")
    per_level_in_training: Int32 = Field(2000, ge=1, le=100000, description="The same in training.")
    max_proposals_in_training: Int32 = Field(
        2000, ge=1, le=100000, description="Most proposals an image in training; otherwise first_stage_max_proposals."
    )
    across_levels: Bool = Field(False, description="Boxes suppress those of other levels, too.")
    by_logit: Bool = Field(
        False, description="The score is the object's logit, of which those below 0 are never proposed (kerod)."
    )


class Context(Message):
    """Context R-CNN: attention over stored features from other images of the same camera."""

    proto_name: ClassVar[str] = "Context"
    refused: ClassVar[str] = _CONTEXT

    max_num_context_features: Int32 = Field(
        2000, description="Context features per image; inputs are padded to this many."
    )
    attention_bottleneck_dimension: Int32 = Field(
        2048, description="Width of the projections inside the attention block."
    )
    attention_temperature: Float = Field(
        0.01, description="Softmax temperature of the attention weights; smaller is sharper, never 0."
    )
    context_feature_length: Int32 = Field(
        2057, description="Length of one stored context feature vector; must match the data."
    )
    use_self_attention: Bool = Field(False, description="Attend among the boxes of the current image.")
    use_long_term_attention: Bool = Field(True, description="Attend to the stored context features.")
    self_attention_in_sequence: Bool = Field(
        False, description="Feed self-attention output into long-term attention instead of running both in parallel."
    )
    num_attention_heads: Int32 = Field(
        1, description="Number of long-term attention heads; their outputs are averaged."
    )
    num_attention_layers: Int32 = Field(1, description="Number of stacked long-term attention layers.")
    attention_position: AttentionPosition = Field(
        AttentionPosition.POST_BOX_CLASSIFIER,
        description="Where attention is added: after the RPN (POST_RPN) or in the box classifier stage.",
    )


class FasterRcnn(Message):
    """Two-stage detector: a proposal network (RPN) followed by a per-proposal classifier."""

    proto_name: ClassVar[str] = "FasterRcnn"

    number_of_stages: Int32 = Field(
        2, ge=1, le=3, description="How far to run: 1 = proposals only, 2 = classes and boxes, 3 = also masks."
    )
    num_classes: Int32 = Field(0, ge=0, le=100000, description="Number of object classes, background not counted.")
    image_resizer: ImageResizer | None = Field(
        None, description="How input images are resized before the network sees them."
    )
    feature_extractor: FasterRcnnFeatureExtractor | None = Field(None, description="Backbone network and its settings.")
    first_stage_anchor_generator: AnchorGenerator | None = Field(
        None, description="Anchors the RPN scores and refines."
    )
    first_stage_atrous_rate: Int32 = Field(
        1, ge=1, le=64, description="Dilation of the RPN convolution; 1 = ordinary convolution."
    )
    first_stage_box_predictor_conv_hyperparams: Hyperparams | None = Field(
        None, description="Weight init, regularizer, activation and norm of the RPN convolutions."
    )
    first_stage_box_predictor_kernel_size: Int32 = Field(
        3, ge=1, le=63, description="Side of the RPN convolution kernel, in feature-map cells."
    )
    first_stage_box_predictor_depth: Int32 = Field(
        512, ge=1, le=8192, description="Output channels of the RPN convolution."
    )
    first_stage_minibatch_size: Int32 = Field(
        256, ge=1, le=1000000, description="Anchors sampled per image to compute the RPN loss."
    )
    first_stage_positive_balance_fraction: Float = Field(
        0.5, ge=0, le=1, description="Largest share of positive anchors in the RPN sample; 0..1."
    )
    first_stage_nms_score_threshold: Float = Field(
        0.0, allow_inf_nan=False, description="Only proposals with objectness above this enter NMS; 0 keeps nearly all."
    )
    first_stage_nms_iou_threshold: Float = Field(
        0.7, ge=0, le=1, description="Proposals overlapping a better one by more than this IoU are dropped; 0..1."
    )
    first_stage_max_proposals: Int32 = Field(
        300,
        ge=1,
        le=100000,
        description="Most proposals kept per image after NMS; when training, at least second_stage_batch_size.",
    )
    first_stage_localization_loss_weight: Float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Multiplier on the RPN box regression loss."
    )
    first_stage_objectness_loss_weight: Float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Multiplier on the RPN object/background loss."
    )
    initial_crop_size: Int32 = Field(
        0,
        ge=0,
        le=512,
        description="Side of the square each proposal is cropped to from the feature map, before pooling.",
    )
    maxpool_kernel_size: Int32 = Field(
        0, ge=0, le=512, description="Window of the max-pool applied to each proposal crop, in cells."
    )
    maxpool_stride: Int32 = Field(
        0, ge=0, le=512, description="Step of the max-pool applied to each proposal crop, in cells."
    )
    second_stage_box_predictor: BoxPredictor | None = Field(
        None, description="Head that classifies proposals, refines boxes and optionally predicts masks."
    )
    second_stage_batch_size: Int32 = Field(
        64,
        ge=1,
        le=100000,
        description="Proposals sampled per image for the second-stage loss; at most first_stage_max_proposals.",
    )
    second_stage_balance_fraction: Float = Field(
        0.25, ge=0, le=1, description="Largest share of positive proposals in the second-stage sample; 0..1."
    )
    second_stage_post_processing: PostProcessing | None = Field(
        None, description="Score conversion and NMS that turn head outputs into detections."
    )
    second_stage_localization_loss_weight: Float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Multiplier on the second-stage box regression loss."
    )
    second_stage_classification_loss_weight: Float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Multiplier on the second-stage class loss."
    )
    second_stage_mask_prediction_loss_weight: Float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description="Multiplier on the mask loss; matters only when masks are predicted.",
    )
    hard_example_miner: HardExampleMiner | None = Field(
        None, description="If set, only the hardest proposals contribute to the second-stage loss."
    )
    second_stage_classification_loss: ClassificationLoss | None = Field(
        None, description="Class loss of the second stage; softmax when unset."
    )
    inplace_batchnorm_update: Bool = Field(
        False,
        refused="TensorFlow 2 refuses it, too; remove the line",
        description="Update batch-norm averages inside the forward pass; Faster R-CNN accepts only false.",
    )
    use_matmul_crop_and_resize: Bool = Field(
        False, description="Crop proposals by matrix products instead of the crop-and-resize op."
    )
    clip_anchors_to_image: Bool = Field(
        False, description="When training, clip anchors that cross the image border instead of discarding them."
    )
    use_matmul_gather_in_matcher: Bool = Field(
        False,
        no_effect="the same numbers by another operation",
        description="Gather matched targets by matrix product instead of indexing.",
    )
    use_static_balanced_label_sampler: Bool = Field(
        False,
        no_effect="both forms draw alike, but where an image has too few examples: there TensorFlow's static one takes "
        "ignored ones",
        description="Fixed-shape version of the positive/negative sampler; needs use_static_shapes.",
    )
    use_static_shapes: Bool = Field(
        False,
        note="in training, proposals that overlap by exactly the threshold are dropped, too",
        description="Keep all tensor shapes fixed during training, padding where needed.",
    )
    resize_masks: Bool = Field(
        True,
        no_effect="masks are resized with their image as it is read",
        description="Resize ground-truth masks together with the image; false leaves them at their own size.",
    )
    use_static_shapes_for_eval: Bool = Field(
        False,
        no_effect="the exporter's models have dynamic shapes, and so has evaluation here",
        description="Also keep shapes fixed in evaluation when use_static_shapes is on.",
    )
    use_partitioned_nms_in_first_stage: Bool = Field(
        True,
        no_effect="the same proposals in another order of work",
        description="Use the tiled NMS algorithm for proposals; only used with static shapes.",
    )
    return_raw_detections_during_predict: Bool = Field(
        False,
        no_effect="the postprocessor's decode() always gives them",
        description="Also return decoded boxes before NMS from the predict step.",
    )
    use_combined_nms_in_first_stage: Bool = Field(
        False,
        note="proposals outside the image are turned inside out rather than dropped, as TensorFlow does",
        description="Use the fused TensorFlow combined NMS op for proposals.",
    )
    output_final_box_features: Bool = Field(
        False, description="Also output features cropped at each final detection box."
    )
    output_final_box_rpn_features: Bool = Field(
        False, description="Also output RPN features cropped at each final detection box."
    )
    context_config: Context | None = Field(
        None,
        refused=_CONTEXT,
        description="If set, builds Context R-CNN, which attends to features from other frames.",
    )
    first_stage_box_coder: BoxCoder | None = Field(
        None, description="Ours: how the RPN's boxes are encoded; without, faster_rcnn_box_coder's defaults."
    )
    first_stage_localization_loss: LocalizationLoss | None = Field(
        None, description="Ours: box loss of the RPN; without, smooth L1."
    )
    second_stage_localization_loss: LocalizationLoss | None = Field(
        None, description="Ours: box loss of the second stage; without, smooth L1."
    )
    first_stage_low_quality_matches: LowQualityMatches = Field(
        LowQualityMatches.FORCED,
        description="Ours: FORCED: the anchor most like a box is its (TensorFlow); OWN: it is matched to the box that "
        "it is most like itself, and so are anchors that tie (Detectron, torchvision, kerod).",
    )
    first_stage_activation: HyperparamsActivation = Field(
        HyperparamsActivation.RELU_6, description="Ours: activation behind the RPN's convolution."
    )
    first_stage_share_predictor: Bool = Field(
        False, description="Ours: all levels share the RPN's last convolutions, too."
    )
    first_stage_keep_crossing_anchors: Bool = Field(
        False, description="Ours: anchors that cross the border are neither discarded nor clipped."
    )
    level_proposals: LevelProposals | None = Field(
        None, description="Ours: choose proposals level by level; without, among all anchors, as TensorFlow does."
    )
    add_groundtruth_boxes: Bool = Field(
        False, description="Ours: in training groundtruth boxes are among the proposals, as in the paper's code."
    )
    second_stage_clip_first: Bool = Field(
        False,
        description="Ours: detections are clipped to the image before they suppress others (torchvision, kerod); false: "
        "after.",
    )
    normalize_by_weights: Bool = Field(
        False,
        description="Ours: an image's losses are divided by the sum of the weights of what was sampled, and objectness "
        "counts by weight, too (kerod); false: by their number, and not.",
    )
    roi_align: RoiAlign | None = Field(
        None,
        description="Ours: crop by RoIAlign to initial_crop_size; without, by crop_and_resize and a max pool.",
    )
