"""Faster, Mask and Context R-CNN.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

import re

from boxwright.config.field import AllowedValues, Enum, field, number
from boxwright.config.message import Message
from boxwright.config.messages.anchor_generator import AnchorGenerator
from boxwright.config.messages.box_predictor import BoxPredictor
from boxwright.config.messages.hyperparams import Hyperparams, HyperparamsActivation
from boxwright.config.messages.image_resizer import ImageResizer
from boxwright.config.messages.losses import ClassificationLoss, HardExampleMiner, LocalizationLoss
from boxwright.config.messages.post_processing import PostProcessing
from boxwright.config.messages.ssd_feature_extractor import FeaturePyramidNetworks
from boxwright.config.messages.target_assignment import BoxCoder
from boxwright.config.rules import PRETRAINED, TYPE, color_only, of_type, refuse

FASTER_RCNN_TF1_EXTRACTORS = (
    *(f"faster_rcnn_resnet{depth}" for depth in (50, 101, 152)),
    "faster_rcnn_inception_v2",
    "faster_rcnn_inception_resnet_v2",
    "faster_rcnn_nas",
    "faster_rcnn_pnas",
    "faster_rcnn_mobilenet_v1",
)

# Their maps have a stride of 16 only.
_CELL_EXTRACTORS = ("faster_rcnn_nas", "faster_rcnn_pnas")

FASTER_RCNN_EXTRACTORS = (
    *FASTER_RCNN_TF1_EXTRACTORS,
    *(f"faster_rcnn_resnet{depth}{neck}_keras" for neck in ("", "_fpn") for depth in (50, 101, 152)),
    "faster_rcnn_inception_resnet_v2_keras",
)

OF_BOXES = "a localization loss of boxes is not supported; use one of codes"

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

    type: str = field("",
        "Backbone name, such as faster_rcnn_resnet50_keras, or timm/NAME with a pyramid.",
        values=AllowedValues(FASTER_RCNN_EXTRACTORS, prefix='timm/'))
    pretrained: bool = field(False,
        "Ours: fetch the weights of timm/NAME when a new run starts, once, from Hugging Face's hub.")
    first_stage_features_stride: int = number(16, "[1, 64]",
        "Image pixels per cell of the RPN feature map; 8 or 16, of pyramids and MobileNetV1 without effect.")
    batch_norm_trainable: bool = field(False,
        "Train batch-norm layers in the backbone; false freezes them, best with small batches, but for NASNet's and "
        "PNASNet's first half, as in TensorFlow.")
    conv_hyperparams: Hyperparams | None = field(None,
        "Settings for layers added on the backbone, and for the backbone itself if overridden.")
    override_base_feature_extractor_hyperparams: bool = field(False, "Apply conv_hyperparams to the backbone layers "
        "too, replacing their own defaults.",
        note="of a backbone of timm's only the penalty on kernels", note_when=of_type("timm/"))
    pad_to_multiple: int = field(32, "Pad the input so its height and width are multiples of this, px; for FPN "
        "backbones.", no_effect="TensorFlow ignores it: pyramids pad to 32, others never")
    fpn: FeaturePyramidNetworks | None = field(None, "Feature pyramid settings, for backbones with an FPN.")
    pyramid: PyramidVariant = field(PyramidVariant.TENSORFLOW,
        "Ours: TENSORFLOW as its Keras code; SUBSAMPLED as the paper: every level smoothed without activation, sums "
        "handed down, coarser levels every second pixel; POOLED likewise, by maxima of 2x2 (kerod).")

    rules = (
        TYPE,
        PRETRAINED,
        refuse("first_stage_features_stride", "{type} takes 16, found {first_stage_features_stride}",
            when=lambda c: (_is_strided(c) or c.type in _CELL_EXTRACTORS) and c.first_stage_features_stride != 16),
        refuse("first_stage_features_stride", "{type} takes 8 or 16, found {first_stage_features_stride}",
            when=lambda c: not (_is_strided(c) or _has_pyramid(c) or c.type in _CELL_EXTRACTORS)
            and c.first_stage_features_stride not in (8, 16)),
        refuse("fpn", "{type} has none; remove it, or use a type with a pyramid",
            when=lambda c: c.fpn and c.type in FASTER_RCNN_EXTRACTORS and not _has_pyramid(c)),
        refuse("conv_hyperparams", "missing; a pyramid's convolutions need it",
            when=lambda c: _has_pyramid(c) and c.conv_hyperparams is None),
        refuse("conv_hyperparams", "{type} takes none, as in TensorFlow; remove it",
            when=lambda c: c.conv_hyperparams and c.type.endswith("_keras") and not _has_pyramid(c)),
    )

    @property
    def version(self) -> int:
        """The version of TensorFlow whose semantics the type has, 1 or 2."""
        return 1 if self.type in FASTER_RCNN_TF1_EXTRACTORS else 2

class RoiAlign(Message):
    """How proposals are cropped, other than TensorFlow does: RoIAlign of Mask R-CNN (an extension of Boxwright)."""

    samples: int = number(2, "[1, 16]", "Samples of each cell in y and in x, which are averaged.")
    aligned: bool = field(True, "Pixel centers are at half pixels; false as in torchvision's detectors.")
    num_levels: int = number(4, "[1, 16]",
        "How many levels are cropped from, the finest first; a side of 224 pixels has level 4 (the paper's).")

class LevelProposals(Message):
    """How proposals are chosen, other than TensorFlow does: the best of each level (an extension of Boxwright)."""

    per_level: int = number(1000, "[1, 100000]", "Most boxes of each level that enter suppression.")
    per_level_in_training: int = number(2000, "[1, 100000]", "The same in training.")
    max_proposals_in_training: int = number(2000, "[1, 100000]",
        "Most proposals an image in training; otherwise first_stage_max_proposals.")
    across_levels: bool = field(False, "Boxes suppress those of other levels, too.")
    by_logit: bool = field(False, "The score is the object's logit, of which those below 0 are never proposed (kerod).")

class Context(Message):
    """Context R-CNN: attention over stored features from other images of the same camera."""

    max_num_context_features: int = number(2000, "[1, 100000]",
        "Most context features of an image in training; the rest is dropped, and fewer are padded.")
    attention_bottleneck_dimension: int = number(2048, "[1, 65536]",
        "Width of the projections inside the attention block.")
    attention_temperature: float = number(0.01, "(0, inf)",
        "Softmax temperature of the attention weights; smaller is sharper.")
    context_feature_length: int = number(2057, "[1, 65536]",
        "Numbers of one stored context feature; must match the data.")
    use_self_attention: bool = field(False, "Attend among the boxes of the current image.")
    use_long_term_attention: bool = field(True, "Attend to the stored context features.")
    self_attention_in_sequence: bool = field(False,
        "Feed self-attention output into long-term attention instead of running both in parallel.")
    num_attention_heads: int = number(1, "[1, 64]",
        "Number of long-term attention heads; their outputs are averaged.")
    num_attention_layers: int = number(1, "[1, 64]", "Number of stacked long-term attention layers.")
    attention_position: AttentionPosition = field(AttentionPosition.POST_BOX_CLASSIFIER,
        "Where attention is added: after the RPN (POST_RPN) or in the box classifier stage.")

    rules = (
        refuse("use_long_term_attention", "without it and without use_self_attention nothing is attended to; "
            "TensorFlow fails", when=lambda c: not c.use_long_term_attention and not c.use_self_attention),
        refuse("attention_position", "ATTENTION_DEFAULT is neither place, so that TensorFlow attends nowhere; "
            "use POST_BOX_CLASSIFIER or POST_RPN", when=lambda c: c.attention_position.name == "ATTENTION_DEFAULT"),
    )

class FasterRcnn(Message):
    """Two-stage detector: a proposal network (RPN) followed by a per-proposal classifier."""

    number_of_stages: int = number(2, "[1, 3]",
        "How far to run: 1 = proposals only, 2 = classes and boxes, 3 = also masks.")
    num_classes: int = number(0, "[0, 100000]", "Number of object classes, background not counted.")
    image_resizer: ImageResizer | None = field(None, "How input images are resized before the network sees them.")
    feature_extractor: FasterRcnnFeatureExtractor | None = field(None, "Backbone network and its settings.")
    first_stage_anchor_generator: AnchorGenerator | None = field(None, "Anchors the RPN scores and refines.")
    first_stage_atrous_rate: int = number(1, "[1, 64]", "Dilation of the RPN convolution; 1 = ordinary convolution.")
    first_stage_box_predictor_conv_hyperparams: Hyperparams | None = field(None,
        "Weight init, regularizer, activation and norm of the RPN convolutions.")
    first_stage_box_predictor_kernel_size: int = number(3, "[1, 63]",
        "Side of the RPN convolution kernel, in feature-map cells.")
    first_stage_box_predictor_depth: int = number(512, "[1, 8192]", "Output channels of the RPN convolution.")
    first_stage_minibatch_size: int = number(256, "[1, 1000000]", "Anchors sampled per image to compute the RPN loss.")
    first_stage_positive_balance_fraction: float = number(0.5, "[0, 1]",
        "Largest share of positive anchors in the RPN sample.")
    first_stage_nms_score_threshold: float = number(0.0, "(-inf, inf)",
        "Only proposals with objectness above this enter NMS; 0 keeps nearly all.")
    first_stage_nms_iou_threshold: float = number(0.7, "[0, 1]",
        "Proposals overlapping a better one by more than this IoU are dropped.")
    first_stage_max_proposals: int = number(300, "[1, 100000]",
        "Most proposals kept per image after NMS; when training, at least second_stage_batch_size.")
    first_stage_localization_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the RPN box regression loss.")
    first_stage_objectness_loss_weight: float = number(1.0, "[0, inf)", "Multiplier on the RPN object/background loss.")
    initial_crop_size: int = number(0, "[0, 512]",
        "Side of the square each proposal is cropped to from the feature map, before pooling.")
    maxpool_kernel_size: int = number(0, "[0, 512]", "Window of the max-pool applied to each proposal crop, in cells.")
    maxpool_stride: int = number(0, "[0, 512]", "Step of the max-pool applied to each proposal crop, in cells.")
    second_stage_box_predictor: BoxPredictor | None = field(None,
        "Head that classifies proposals, refines boxes and optionally predicts masks.")
    second_stage_batch_size: int = number(64, "[1, 100000]",
        "Proposals sampled per image for the second-stage loss; at most first_stage_max_proposals.")
    second_stage_balance_fraction: float = number(0.25, "[0, 1]",
        "Largest share of positive proposals in the second-stage sample.")
    second_stage_post_processing: PostProcessing | None = field(None,
        "Score conversion and NMS that turn head outputs into detections.")
    second_stage_localization_loss_weight: float = number(1.0, "[0, inf)",
        "Multiplier on the second-stage box regression loss.")
    second_stage_classification_loss_weight: float = number(1.0, "[0, inf)",
        "Multiplier on the second-stage class loss.")
    second_stage_mask_prediction_loss_weight: float = number(1.0, "[0, inf)",
        "Multiplier on the mask loss; matters only when masks are predicted.")
    hard_example_miner: HardExampleMiner | None = field(None,
        "If set, only the hardest proposals contribute to the second-stage loss.")
    second_stage_classification_loss: ClassificationLoss | None = field(None,
        "Class loss of the second stage; softmax when unset.")
    inplace_batchnorm_update: bool = field(False, "Update batch-norm averages inside the forward pass instead of as "
        "separate ops.", note="in TensorFlow 1 it only says when statistics are written, which changes no number")
    use_matmul_crop_and_resize: bool = field(False,
        "Crop proposals by matrix products instead of the crop-and-resize op.")
    clip_anchors_to_image: bool = field(False,
        "When training, clip anchors that cross the image border instead of discarding them.")
    use_matmul_gather_in_matcher: bool = field(False,
        "Gather matched targets by matrix product instead of indexing.",
        no_effect="the same numbers by another operation")
    use_static_balanced_label_sampler: bool = field(False,
        "Fixed-shape version of the positive/negative sampler; needs use_static_shapes.",
        no_effect="both forms draw alike, but where an image has too few examples: there TensorFlow's static one "
                  "takes ignored ones")
    use_static_shapes: bool = field(False,
        "Keep all tensor shapes fixed during training, padding where needed.",
        note="in training, proposals that overlap by exactly the threshold are dropped, too")
    resize_masks: bool = field(True, "Resize ground-truth masks together with the image; false leaves them at their "
        "own size.", no_effect="masks are resized with their image as it is read")
    use_static_shapes_for_eval: bool = field(False,
        "Also keep shapes fixed in evaluation when use_static_shapes is on.",
        no_effect="the exporter's models have dynamic shapes, and so has evaluation here")
    use_partitioned_nms_in_first_stage: bool = field(True, "Use the tiled NMS algorithm for proposals; only used with "
        "static shapes.", no_effect="the same proposals in another order of work")
    return_raw_detections_during_predict: bool = field(False, "Also return decoded boxes before NMS from the predict "
        "step.", no_effect="the postprocessor's decode() always gives them")
    use_combined_nms_in_first_stage: bool = field(False,
        "Use the fused TensorFlow combined NMS op for proposals.",
        note="proposals outside the image are turned inside out rather than dropped, as TensorFlow does")
    output_final_box_features: bool = field(False, "Also output features cropped at each final detection box.")
    output_final_box_rpn_features: bool = field(False, "Also output RPN features cropped at each final detection box.")
    context_config: Context | None = field(None,
        "If set, builds Context R-CNN, which attends to features from other frames.")
    first_stage_box_coder: BoxCoder | None = field(None,
        "Ours: how the RPN's boxes are encoded; default: faster_rcnn_box_coder's defaults.")
    first_stage_localization_loss: LocalizationLoss | None = field(None,
        "Ours: box loss of the RPN; default: smooth L1.")
    second_stage_localization_loss: LocalizationLoss | None = field(None,
        "Ours: box loss of the second stage; default: smooth L1.")
    first_stage_low_quality_matches: LowQualityMatches = field(LowQualityMatches.FORCED,
        "Ours: FORCED: the anchor most like a box is its (TensorFlow); OWN: it is matched to the box that it is most "
        "like itself, and so are anchors that tie (Detectron, torchvision, kerod).")
    first_stage_activation: HyperparamsActivation = field(HyperparamsActivation.RELU_6,
        "Ours: activation behind the RPN's convolution.")
    first_stage_share_predictor: bool = field(False, "Ours: all levels share the RPN's last convolutions, too.")
    first_stage_keep_crossing_anchors: bool = field(False,
        "Ours: anchors that cross the border are neither discarded nor clipped.")
    level_proposals: LevelProposals | None = field(None,
        "Ours: choose proposals level by level; default: among all anchors, as TensorFlow does.")
    add_groundtruth_boxes: bool = field(False,
        "Ours: in training groundtruth boxes are among the proposals, as in the paper's code.")
    second_stage_clip_first: bool = field(False,
        "Ours: detections are clipped to the image before they suppress others (torchvision, kerod); false: after.")
    normalize_by_weights: bool = field(False, "Ours: an image's losses are divided by the sum of the weights of what "
        "was sampled, and objectness counts by weight, too (kerod); false: by their number, and not.")
    roi_align: RoiAlign | None = field(None,
        "Ours: crop by RoIAlign to initial_crop_size; default: by crop_and_resize and a max pool.")

    rules = (
        color_only("timm/"),
        refuse("inplace_batchnorm_update", "TensorFlow 2 refuses it, too; remove the line",
            when=lambda c: c.inplace_batchnorm_update and c.feature_extractor
            and c.feature_extractor.type not in FASTER_RCNN_TF1_EXTRACTORS),
        refuse("initial_crop_size", "expected at least 1; it is the side of a proposal's crop, such as 14",
            when=lambda c: _crops(c) and c.initial_crop_size < 1),
        refuse("maxpool_kernel_size", "roi_align averages samples itself; remove both maxpool fields",
            when=lambda c: _crops(c) and c.roi_align and (c.maxpool_kernel_size > 1 or c.maxpool_stride > 1)),
        refuse("maxpool_kernel_size",
            "expected 1 to initial_crop_size ({initial_crop_size}), and maxpool_stride at least 1; found "
            "{maxpool_kernel_size} and {maxpool_stride}",
            when=lambda c: _crops(c) and not c.roi_align and not (
                1 <= c.maxpool_kernel_size <= c.initial_crop_size and c.maxpool_stride >= 1)),
        refuse("output_final_box_features", "rfcn_box_predictor crops no features; remove the line",
            when=lambda c: (c.output_final_box_features or c.output_final_box_rpn_features)
            and _second_stage(c, "rfcn_box_predictor")),
        refuse("roi_align", "use it with a feature extractor that has a pyramid",
            when=lambda c: c.roi_align and _crops(c) and _is_strided(c.feature_extractor)),
        refuse("second_stage_box_predictor.rfcn_box_predictor", "use it with a feature extractor without a pyramid",
            when=lambda c: _second_stage(c, "rfcn_box_predictor") and _has_pyramid(c.feature_extractor)),
        refuse("second_stage_box_predictor.rfcn_box_predictor",
            "use it with a type of TensorFlow 1, such as faster_rcnn_resnet101",
            when=lambda c: _second_stage(c, "rfcn_box_predictor") and _is_strided(c.feature_extractor)),
        refuse("second_stage_post_processing.batch_non_max_suppression.use_combined_nms",
            "TensorFlow refuses it for a second stage; remove it",
            when=lambda c: c.number_of_stages > 1 and not _is_timm(c.feature_extractor) and _combines_nms(c)),
        refuse("first_stage_anchor_generator", "a pyramid has several levels; use multiscale_anchor_generator",
            when=lambda c: _has_pyramid(c.feature_extractor) and c.first_stage_anchor_generator
            and c.first_stage_anchor_generator.grid_anchor_generator),
        refuse("number_of_stages",
            "3 predicts masks; set predict_instance_masks in mask_rcnn_box_predictor, or 2 stages",
            when=lambda c: c.number_of_stages == 3 and not _predicts_masks(c)),
        refuse("number_of_stages", "predict_instance_masks needs 3, found 2 (TensorFlow would predict no masks)",
            when=lambda c: c.number_of_stages == 2 and _predicts_masks(c)),
        refuse("first_stage_anchor_generator.multiscale_anchor_generator.normalize_coordinates",
            "two-stage detectors have anchors in pixels; set it to false",
            when=lambda c: c.first_stage_anchor_generator
            and c.first_stage_anchor_generator.multiscale_anchor_generator
            and c.first_stage_anchor_generator.multiscale_anchor_generator.normalize_coordinates),
        refuse("first_stage_box_coder", "use faster_rcnn_box_coder",
            when=lambda c: c.first_stage_box_coder
            and c.first_stage_box_coder.faster_rcnn_box_coder is None),
        refuse("first_stage_localization_loss", OF_BOXES,
            when=lambda c: _compares_boxes(c.first_stage_localization_loss)),
        refuse("second_stage_localization_loss", OF_BOXES,
            when=lambda c: _compares_boxes(c.second_stage_localization_loss)),
        refuse("context_config", "attends in the box classifier; set number_of_stages: 2, as TensorFlow gives no "
            "context to its third stage, and mask_rcnn_box_predictor",
            when=lambda c: c.context_config and (c.number_of_stages != 2 or not _crops(c))),
        refuse("context_config", "excludes output_final_box_features and output_final_box_rpn_features, for which "
            "TensorFlow gives it no context; export the detector of single images for them",
            when=lambda c: c.context_config and (c.output_final_box_features or c.output_final_box_rpn_features)),
        refuse("context_config", "TensorFlow 2 has one layer with one head of long-term attention, and no "
            "self-attention; use a type of TensorFlow 1, such as faster_rcnn_resnet101",
            when=lambda c: c.context_config and c.feature_extractor
            and c.feature_extractor.type not in FASTER_RCNN_TF1_EXTRACTORS and (
                c.context_config.use_self_attention or c.context_config.self_attention_in_sequence
                or not c.context_config.use_long_term_attention
                or c.context_config.num_attention_heads > 1 or c.context_config.num_attention_layers > 1)),
    )


def _has_pyramid(config: FasterRcnnFeatureExtractor | None) -> bool:
    return config is not None and ("_fpn_" in config.type or config.type.startswith("timm/"))


def _second_stage(config: FasterRcnn, predictor: str) -> bool:
    chosen = config.second_stage_box_predictor
    return config.number_of_stages > 1 and chosen is not None and chosen.has(predictor)


def _crops(config: FasterRcnn) -> bool:
    return _second_stage(config, "mask_rcnn_box_predictor")


def _predicts_masks(config: FasterRcnn) -> bool:
    chosen = config.second_stage_box_predictor
    mask = chosen.mask_rcnn_box_predictor if chosen is not None else None
    return mask is not None and mask.predict_instance_masks


def _compares_boxes(loss: LocalizationLoss | None) -> bool:
    return loss is not None and loss.which("localization_loss") in ("weighted_iou", "weighted_giou")


def _is_strided(config: FasterRcnnFeatureExtractor | None) -> bool:
    """Return whether the second half of the backbone reads every second cell of a crop: TF2's ResNets of one map."""
    return config is not None and re.fullmatch(r"faster_rcnn_resnet\d+_keras", config.type) is not None


def _is_timm(config: FasterRcnnFeatureExtractor | None) -> bool:
    return config is not None and config.type.startswith("timm/")


def _combines_nms(config: FasterRcnn) -> bool:
    post = config.second_stage_post_processing
    return post is not None and post.batch_non_max_suppression is not None and (
        post.batch_non_max_suppression.use_combined_nms)
