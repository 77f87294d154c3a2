"""What SRN and AlignDet share: a backbone, and which of each level's scores take part (extensions of Boxwright)."""

from typing import ClassVar

from boxwright.config.field import Field, Values
from boxwright.config.message import Bool, Enum, Float, Int32, Message, String
from boxwright.config.messages.hyperparams import Hyperparams


class AlignmentBorder(Enum):
    """What a tap of RoIConv reads beyond the outermost cells of a map."""

    LAST_CELL = 0
    ZERO = 1


class ClassifierBackbone(Message):
    """The feature maps of an image classifier (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "ClassifierBackbone"

    type: String = Field(
        "",
        values=Values(("mobilenet_v2", "resnet50_v1", "resnet101_v1", "resnet152_v1"), prefix="timm/"),
        description="timm/NAME, or mobilenet_v2, resnet50_v1, resnet101_v1 or resnet152_v1 as Keras has them.",
    )
    pretrained: Bool = Field(
        False,
        description="Fetch the weights of timm/NAME when a run starts afresh, once, from Hugging Face's hub.",
    )
    depth_multiplier: Float = Field(1.0, gt=0, le=100, description="Factor on the channels of mobilenet_v2.")
    min_depth: Int32 = Field(16, ge=0, le=8192, description="Fewest channels a layer may have after that factor.")
    conv_hyperparams: Hyperparams | None = Field(
        None, description="Regularizer, initializer, activation and batch norm, with the override below."
    )
    override_base_feature_extractor_hyperparams: Bool = Field(
        False, description="Apply conv_hyperparams to the backbone, in place of its own defaults."
    )
    use_explicit_padding: Bool = Field(
        False, description="Pad inputs symmetrically by kernel size, then convolve VALID, instead of SAME padding."
    )


class LevelCandidates(Message):
    """Which scores of each level take part in suppression; what is left out is as in the model's preset (an extension)."""

    proto_name: ClassVar[str] = "LevelCandidates"

    per_level: Int32 = Field(1000, ge=1, le=1000000, description="Most pairs of anchor and class of a level.")
    score_threshold: Float = Field(0.05, ge=0, lt=1, description="Only scores above it.")
    any_score_below_cells: Int32 = Field(
        0, ge=0, le=1000000, description="Levels with fewer cells than this take every score (SRN: 120)."
    )
    any_score_coarsest: Int32 = Field(
        0, ge=0, le=16, description="So many of the coarsest levels take every score (AlignDet: 1)."
    )
