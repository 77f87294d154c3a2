"""The AlignDet meta-architecture (Chen et al., 2019), an extension of Boxwright. What is left out is as released."""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Enum, Int32, Message
from boxwright.config.messages.anchor_generator import AnchorGenerator
from boxwright.config.messages.box_coder import BoxCoder
from boxwright.config.messages.cascade import AlignmentBorder, ClassifierBackbone, LevelCandidates
from boxwright.config.messages.hyperparams import Hyperparams
from boxwright.config.messages.image_resizer import ImageResizer
from boxwright.config.messages.losses import Loss
from boxwright.config.messages.matcher import Matcher
from boxwright.config.messages.post_processing import PostProcessing


class BoxSamplingKind(Enum):
    """Where a later step looks."""

    ROI_CONV = 0
    WINDOW = 1
    LEARNED = 2
    GUIDED = 3
    ROI_ALIGN = 4


class AlignedStep(Message):
    """A step that looks at the boxes of the step before (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "AlignedStep"

    sampling: BoxSamplingKind = Field(
        BoxSamplingKind.ROI_CONV,
        description="ROI_CONV: taps on the box's bins; WINDOW: around the cell, a plain convolution; LEARNED: where "
        "features say (deformable); GUIDED: where the box's height and width say; ROI_ALIGN: a crop of the box.",
    )
    kernel_size: Int32 = Field(7, ge=1, le=15, description="Taps a side, K; odd.")
    border: AlignmentBorder = Field(
        AlignmentBorder.LAST_CELL,
        description="What ROI_CONV's taps beyond the map read: LAST_CELL as released (by MXNet, which reads 0 before "
        "the first cell and repeats the last), ZERO as torchvision.",
    )
    depth: Int32 = Field(1024, ge=1, le=8192, description="Channels of what is looked at, and of the hidden layer.")
    ignore_finest: Bool = Field(
        False, description="Let the finest level look with 3 taps a side and layers of its own (ignore_p3): cheaper."
    )
    matcher: Matcher | None = Field(
        None,
        description="How boxes are matched; without, 0.7 for both thresholds, and every object gets the boxes that "
        "overlap it most.",
    )
    loss: Loss | None = Field(None, description="Losses; without, those of the first step.")


class AlignDet(Message):
    """One-stage detector whose second look is aligned with its first boxes (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "AlignDet"

    num_classes: Int32 = Field(0, ge=0, le=100000, description="Number of object classes, background not counted.")
    image_resizer: ImageResizer | None = Field(None, description="How input images are resized.")
    feature_extractor: ClassifierBackbone | None = Field(
        None, description="Backbone, of which maps of strides 8 to 32 are taken."
    )
    depth: Int32 = Field(256, ge=1, le=8192, description="Channels of the pyramid's levels and of the first head.")
    num_layers_before_predictor: Int32 = Field(
        4, ge=0, le=16, description="Convolutions of each tower of the first head."
    )
    conv_hyperparams: Hyperparams | None = Field(
        None,
        description="Regularizer, initializer, activation and batch norm of pyramid and heads; without, normal kernels "
        "of 0.01, ReLU, no batch norm. The pyramid's convolutions take its kernels alone.",
    )
    anchor_generator: AnchorGenerator | None = Field(
        None,
        description="Layout of the anchor boxes of levels 3 to 7, as many on each; without, one square of 4 × 2^(1/3) "
        "strides. Of several the later steps look at the one most sure of an object.",
    )
    box_coder: BoxCoder | None = Field(
        None, description="How boxes are encoded, in every step; without, faster_rcnn_box_coder with scales of 1."
    )
    matcher: Matcher | None = Field(
        None,
        description="How the first step's anchors are matched; without, 0.4 and 0.3, and every object gets the anchors "
        "that overlap it most.",
    )
    loss: Loss | None = Field(
        None, description="Losses of the first step; without, focal and smooth L1 with delta 0.11 and a slope of 1."
    )
    step: list[AlignedStep] = Field(
        default_factory=list,
        description="The later steps, in order: { } is AlignDet's as released, two of them make three steps; without, the "
        "RetinaNet that it starts from.",
    )
    level_candidates: LevelCandidates | None = Field(
        None,
        description="Which scores take part in suppression; without, the best 1000 of each level above 0.05, on the "
        "coarsest any.",
    )
    post_processing: PostProcessing | None = Field(
        None, description="Score conversion and suppression; without, sigmoid, 0.5, 100 detections."
    )
    freeze_batchnorm: Bool = Field(
        False, description="Keep batch-norm layers in inference mode during training, as released."
    )
