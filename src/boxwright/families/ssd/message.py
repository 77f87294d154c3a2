"""The SSD meta-architecture.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import field, number
from boxwright.config.message import Message
from boxwright.config.messages.anchor_generator import AnchorGenerator
from boxwright.config.messages.box_predictor import BoxPredictor
from boxwright.config.messages.hyperparams import Hyperparams
from boxwright.config.messages.image_resizer import ImageResizer
from boxwright.config.messages.losses import Loss
from boxwright.config.messages.post_processing import PostProcessing
from boxwright.config.messages.ssd_feature_extractor import SsdFeatureExtractor
from boxwright.config.messages.target_assignment import BoxCoder, Matcher, RegionSimilarityCalculator, code_size
from boxwright.config.rules import Rule, color_only, refuse

_NO_MASKS = "TensorFlow's builder never reads it: its SSD predicts no masks; remove it, or use faster_rcnn for masks"

class SsdMaskHead(Message, name="Ssd.MaskHead", refused=_NO_MASKS):
    """Instance mask head for SSD."""

    mask_height: int = field(15, "Rows of a predicted mask, in mask pixels.")
    mask_width: int = field(15, "Columns of a predicted mask, in mask pixels.")
    masks_are_class_agnostic: bool = field(True, "One mask per box shared by all classes, instead of one per class.")
    mask_prediction_conv_depth: int = field(256,
        "Channels of the mask head's convolutions; in related heads 0 picks a depth automatically.")
    mask_prediction_num_conv_layers: int = field(2, "How many convolutions the mask head stacks.")
    convolve_then_upsample_masks: bool = field(False,
        "Run the convolutions first and upsample after, instead of upsampling first.")
    mask_loss_weight: float = field(5.0, "Multiplier on the mask loss.")
    mask_loss_sample_size: int = field(16, "How many boxes are sampled to compute the mask loss.")
    conv_hyperparams: Hyperparams | None = field(None,
        "Regularizer, initializer, activation and batch norm of the mask head's convolutions.")
    initial_crop_size: int = field(15, "Side of the square feature crop taken per box, in cells.")

_CODED = ("convolutional_box_predictor", "weight_shared_convolutional_box_predictor")


def _wrong_code_size(ssd: "Ssd") -> str:
    chosen = ssd.box_predictor.which("box_predictor_oneof") if ssd.box_predictor is not None else None
    if chosen not in _CODED or ssd.box_coder is None:
        return ""
    size, wanted = getattr(ssd.box_predictor, chosen).box_code_size, code_size(ssd.box_coder)
    return "" if size == wanted else f"box_code_size is {size}, but the box coder has {wanted} numbers; set it to that"


class Ssd(Message):
    """Single-stage anchor-based detector (SSD, RetinaNet, EfficientDet)."""

    num_classes: int = number(0, "[0, 100000]",
        "Number of object classes, background not counted unless explicit_background_class is on.")
    image_resizer: ImageResizer | None = field(None, "How input images are resized before the network sees them.")
    feature_extractor: SsdFeatureExtractor | None = field(None, "Backbone network and its settings.")
    box_coder: BoxCoder | None = field(None, "How boxes are encoded relative to their anchors.")
    matcher: Matcher | None = field(None, "How anchors are assigned to ground-truth boxes.")
    similarity_calculator: RegionSimilarityCalculator | None = field(None,
        "Measure of overlap between anchors and ground-truth boxes used for matching.")
    encode_background_as_zeros: bool = field(False,
        "Background targets are all zeros instead of one-hot; use with sigmoid losses.")
    negative_class_weight: float = number(1.0, "[0, inf)",
        "Multiplier on the class loss of anchors matched to no object.")
    box_predictor: BoxPredictor | None = field(None, "Head that predicts boxes and class scores.")
    anchor_generator: AnchorGenerator | None = field(None, "Layout of the anchor boxes on the feature maps.")
    post_processing: PostProcessing | None = field(None,
        "Score conversion and NMS that turn head outputs into detections.")
    normalize_loss_by_num_matches: bool = field(True,
        "Divide the losses by the number of matched anchors in the batch (at least 1).")
    normalize_loc_loss_by_codesize: bool = field(False, "Divide the box loss by the number of values per box code.")
    loss: Loss | None = field(None, "Class and box losses, their weights and example selection.")
    freeze_batchnorm: bool = field(False,
        "Keep batch-norm layers in inference mode during training; useful for small batches.")
    inplace_batchnorm_update: bool = field(False, "Update batch-norm averages inside the forward pass instead of as "
        "separate ops.", no_effect="statistics are updated in place always")
    add_background_class: bool = field(True,
        "Add a background column before the class scores; fails with explicit_background_class.")
    explicit_background_class: bool = field(False, "The first label class is itself background; fails with "
        "add_background_class.", note="num_classes counts the background, and the label map does not")
    use_confidences_as_targets: bool = field(False, "Train on ground-truth confidences instead of 0/1 class labels.")
    implicit_example_weight: float = number(1.0, "[0, inf)",
        "Loss weight of negatives that are not labeled; used with use_confidences_as_targets.")
    return_raw_detections_during_predict: bool = field(False, "Also return decoded boxes before NMS from the predict "
        "step.", no_effect="raw predictions are what predict() returns always")
    mask_head_config: SsdMaskHead | None = field(None, "Settings of an instance mask head.", refused=_NO_MASKS)

    rules = (
        color_only("timm/|ssd_efficientnet"),
        Rule("box_predictor", _wrong_code_size),
        refuse("explicit_background_class", "excludes add_background_class, which is true by default; set it to false",
            when=lambda c: c.explicit_background_class and c.add_background_class),
    )
