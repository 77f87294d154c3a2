"""The SSD meta-architecture.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field, Values
from boxwright.config.message import Bool, Float, Int32, Message, String
from boxwright.config.messages.anchor_generator import AnchorGenerator
from boxwright.config.messages.box_coder import BoxCoder
from boxwright.config.messages.box_predictor import BoxPredictor
from boxwright.config.messages.fpn import BidirectionalFeaturePyramidNetworks, FeaturePyramidNetworks
from boxwright.config.messages.hyperparams import Hyperparams
from boxwright.config.messages.image_resizer import ImageResizer
from boxwright.config.messages.losses import Loss
from boxwright.config.messages.matcher import Matcher
from boxwright.config.messages.post_processing import PostProcessing
from boxwright.config.messages.region_similarity_calculator import RegionSimilarityCalculator
from boxwright.config.reasons import LATER

# What TensorFlow 1 has, or had.
TF1_EXTRACTORS = (
    *(f"ssd_mobilenet_{version}{neck}" for version in ("v1", "v2") for neck in ("", "_fpn")),
    *(f"ssd_resnet{depth}_v1_{neck}" for neck in ("fpn", "ppn") for depth in (50, 101, 152)),
    "ssd_mobilenet_v1_ppn",
    "ssd_mobilenet_v2_mnasfpn",
    "ssd_mobilenet_v3_large",
    "ssd_mobilenet_v3_small",
    "ssd_mobilenet_edgetpu",
    *(f"ssd_mobiledet_{hardware}" for hardware in ("cpu", "dsp", "edgetpu", "gpu")),
    "ssd_inception_v2",
    "ssd_inception_v3",
    "ssd_pnasnet",
    "embedded_ssd_mobilenet_v1",
)
TF2_EXTRACTORS = (
    *(f"ssd_mobilenet_{version}{neck}_keras" for version in ("v1", "v2") for neck in ("", "_fpn")),
    *(f"ssd_resnet{depth}_v1_fpn_keras" for depth in (50, 101, 152)),
    *(f"ssd_efficientnet-b{number}_bifpn_keras" for number in range(8)),
)
SSD_EXTRACTORS = (*TF1_EXTRACTORS, *TF2_EXTRACTORS, "ssd_vgg16")


class SsdFeatureExtractor(Message):
    """Backbone and extra layers that turn the image into SSD feature maps."""

    proto_name: ClassVar[str] = "SsdFeatureExtractor"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {"feature_pyramid_oneof": ("fpn", "bifpn")}

    type: String = Field(
        "",
        values=Values(SSD_EXTRACTORS, prefix="timm/"),
        description="Registered extractor name, such as ssd_mobilenet_v2_keras, or timm/NAME.",
    )
    pretrained: Bool = Field(
        False,
        description="Fetch the weights of timm/NAME when a run starts afresh, once, from Hugging Face's hub "
        "(an extension of Boxwright).",
    )
    depth_multiplier: Float = Field(
        1.0,
        gt=0,
        le=100,
        description="Factor on the channel count of the backbone layers (MobileNet-style width); 1 = full width.",
    )
    min_depth: Int32 = Field(
        16, ge=0, le=8192, description="Fewest channels a layer may have after depth_multiplier is applied."
    )
    conv_hyperparams: Hyperparams | None = Field(
        None, description="Regularizer, initializer, activation and batch norm of the extractor's convolutions."
    )
    override_base_feature_extractor_hyperparams: Bool = Field(
        False, description="Apply conv_hyperparams to the backbone too, in place of the backbone's own defaults."
    )
    pad_to_multiple: Int32 = Field(
        1,
        ge=1,
        le=4096,
        description="Zero-pad image height and width up to a multiple of this many pixels; 1 = no padding.",
    )
    use_explicit_padding: Bool = Field(
        False, description="Pad inputs symmetrically by kernel size, then convolve VALID, instead of SAME padding."
    )
    use_depthwise: Bool = Field(
        False, description="Use depthwise separable convolutions in the layers added after the backbone."
    )
    fpn: FeaturePyramidNetworks | None = Field(
        None, description="Build a top-down feature pyramid (FPN extractors only); excludes bifpn."
    )
    bifpn: BidirectionalFeaturePyramidNetworks | None = Field(
        None,
        description="Build a bidirectional feature pyramid (EfficientDet-style BiFPN extractors only); excludes fpn.",
    )
    replace_preprocessor_with_placeholder: Bool = Field(
        False,
        no_effect="of TF1's export only",
        description="Feed images that are already preprocessed, skipping the extractor's own normalization.",
    )
    tensorflow_version: Int32 = Field(
        0,
        ge=0,
        le=2,
        description="Ours: which TensorFlow's meaning a type has that both have, 1 or 2; 0 = the one that its name is of.",
    )
    num_layers: Int32 = Field(
        6, ge=1, le=64, description="How many feature maps (SSD levels) to produce, on extractors that accept a count."
    )
    spaghettinet_arch_name: String = Field(
        "",
        refused="of a feature extractor that is not supported; remove it",
        description="SpaghettiNet variant to build, e.g. spaghettinet_edgetpu_s; SpaghettiNet extractors only.",
    )
    use_hardswish: Bool = Field(
        False,
        refused="of a feature extractor that is not supported; remove it",
        description="Use hard-swish in place of the default activation, on extractors that support the switch.",
    )


class SsdMaskHead(Message):
    """Instance mask head for SSD."""

    proto_name: ClassVar[str] = "Ssd.MaskHead"
    refused: ClassVar[str] = LATER

    mask_height: Int32 = Field(15, description="Rows of a predicted mask, in mask pixels.")
    mask_width: Int32 = Field(15, description="Columns of a predicted mask, in mask pixels.")
    masks_are_class_agnostic: Bool = Field(
        True, description="One mask per box shared by all classes, instead of one per class."
    )
    mask_prediction_conv_depth: Int32 = Field(
        256, description="Channels of the mask head's convolutions; in related heads 0 picks a depth automatically."
    )
    mask_prediction_num_conv_layers: Int32 = Field(2, description="How many convolutions the mask head stacks.")
    convolve_then_upsample_masks: Bool = Field(
        False, description="Run the convolutions first and upsample after, instead of upsampling first."
    )
    mask_loss_weight: Float = Field(5.0, description="Multiplier on the mask loss.")
    mask_loss_sample_size: Int32 = Field(16, description="How many boxes are sampled to compute the mask loss.")
    conv_hyperparams: Hyperparams | None = Field(
        None, description="Regularizer, initializer, activation and batch norm of the mask head's convolutions."
    )
    initial_crop_size: Int32 = Field(15, description="Side of the square feature crop taken per box, in cells.")


class Ssd(Message):
    """Single-stage anchor-based detector (SSD, RetinaNet, EfficientDet)."""

    proto_name: ClassVar[str] = "Ssd"

    num_classes: Int32 = Field(
        0,
        ge=0,
        le=100000,
        description="Number of object classes, background not counted unless explicit_background_class is on.",
    )
    image_resizer: ImageResizer | None = Field(
        None, description="How input images are resized before the network sees them."
    )
    feature_extractor: SsdFeatureExtractor | None = Field(None, description="Backbone network and its settings.")
    box_coder: BoxCoder | None = Field(None, description="How boxes are encoded relative to their anchors.")
    matcher: Matcher | None = Field(None, description="How anchors are assigned to ground-truth boxes.")
    similarity_calculator: RegionSimilarityCalculator | None = Field(
        None, description="Measure of overlap between anchors and ground-truth boxes used for matching."
    )
    encode_background_as_zeros: Bool = Field(
        False, description="Background targets are all zeros instead of one-hot; use with sigmoid losses."
    )
    negative_class_weight: Float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Multiplier on the class loss of anchors matched to no object."
    )
    box_predictor: BoxPredictor | None = Field(None, description="Head that predicts boxes and class scores.")
    anchor_generator: AnchorGenerator | None = Field(
        None, description="Layout of the anchor boxes on the feature maps."
    )
    post_processing: PostProcessing | None = Field(
        None, description="Score conversion and NMS that turn head outputs into detections."
    )
    normalize_loss_by_num_matches: Bool = Field(
        True, description="Divide the losses by the number of matched anchors in the batch (at least 1)."
    )
    normalize_loc_loss_by_codesize: Bool = Field(
        False, description="Divide the box loss by the number of values per box code."
    )
    loss: Loss | None = Field(None, description="Class and box losses, their weights and example selection.")
    freeze_batchnorm: Bool = Field(
        False, description="Keep batch-norm layers in inference mode during training; useful for small batches."
    )
    inplace_batchnorm_update: Bool = Field(
        False,
        no_effect="statistics are updated in place always",
        description="Update batch-norm averages inside the forward pass instead of as separate ops.",
    )
    add_background_class: Bool = Field(
        True, description="Add a background column before the class scores; fails with explicit_background_class."
    )
    explicit_background_class: Bool = Field(
        False,
        note="num_classes counts the background, and the label map does not",
        description="The first label class is itself background; fails with add_background_class.",
    )
    use_confidences_as_targets: Bool = Field(
        False, description="Train on ground-truth confidences instead of 0/1 class labels."
    )
    implicit_example_weight: Float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description="Loss weight of negatives that are not labeled; used with use_confidences_as_targets.",
    )
    return_raw_detections_during_predict: Bool = Field(
        False,
        no_effect="raw predictions are what predict() returns always",
        description="Also return decoded boxes before NMS from the predict step.",
    )
    mask_head_config: SsdMaskHead | None = Field(None, refused=LATER, description="Settings of an instance mask head.")
