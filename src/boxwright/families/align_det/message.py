"""The AlignDet meta-architecture (Chen et al., 2019), an extension of Boxwright. Defaults are as released."""

from boxwright.config.field import Enum, field, number
from boxwright.config.message import Message
from boxwright.config.messages.anchor_generator import AnchorGenerator
from boxwright.config.messages.cascade import (
    AlignmentBorder,
    ClassifierBackbone,
    LevelCandidates,
    finest_level,
    focal_loss,
    sigmoid_only,
)
from boxwright.config.messages.hyperparams import Hyperparams
from boxwright.config.messages.image_resizer import ImageResizer
from boxwright.config.messages.losses import Loss
from boxwright.config.messages.post_processing import PostProcessing
from boxwright.config.messages.target_assignment import BoxCoder, Matcher
from boxwright.config.rules import color_only, refuse


class BoxSamplingKind(Enum):
    """Where a later step looks."""

    ROI_CONV = 0
    WINDOW = 1
    LEARNED = 2
    GUIDED = 3
    ROI_ALIGN = 4

class AlignedStep(Message):
    """A step that looks at the boxes of the step before (an extension of Boxwright)."""

    sampling: BoxSamplingKind = field(BoxSamplingKind.ROI_CONV,
        "ROI_CONV: taps on the box's bins; WINDOW: around the cell, a plain convolution; LEARNED: where features say "
        "(deformable); GUIDED: where the box's height and width say; ROI_ALIGN: a crop of the box.")
    kernel_size: int = number(7, "[1, 15]", "Taps a side, K; odd.")
    border: AlignmentBorder = field(AlignmentBorder.LAST_CELL, "What ROI_CONV's taps beyond the map read: LAST_CELL as "
        "released (by MXNet, which reads 0 before the first cell and repeats the last), ZERO as torchvision.")
    depth: int = number(1024, "[1, 8192]", "Channels of the sampled features, and of the hidden layer.")
    ignore_finest: bool = field(False,
        "Let the finest level look with 3 taps a side and layers of its own (ignore_p3): cheaper.")
    matcher: Matcher | None = field(None, "How boxes are matched; default: 0.7 for both thresholds, and every object "
        "gets the boxes that overlap it most.")
    loss: Loss | None = field(None, "Losses; default: those of the first step.")

    rules = (
        sigmoid_only("loss"),
        refuse("kernel_size", "taps lie around a cell, so their number is odd; found {kernel_size}",
            when=lambda c: c.kernel_size % 2 == 0),
        refuse("border", "only ROI_CONV's taps read beyond the map by it; remove it for {sampling}",
            when=lambda c: c.has("border") and c.sampling.name != "ROI_CONV"),
    )

class AlignDet(Message):
    """One-stage detector whose second look is aligned with its first boxes (an extension of Boxwright)."""

    num_classes: int = number(0, "[0, 100000]", "Number of object classes, background not counted.")
    image_resizer: ImageResizer | None = field(None, "How input images are resized.")
    feature_extractor: ClassifierBackbone | None = field(None, "Backbone, of which maps of strides 8 to 32 are taken.")
    depth: int = number(256, "[1, 8192]", "Channels of the pyramid's levels and of the first head.")
    num_layers_before_predictor: int = number(4, "[0, 16]", "Convolutions of each tower of the first head.")
    conv_hyperparams: Hyperparams | None = field(None,
        "Regularizer, initializer, activation and batch norm of pyramid and heads; default: normal kernels of 0.01, "
        "ReLU, no batch norm. The pyramid's convolutions take its kernels alone.")
    anchor_generator: AnchorGenerator | None = field(None,
        "Layout of the anchor boxes of levels 3 to 7, as many on each; default: one square of 4 × 2^(1/3) strides. Of "
        "several the later steps look at the one most sure of an object.")
    box_coder: BoxCoder | None = field(None,
        "How boxes are encoded, in every step; default: faster_rcnn_box_coder with scales of 1.")
    matcher: Matcher | None = field(None, "How the first step's anchors are matched; default: 0.4 and 0.3, and every "
        "object gets the anchors that overlap it most.")
    # Far from the target, the release's loss has a slope of 1, and TensorFlow's of delta.
    loss: Loss = field(focal_loss(delta=0.11, localization_weight=1 / 0.11), "Losses of the first step.")
    step: list[AlignedStep] = field([], "The later steps, in order: { } is AlignDet's as released, two of them make "
        "three steps; default: the RetinaNet that it starts from.")
    level_candidates: LevelCandidates | None = field(None,
        "Which scores take part in suppression; default: the best 1000 of each level above 0.05, on the coarsest any.")
    post_processing: PostProcessing | None = field(None,
        "Score conversion and suppression; default: sigmoid, 0.5, 100 detections.")
    freeze_batchnorm: bool = field(False, "Keep batch-norm layers in inference mode during training, as released.")

    rules = (
        color_only("timm/"),
        finest_level(3),
        sigmoid_only("loss"),
        refuse("box_coder", "use faster_rcnn_box_coder",
            when=lambda c: c.box_coder and c.box_coder.faster_rcnn_box_coder is None),
    )
