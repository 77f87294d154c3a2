"""Box predictors (heads).

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Enum, Float, Int32, Message
from boxwright.config.messages.hyperparams import Hyperparams


class WeightSharedConvolutionalBoxPredictorScoreConverter(Enum):
    """Values of `WeightSharedConvolutionalBoxPredictor.ScoreConverter`."""

    IDENTITY = 0
    SIGMOID = 1


class ConvolutionalBoxPredictorBoxEncodingsClipRange(Message):
    """Limits on raw box codes before they are decoded."""

    proto_name: ClassVar[str] = "ConvolutionalBoxPredictor.BoxEncodingsClipRange"

    min: Float = Field(0.0, allow_inf_nan=False, description="Box codes below this are raised to it.")
    max: Float = Field(0.0, allow_inf_nan=False, description="Box codes above this are lowered to it.")


class ConvolutionalBoxPredictor(Message):
    """Convolution head with its own weights for each feature map."""

    proto_name: ClassVar[str] = "ConvolutionalBoxPredictor"

    conv_hyperparams: Hyperparams | None = Field(
        None, description="Weight init, regularizer, activation and norm of the head layers."
    )
    min_depth: Int32 = Field(0, ge=0, le=8192, description="Fewest channels in the extra layers before prediction.")
    max_depth: Int32 = Field(
        0,
        ge=0,
        le=8192,
        description="Most channels in the extra layers; if it and min_depth are 0, no extra layers are added.",
    )
    num_layers_before_predictor: Int32 = Field(
        0, ge=0, le=64, description="Number of extra 1x1 convolution layers before the prediction layers."
    )
    use_dropout: Bool = Field(True, description="Apply dropout before the class prediction layer when training.")
    dropout_keep_probability: Float = Field(
        0.8, ge=0, le=1, description="Chance that a value survives dropout; 0..1, used only with use_dropout."
    )
    kernel_size: Int32 = Field(
        1, ge=1, le=63, description="Side of the prediction kernels, in cells; cut down on maps smaller than it."
    )
    box_code_size: Int32 = Field(
        4, ge=1, le=20000, description="Numbers predicted per box; must match the box coder, normally 4."
    )
    apply_sigmoid_to_scores: Bool = Field(False, description="Pass class scores through a sigmoid inside the head.")
    class_prediction_bias_init: Float = Field(
        0.0,
        allow_inf_nan=False,
        description="Starting bias of the class layer; negative, e.g. -4.6, lowers early scores for focal loss.",
    )
    use_depthwise: Bool = Field(False, description="Use depthwise separable convolutions in the head.")
    box_encodings_clip_range: ConvolutionalBoxPredictorBoxEncodingsClipRange | None = Field(
        None, description="If set, limits predicted box codes to this range."
    )


class MaskRCNNBoxPredictor(Message):
    """Second-stage head: box refinement, classes and optional masks for each proposal."""

    proto_name: ClassVar[str] = "MaskRCNNBoxPredictor"

    fc_hyperparams: Hyperparams | None = Field(
        None, description="Settings of the dense layers that predict boxes and classes."
    )
    use_dropout: Bool = Field(False, description="Apply dropout before the dense layers when training.")
    dropout_keep_probability: Float = Field(
        0.5, ge=0, le=1, description="Chance that a value survives dropout; 0..1, used only with use_dropout."
    )
    box_code_size: Int32 = Field(
        4, ge=4, le=4, no_effect="a box has four numbers", description="Numbers predicted per box: 4."
    )
    conv_hyperparams: Hyperparams | None = Field(
        None, description="Settings of the mask convolutions; needed when masks are predicted."
    )
    predict_instance_masks: Bool = Field(
        False, description="Add a mask head (Mask R-CNN); also needs number_of_stages 3 and masks in the data."
    )
    mask_prediction_conv_depth: Int32 = Field(
        256,
        ge=0,
        le=8192,
        description="Channels of the mask convolutions; 0 picks a number from the class and feature counts.",
    )
    predict_keypoints: Bool = Field(
        False,
        refused="TensorFlow has no such head, either; for keypoints use an SSD with a keypoint_box_coder",
        description="Meant to add a keypoint head, which does not exist.",
    )
    mask_height: Int32 = Field(15, ge=1, le=512, description="Height of each predicted mask, cells.")
    mask_width: Int32 = Field(15, ge=1, le=512, description="Width of each predicted mask, cells.")
    mask_prediction_num_conv_layers: Int32 = Field(
        2, ge=1, le=64, description="Number of convolution layers in the mask head."
    )
    masks_are_class_agnostic: Bool = Field(False, description="Predict one mask per box instead of one per class.")
    share_box_across_classes: Bool = Field(
        False, description="Predict one refined box per proposal instead of one per class."
    )
    convolve_then_upsample_masks: Bool = Field(
        False, description="Convolve mask features first and enlarge them after, instead of the reverse."
    )
    mask_crop_size: Int32 = Field(
        0,
        ge=0,
        le=512,
        description="Ours: side of a crop of the mask head's own, by RoIAlign; 0 = it sees the box classifier's features.",
    )
    deconvolve_masks: Bool = Field(
        False,
        description="Ours: the paper's layers for pyramids: convolutions, a deconvolution that doubles the size, and a "
        "1x1 convolution.",
    )


class RfcnBoxPredictor(Message):
    """R-FCN head using position-sensitive crops of convolution score maps."""

    proto_name: ClassVar[str] = "RfcnBoxPredictor"

    conv_hyperparams: Hyperparams | None = Field(
        None, description="Weight init, regularizer, activation and norm of the head convolutions."
    )
    num_spatial_bins_height: Int32 = Field(3, ge=1, le=32, description="Rows of position-sensitive bins per proposal.")
    num_spatial_bins_width: Int32 = Field(
        3, ge=1, le=32, description="Columns of position-sensitive bins per proposal."
    )
    depth: Int32 = Field(1024, ge=1, le=8192, description="Channels the features are reduced to before the score maps.")
    box_code_size: Int32 = Field(
        4, ge=4, le=4, no_effect="a box has four numbers", description="Numbers predicted per box: 4."
    )
    crop_height: Int32 = Field(
        12, ge=1, le=512, description="Height each proposal is cropped to; a multiple of num_spatial_bins_height."
    )
    crop_width: Int32 = Field(
        12, ge=1, le=512, description="Width each proposal is cropped to; a multiple of num_spatial_bins_width."
    )


class WeightSharedConvolutionalBoxPredictorBoxEncodingsClipRange(Message):
    """Limits on raw box codes before they are decoded."""

    proto_name: ClassVar[str] = "WeightSharedConvolutionalBoxPredictor.BoxEncodingsClipRange"

    min: Float = Field(0.0, allow_inf_nan=False, description="Box codes below this are raised to it.")
    max: Float = Field(0.0, allow_inf_nan=False, description="Box codes above this are lowered to it.")


class WeightSharedConvolutionalBoxPredictor(Message):
    """Convolution head whose weights are shared by all feature maps."""

    proto_name: ClassVar[str] = "WeightSharedConvolutionalBoxPredictor"

    conv_hyperparams: Hyperparams | None = Field(
        None, description="Weight init, regularizer, activation and norm of the head layers."
    )
    apply_conv_hyperparams_to_heads: Bool = Field(
        False, description="Use conv_hyperparams on depthwise final prediction layers too, not only on the tower."
    )
    apply_conv_hyperparams_pointwise: Bool = Field(
        False, description="With depthwise convolutions, use conv_hyperparams on their pointwise part too."
    )
    num_layers_before_predictor: Int32 = Field(
        0, ge=0, le=64, description="Number of convolution layers in the tower before the prediction layers."
    )
    depth: Int32 = Field(0, ge=0, le=8192, description="Channels of the tower layers.")
    kernel_size: Int32 = Field(3, ge=1, le=63, description="Side of the head kernels, in cells.")
    box_code_size: Int32 = Field(
        4, ge=1, le=20000, description="Numbers predicted per box; must match the box coder, normally 4."
    )
    class_prediction_bias_init: Float = Field(
        0.0,
        allow_inf_nan=False,
        description="Starting bias of the class layer; negative, e.g. -4.6, lowers early scores for focal loss.",
    )
    use_dropout: Bool = Field(False, description="Apply dropout before the class prediction layer when training.")
    dropout_keep_probability: Float = Field(
        0.8, ge=0, le=1, description="Chance that a value survives dropout; 0..1, used only with use_dropout."
    )
    share_prediction_tower: Bool = Field(
        False, description="Use one tower for both boxes and classes instead of one each."
    )
    use_depthwise: Bool = Field(False, description="Use depthwise separable convolutions in the head.")
    score_converter: WeightSharedConvolutionalBoxPredictorScoreConverter = Field(
        WeightSharedConvolutionalBoxPredictorScoreConverter.IDENTITY,
        description="Function applied to class outputs inside the head: IDENTITY or SIGMOID.",
    )
    box_encodings_clip_range: WeightSharedConvolutionalBoxPredictorBoxEncodingsClipRange | None = Field(
        None, description="If set, limits predicted box codes to this range."
    )


class BoxPredictor(Message):
    """Head that predicts boxes and class scores; set exactly one field."""

    proto_name: ClassVar[str] = "BoxPredictor"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "box_predictor_oneof": (
            "convolutional_box_predictor",
            "mask_rcnn_box_predictor",
            "rfcn_box_predictor",
            "weight_shared_convolutional_box_predictor",
        )
    }

    convolutional_box_predictor: ConvolutionalBoxPredictor | None = Field(
        None, description="Separate convolution head for each feature map (SSD)."
    )
    mask_rcnn_box_predictor: MaskRCNNBoxPredictor | None = Field(
        None,
        description="Dense head on pooled proposals, with optional masks (Faster and Mask R-CNN).",
    )
    rfcn_box_predictor: RfcnBoxPredictor | None = Field(None, description="Position-sensitive head (R-FCN).")
    weight_shared_convolutional_box_predictor: WeightSharedConvolutionalBoxPredictor | None = Field(
        None, description="One convolution head shared by all feature maps (RetinaNet, EfficientDet)."
    )
