"""The SRN meta-architecture (Chi et al., 2019), an extension of Boxwright.

Defaults are the authors' released graph; those of training, which was not released, are the paper's.
"""

from boxwright.config.field import Enum, field, number
from boxwright.config.message import Message
from boxwright.config.messages.anchor_generator import AnchorGenerator
from boxwright.config.messages.cascade import (
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
from boxwright.config.rules import color_only, distinct, excludes, refuse


class SrnPreset(Enum):
    """Published settings of suppression."""

    RELEASED = 0
    PAPER = 1

class TwoStepClassification(Message):
    """Selective two-step classification (STC): anchors that the first step rules out (an extension of Boxwright)."""

    levels: list[int] = number([2, 3, 4], "[2, 7]", "Levels on which the first step filters.")
    objectness_threshold: float = number(0.01, "(0, 1)",
        "Anchors less likely to hold an object (1 - θ) are no negatives of the second step, nor detected.")

    rules = (distinct("levels"),)

class TwoStepRegression(Message):
    """Selective two-step regression (STR): anchors that the first step moves (an extension of Boxwright)."""

    levels: list[int] = number([5, 6, 7], "[2, 7]", "Levels whose second step starts from the first's boxes.")

    rules = (distinct("levels"),)

class Srn(Message):
    """Selective refinement network: two steps, each used where it helps (an extension of Boxwright)."""

    num_classes: int = number(0, "[0, 100000]", "Number of object classes, background not counted.")
    image_resizer: ImageResizer | None = field(None, "How input images are resized.")
    feature_extractor: ClassifierBackbone | None = field(None, "Backbone, of which maps of strides 4 to 32 are taken.")
    depth: int = number(256, "[4, 8192]", "Channels of every level and of the head.", multiple_of=4)
    align_corners: bool = field(True, "Enlarge coarser maps with corner pixels on each other, as in the PyTorch of the "
        "release; false as later ones do.")
    receptive_field_enhancement: bool = field(True,
        "Long, thin kernels in the head's towers (RFE); false for plain towers.")
    share_head: bool = field(True, "One head for both steps, as released; false for one each, as in the paper.")
    conv_hyperparams: Hyperparams | None = field(None,
        "Regularizer, initializer, activation and batch norm of maps and head; default: normal kernels of 0.01, ReLU, "
        "no batch norm. The maps' convolutions take its kernels alone.")
    anchor_generator: AnchorGenerator | None = field(None, "Layout of the anchor boxes of levels 2 to 7, as many on "
        "each; default: two of 2 and 2√2 strides, 1.25 times as high as wide.")
    box_coder: BoxCoder | None = field(None,
        "How boxes are encoded, in both steps; by default as released: from pixel center to center.")
    two_step_classification: TwoStepClassification | None = field(None, "STC; unset, the first step filters nothing.")
    two_step_regression: TwoStepRegression | None = field(None,
        "STR; if unset, boxes are predicted once. With neither there is no first step.")
    first_matcher: Matcher | None = field(None,
        "How the first step's anchors are matched; default: argmax_matcher with 0.7 and 0.3.")
    first_loss: Loss = field(focal_loss(), "Losses of the first step.")
    matcher: Matcher | None = field(None,
        "How the second step's anchors are matched; default: argmax_matcher with 0.5 and 0.4.")
    loss: Loss = field(focal_loss(), "Losses of the second step.")
    level_candidates: LevelCandidates | None = field(None,
        "Which scores take part in suppression; default: as inference_preset says.")
    post_processing: PostProcessing | None = field(None, "Score conversion and suppression; excludes inference_preset.")
    inference_preset: SrnPreset = field(SrnPreset.RELEASED, "RELEASED: best 6000 of each level, suppression at 0.4; "
        "PAPER: best 2000, at 0.5. Both take scores above 0.05, any on maps of fewer than 120 cells, and keep 750.")
    freeze_batchnorm: bool = field(False,
        "Keep batch-norm layers in inference mode during training; useful for small batches.")

    rules = (
        color_only("timm/"),
        finest_level(2),
        sigmoid_only("first_loss"),
        sigmoid_only("loss"),
        excludes("inference_preset", "post_processing"),
        refuse("box_coder", "use faster_rcnn_box_coder",
            when=lambda c: c.box_coder and c.box_coder.faster_rcnn_box_coder is None),
    )
