"""Box predictors (heads).

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import Enum, field, number
from boxwright.config.message import Message
from boxwright.config.messages.hyperparams import Hyperparams
from boxwright.config.rules import refuse

# Meanings that several fields share.
DROPOUT_KEEP_PROBABILITY = "Chance that a value survives dropout; 0..1, used only with use_dropout."

class WeightSharedConvolutionalBoxPredictorScoreConverter(Enum):
    """Values of `WeightSharedConvolutionalBoxPredictor.ScoreConverter`."""

    IDENTITY = 0
    SIGMOID = 1

class ConvolutionalBoxPredictorBoxEncodingsClipRange(Message, name="ConvolutionalBoxPredictor.BoxEncodingsClipRange"):
    """Limits on raw box codes before they are decoded."""

    min: float = number(0.0, "(-inf, inf)", "Box codes below this are raised to it.")
    max: float = number(0.0, "(-inf, inf)", "Box codes above this are lowered to it.")

class ConvolutionalBoxPredictor(Message):
    """Convolution head with its own weights for each feature map."""

    conv_hyperparams: Hyperparams | None = field(None,
        "Weight init, regularizer, activation and norm of the head layers.")
    min_depth: int = number(0, "[0, 8192]", "Fewest channels in the extra layers before prediction.")
    max_depth: int = number(0, "[0, 8192]",
        "Most channels in the extra layers; if it and min_depth are 0, no extra layers are added.")
    num_layers_before_predictor: int = number(0, "[0, 64]",
        "Number of extra 1x1 convolution layers before the prediction layers.")
    use_dropout: bool = field(True, "Apply dropout before the class prediction layer when training.")
    dropout_keep_probability: float = number(0.8, "[0, 1]", DROPOUT_KEEP_PROBABILITY)
    kernel_size: int = number(1, "[1, 63]",
        "Side of the prediction kernels, in cells; cut down on maps smaller than it.")
    box_code_size: int = number(4, "[1, 20000]", "Numbers predicted per box; must match the box coder, normally 4.")
    apply_sigmoid_to_scores: bool = field(False, "Pass class scores through a sigmoid inside the head.")
    class_prediction_bias_init: float = number(0.0, "(-inf, inf)",
        "Starting bias of the class layer; negative, e.g. -4.6, lowers early scores for focal loss.")
    use_depthwise: bool = field(False, "Use depthwise separable convolutions in the head.")
    box_encodings_clip_range: ConvolutionalBoxPredictorBoxEncodingsClipRange | None = field(None,
        "If set, limits predicted box codes to this range.")

class MaskRCNNBoxPredictor(Message):
    """Second-stage head: box refinement, classes and optional masks for each proposal."""

    fc_hyperparams: Hyperparams | None = field(None, "Settings of the dense layers that predict boxes and classes.")
    use_dropout: bool = field(False, "Apply dropout before the dense layers when training.")
    dropout_keep_probability: float = number(0.5, "[0, 1]", DROPOUT_KEEP_PROBABILITY)
    box_code_size: int = number(4, "[4, 4]", "Numbers predicted per box: 4.", no_effect="a box has four numbers")
    conv_hyperparams: Hyperparams | None = field(None,
        "Settings of the mask convolutions; needed when masks are predicted.")
    predict_instance_masks: bool = field(False,
        "Add a mask head (Mask R-CNN); also needs number_of_stages 3 and masks in the data.")
    mask_prediction_conv_depth: int = number(256, "[0, 8192]",
        "Channels of the mask convolutions; 0 picks a number from the class and feature counts.")
    predict_keypoints: bool = field(False,
        "Meant to add a keypoint head, which does not exist.",
        refused="TensorFlow has no such head, either; for keypoints use an SSD with a keypoint_box_coder")
    mask_height: int = number(15, "[1, 512]", "Height of each predicted mask, cells.")
    mask_width: int = number(15, "[1, 512]", "Width of each predicted mask, cells.")
    mask_prediction_num_conv_layers: int = number(2, "[1, 64]", "Number of convolution layers in the mask head.")
    masks_are_class_agnostic: bool = field(False, "Predict one mask per box instead of one per class.")
    share_box_across_classes: bool = field(False, "Predict one refined box per proposal instead of one per class.")
    convolve_then_upsample_masks: bool = field(False,
        "Convolve mask features first and enlarge them after, instead of the reverse.")
    mask_crop_size: int = number(0, "[0, 512]",
        "Ours: side of a crop of the mask head's own, by RoIAlign; 0 = it sees the box classifier's features.")
    deconvolve_masks: bool = field(False, "Ours: the paper's layers for pyramids: convolutions, a deconvolution that "
        "doubles the size, and a 1x1 convolution.")

    rules = (
        refuse("fc_hyperparams.group_norm",
            "TensorFlow's needs maps, and fails or is ignored in dense layers; remove it",
            when=lambda c: c.fc_hyperparams and c.fc_hyperparams.group_norm),
        refuse("dropout_keep_probability", "0 would drop everything; use more",
            when=lambda c: c.use_dropout and c.dropout_keep_probability == 0),
    )

class RfcnBoxPredictor(Message):
    """R-FCN head using position-sensitive crops of convolution score maps."""

    conv_hyperparams: Hyperparams | None = field(None,
        "Weight init, regularizer, activation and norm of the head convolutions.")
    num_spatial_bins_height: int = number(3, "[1, 32]", "Rows of position-sensitive bins per proposal.")
    num_spatial_bins_width: int = number(3, "[1, 32]", "Columns of position-sensitive bins per proposal.")
    depth: int = number(1024, "[1, 8192]", "Channels the features are reduced to before the score maps.")
    box_code_size: int = number(4, "[4, 4]", "Numbers predicted per box: 4.", no_effect="a box has four numbers")
    crop_height: int = number(12, "[1, 512]",
        "Height each proposal is cropped to; a multiple of num_spatial_bins_height.")
    crop_width: int = number(12, "[1, 512]", "Width each proposal is cropped to; a multiple of num_spatial_bins_width.")

    rules = (
        refuse("",
            "crop_height and crop_width ({crop_height} and {crop_width}) must be multiples of the spatial bins "
            "({num_spatial_bins_height} and {num_spatial_bins_width})",
            when=lambda c: c.crop_height % c.num_spatial_bins_height or c.crop_width % c.num_spatial_bins_width),
    )

class WeightSharedConvolutionalBoxPredictorBoxEncodingsClipRange(Message,
    name="WeightSharedConvolutionalBoxPredictor.BoxEncodingsClipRange"):
    """Limits on raw box codes before they are decoded."""

    min: float = number(0.0, "(-inf, inf)", "Box codes below this are raised to it.")
    max: float = number(0.0, "(-inf, inf)", "Box codes above this are lowered to it.")

class WeightSharedConvolutionalBoxPredictor(Message):
    """Convolution head whose weights are shared by all feature maps."""

    conv_hyperparams: Hyperparams | None = field(None,
        "Weight init, regularizer, activation and norm of the head layers.")
    apply_conv_hyperparams_to_heads: bool = field(False,
        "Use conv_hyperparams on depthwise final prediction layers too, not only on the tower.")
    apply_conv_hyperparams_pointwise: bool = field(False,
        "With depthwise convolutions, use conv_hyperparams on their pointwise part too.")
    num_layers_before_predictor: int = number(0, "[0, 64]",
        "Number of convolution layers in the tower before the prediction layers.")
    depth: int = number(0, "[0, 8192]", "Channels of the tower layers.")
    kernel_size: int = number(3, "[1, 63]", "Side of the head kernels, in cells.")
    box_code_size: int = number(4, "[1, 20000]", "Numbers predicted per box; must match the box coder, normally 4.")
    class_prediction_bias_init: float = number(0.0, "(-inf, inf)",
        "Starting bias of the class layer; negative, e.g. -4.6, lowers early scores for focal loss.")
    use_dropout: bool = field(False, "Apply dropout before the class prediction layer when training.")
    dropout_keep_probability: float = number(0.8, "[0, 1]", DROPOUT_KEEP_PROBABILITY)
    share_prediction_tower: bool = field(False, "Use one tower for both boxes and classes instead of one each.")
    use_depthwise: bool = field(False, "Use depthwise separable convolutions in the head.")
    score_converter: WeightSharedConvolutionalBoxPredictorScoreConverter = field(
        WeightSharedConvolutionalBoxPredictorScoreConverter.IDENTITY,
        "Function applied to class outputs inside the head: IDENTITY or SIGMOID.")
    box_encodings_clip_range: WeightSharedConvolutionalBoxPredictorBoxEncodingsClipRange | None = field(None,
        "If set, limits predicted box codes to this range.")

    rules = (
        refuse("depth", "expected at least 1, the channels of the layers before the predictor",
            when=lambda c: c.depth < 1 and c.num_layers_before_predictor > 0),
    )

class BoxPredictor(Message, oneof="box_predictor_oneof"):
    """Head that predicts boxes and class scores; set exactly one field."""

    convolutional_box_predictor: ConvolutionalBoxPredictor | None = field(None,
        "Separate convolution head for each feature map (SSD).")
    mask_rcnn_box_predictor: MaskRCNNBoxPredictor | None = field(None,
        "Dense head on pooled proposals, with optional masks (Faster and Mask R-CNN).")
    rfcn_box_predictor: RfcnBoxPredictor | None = field(None, "Position-sensitive head (R-FCN).")
    weight_shared_convolutional_box_predictor: WeightSharedConvolutionalBoxPredictor | None = field(None,
        "One convolution head shared by all feature maps (RetinaNet, EfficientDet).")
