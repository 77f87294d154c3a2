"""What SRN and AlignDet share: a backbone, and which of each level's scores take part (extensions of Boxwright)."""

from boxwright.config.field import AllowedValues, Enum, field, number
from boxwright.config.message import Message
from boxwright.config.messages.hyperparams import Hyperparams
from boxwright.config.messages.losses import (
    ClassificationLoss,
    LocalizationLoss,
    Loss,
    SigmoidFocalClassificationLoss,
    WeightedSmoothL1LocalizationLoss,
)
from boxwright.config.rules import PRETRAINED, TYPE, Rule, default_only, of_type, refuse


def focal_loss(*, delta: float = 1.0, localization_weight: float = 1.0) -> Loss:
    """Return RetinaNet's losses: focal for classes, smooth L1 for boxes."""
    return Loss(
        classification_loss=ClassificationLoss(
            weighted_sigmoid_focal=SigmoidFocalClassificationLoss(gamma=2.0, alpha=0.25)),
        localization_loss=LocalizationLoss(weighted_smooth_l1=WeightedSmoothL1LocalizationLoss(delta=delta)),
        localization_weight=localization_weight,
    )


def finest_level(level: int) -> Rule:
    """Refuse anchors of a multiscale generator whose finest level is not that of the maps."""
    return refuse("anchor_generator.multiscale_anchor_generator.min_level",
        f"the finest map has stride {2**level}, which is min_level {level}; found "
        "{anchor_generator.multiscale_anchor_generator.min_level}",
        when=lambda c: c.anchor_generator and c.anchor_generator.multiscale_anchor_generator
        and c.anchor_generator.multiscale_anchor_generator.min_level != level)


def sigmoid_only(field: str) -> Rule:
    """Refuse a softmax in a loss of SRN or AlignDet."""
    return refuse(f"{field}.classification_loss",
        "a softmax needs a background, which these classes lack; use a sigmoid loss",
        when=lambda c: _is_softmax(getattr(c, field)))


def _is_softmax(loss: Loss | None) -> bool:
    chosen = loss.classification_loss if loss is not None else None
    return chosen is not None and "softmax" in (chosen.which("classification_loss") or "")


class AlignmentBorder(Enum):
    """What a tap of RoIConv reads beyond the outermost cells of a map."""

    LAST_CELL = 0
    ZERO = 1

class ClassifierBackbone(Message):
    """The feature maps of an image classifier (an extension of Boxwright)."""

    type: str = field("",
        "timm/NAME, or mobilenet_v2, resnet50_v1, resnet101_v1 or resnet152_v1 as Keras has them.",
        values=AllowedValues(('mobilenet_v2', 'resnet50_v1', 'resnet101_v1', 'resnet152_v1'), prefix='timm/'))
    pretrained: bool = field(False,
        "Fetch the weights of timm/NAME when a new run starts, once, from Hugging Face's hub.")
    depth_multiplier: float = number(1.0, "(0, 100]", "Factor on the channels of mobilenet_v2.")
    min_depth: int = number(16, "[0, 8192]", "Fewest channels a layer may have after that factor.")
    conv_hyperparams: Hyperparams | None = field(None,
        "Regularizer, initializer, activation and batch norm, with the override below.")
    override_base_feature_extractor_hyperparams: bool = field(False,
        "Apply conv_hyperparams to the backbone, in place of its own defaults.",
        note="of a backbone of timm's only the penalty on kernels, with or without it", note_when=of_type("timm/"))
    use_explicit_padding: bool = field(False,
        "Pad inputs symmetrically by kernel size, then convolve VALID, instead of SAME padding.")

    rules = (
        TYPE,
        PRETRAINED,
        default_only("use_explicit_padding", when=of_type("resnet|timm/")),
    )

class LevelCandidates(Message):
    """Which scores of each level take part in suppression; unset fields are as in the model's preset (an extension)."""

    per_level: int = number(1000, "[1, 1000000]", "Most pairs of anchor and class of a level.")
    score_threshold: float = number(0.05, "[0, 1)", "Only scores above it.")
    any_score_below_cells: int = number(0, "[0, 1000000]",
        "Levels with fewer cells than this take every score (SRN: 120).")
    any_score_coarsest: int = number(0, "[0, 16]", "So many of the coarsest levels take every score (AlignDet: 1).")
