"""The feature extractor of one-stage detectors.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""



import re

from boxwright.config.field import AllowedValues, field, number
from boxwright.config.message import Message
from boxwright.config.messages.hyperparams import Hyperparams, normalizes
from boxwright.config.rules import PRETRAINED, TYPE, default_only, of_type, ordered, refuse


class FeaturePyramidNetworks(Message):
    """Feature pyramid (FPN) on top of the backbone; level n has a stride of 2^n px."""

    min_level: int = number(3, "[2, 5]", "Finest pyramid level, e.g. 3 for a stride of 8 px.")
    max_level: int = number(7, "[0, 16]", "Coarsest pyramid level, e.g. 7 for a stride of 128 px; not below min_level.")
    additional_layer_depth: int = number(256, "[1, 8192]", "Channels of every pyramid level.")

    rules = (ordered("min_level", "max_level"),)

class BidirectionalFeaturePyramidNetworks(Message):
    """Settings of a BiFPN, the repeated two-way feature pyramid of EfficientDet."""

    min_level: int = number(3, "[1, 5]", "Finest pyramid level; level L has stride 2^L pixels.")
    max_level: int = number(7, "[0, 16]", "Coarsest pyramid level; level L has stride 2^L pixels.")
    num_iterations: int = number(0, "[0, 64]", "How many times the top-down plus bottom-up block is stacked.")
    num_filters: int = number(0, "[0, 8192]", "Channels of every BiFPN feature map.")
    combine_method: str = field("fast_attention",
        "How a node merges its inputs: fast_attention, attention, weighted_sum or sum.",
        values=AllowedValues(('fast_attention', 'attention', 'weighted_sum', 'sum')),
        note="attention computes what sum does, as in TF, whose softmax runs over one element")
    use_native_resize_op: bool = field(False, "Upsample with TensorFlow's nearest resize op instead of the tiled "
        "reshape.", no_effect="the same pixels by another operation")

    rules = (
        ordered("min_level", "max_level"),
        refuse("num_iterations", "expected at least 1, found {num_iterations}", when=lambda c: c.num_iterations < 1),
    )


# Both versions of TensorFlow have these, by one name.
_BOTH_EXTRACTORS = (
    *(f"ssd_mobilenet_{version}{neck}" for version in ("v1", "v2") for neck in ("", "_fpn")),
    *(f"ssd_resnet{depth}_v1_fpn" for depth in (50, 101, 152)),
)

TF1_EXTRACTORS = (
    *_BOTH_EXTRACTORS,
    *(f"ssd_resnet{depth}_v1_ppn" for depth in (50, 101, 152)),
    "ssd_mobilenet_v1_ppn",
    "ssd_mobilenet_v2_mnasfpn",
    "ssd_mobilenet_v3_large",
    "ssd_mobilenet_v3_small",
    "ssd_mobilenet_edgetpu",
    *(f"ssd_mobiledet_{hardware}" for hardware in ("cpu", "dsp", "edgetpu", "gpu")),
    "ssd_inception_v2",
    "ssd_inception_v3",
    "ssd_pnasnet",
    "ssd_spaghettinet",
    "embedded_ssd_mobilenet_v1",
)

TF2_EXTRACTORS = (
    *(f"ssd_mobilenet_{version}{neck}_keras" for version in ("v1", "v2") for neck in ("", "_fpn")),
    *(f"ssd_resnet{depth}_v1_fpn_keras" for depth in (50, 101, 152)),
    *(f"ssd_efficientnet-b{number}_bifpn_keras" for number in range(8)),
)

SSD_EXTRACTORS = (*TF1_EXTRACTORS, *TF2_EXTRACTORS, "ssd_vgg16")

class SsdFeatureExtractor(Message, removed={
    "batch_norm_trainable": "TensorFlow removed it; remove the line, and set freeze_batchnorm in ssd to keep "
                            "stored statistics"}):
    """Backbone and extra layers that turn the image into SSD feature maps."""

    type: str = field("",
        "Registered extractor name, such as ssd_mobilenet_v2_keras, or timm/NAME.",
        values=AllowedValues(SSD_EXTRACTORS, prefix='timm/'))
    pretrained: bool = field(False,
        "Ours: fetch the weights of timm/NAME when a new run starts, once, from Hugging Face's hub.")
    depth_multiplier: float = number(1.0, "(0, 100]",
        "Factor on the channel count of the backbone layers (MobileNet-style width); 1 = full width.")
    min_depth: int = number(16, "[0, 8192]", "Fewest channels a layer may have after depth_multiplier is applied.")
    conv_hyperparams: Hyperparams | None = field(None,
        "Regularizer, initializer, activation and batch norm of the extractor's convolutions.")
    override_base_feature_extractor_hyperparams: bool = field(False,
        "Apply conv_hyperparams to the backbone too, in place of the backbone's own defaults.",
        note="of a backbone of timm's only the penalty on kernels", note_when=of_type("timm/"))
    pad_to_multiple: int = number(1, "[1, 4096]",
        "Zero-pad image height and width up to a multiple of this many pixels; 1 = no padding.")
    use_explicit_padding: bool = field(False,
        "Pad inputs symmetrically by kernel size, then convolve VALID, instead of SAME padding.")
    use_depthwise: bool = field(False, "Use depthwise separable convolutions in the layers added after the backbone.")
    fpn: FeaturePyramidNetworks | None = field(None,
        "Build a top-down feature pyramid (FPN extractors only); excludes bifpn.", oneof="feature_pyramid_oneof")
    bifpn: BidirectionalFeaturePyramidNetworks | None = field(None, "Build a bidirectional feature pyramid "
        "(EfficientDet-style BiFPN extractors only); excludes fpn.", oneof="feature_pyramid_oneof")
    replace_preprocessor_with_placeholder: bool = field(False, "Feed images that are already preprocessed, skipping "
        "the extractor's own normalization.", no_effect="of TF1's export only")
    tensorflow_version: int = number(0, "[0, 2]",
        "Ours: which TensorFlow's meaning a type has that both have, 1 or 2; 0 = the one that its name is of.")
    num_layers: int = number(6, "[1, 64]",
        "How many feature maps (SSD levels) to produce, on extractors that accept a count.")
    spaghettinet_arch_name: str = field("",
        "Which SpaghettiNet ssd_spaghettinet is: spaghettinet_edgetpu_s, _m or _l; none named is _m.",
        values=AllowedValues(("", *(f"spaghettinet_edgetpu_{size}" for size in "sml"))))
    use_hardswish: bool = field(False, "Use hard-swish in place of the default activation, on extractors that support "
        "the switch.", no_effect="TensorFlow's builder never reads it; conv_hyperparams.activation says which")

    rules = (
        TYPE,
        PRETRAINED,
        refuse("tensorflow_version", "{type} is not a type of TensorFlow {tensorflow_version}",
            when=lambda c: (c.tensorflow_version == 1 and c.type not in TF1_EXTRACTORS)
            or (c.tensorflow_version == 2 and c.type in TF1_EXTRACTORS and c.type not in _BOTH_EXTRACTORS)),
        # TF pads blocks of MobileNetV3 incorrectly; the others do not read it.
        default_only("use_explicit_padding", when=lambda c: of_type(
            "ssd_(mobilenet_v3|mobilenet_edgetpu|mobiledet|resnet|efficientnet|vgg16|mobilenet_v2_mnasfpn)")(c)
            or (c.type.startswith("timm/") and c.bifpn is None)),
        default_only("use_depthwise", when=lambda c: of_type("ssd_(efficientnet|vgg16|spaghettinet)")(c)
            or (of_type("ssd_resnet")(c) and extractor_version(c) == 2)),
        default_only("depth_multiplier", when=of_type("ssd_(efficientnet|vgg16|spaghettinet)")),
        default_only("num_layers", when=of_type("ssd_spaghettinet")),
        refuse("spaghettinet_arch_name", "{type} takes none, in TensorFlow either; it is for ssd_spaghettinet",
            when=lambda c: c.spaghettinet_arch_name and c.type != "ssd_spaghettinet"),
        default_only("override_base_feature_extractor_hyperparams", when=of_type("ssd_(efficientnet|spaghettinet)")),
        default_only("pad_to_multiple", when=of_type("embedded_ssd_mobilenet_v1|ssd_spaghettinet")),
        refuse("conv_hyperparams.batch_norm", "{type} is not normalized; remove it",
            when=lambda c: c.type == "ssd_vgg16" and normalizes(c.conv_hyperparams)),
        refuse("conv_hyperparams.group_norm",
            "TF1 normalizes the backbone by groups too, which is not supported; use batch_norm",
            when=lambda c: c.conv_hyperparams and c.conv_hyperparams.group_norm and _normalizes_backbone(c)),
        refuse("fpn", "{type} has none; remove it, or use another type",
            when=lambda c: c.fpn and c.type in SSD_EXTRACTORS and not re.search("(?<!bi)fpn", c.type)),
        refuse("bifpn", "{type} has none; remove it, or use another type",
            when=lambda c: c.bifpn and c.type in SSD_EXTRACTORS and "bifpn" not in c.type),
        refuse("fpn", "ssd_mobilenet_v2_mnasfpn has levels 3 to 6, found {fpn.min_level} to {fpn.max_level}",
            when=lambda c: c.type == "ssd_mobilenet_v2_mnasfpn" and c.fpn
            and (c.fpn.min_level, c.fpn.max_level) != (3, 6)),
        refuse("num_layers", "expected 2 to 6, found {num_layers}",
            when=lambda c: _adds_maps(c) and not 2 <= c.num_layers <= 6),
        refuse("num_layers", "ssd_inception_v3 has 3 maps of its own, found {num_layers}",
            when=lambda c: c.type == "ssd_inception_v3" and c.num_layers < 3),
        refuse("num_layers", "ssd_vgg16 has 6 layers (for 300 px) or 7 (for 512 px), found {num_layers}",
            when=lambda c: c.type == "ssd_vgg16" and c.num_layers not in (6, 7)),
    )


def extractor_version(extractor: SsdFeatureExtractor) -> int:
    """Return 1 or 2, from the message if set, else from its type's name."""
    return extractor.tensorflow_version or (1 if extractor.type in TF1_EXTRACTORS else 2)


def _adds_maps(extractor: SsdFeatureExtractor) -> bool:
    """Return whether coarser maps are added to the backbone's, as many as `num_layers` says."""
    if extractor.type.startswith("timm/"):
        return extractor.fpn is None and extractor.bifpn is None
    return extractor.type in SSD_EXTRACTORS and re.search("fpn|ppn|vgg16|spaghettinet", extractor.type) is None


def _normalizes_backbone(extractor: SsdFeatureExtractor) -> bool:
    """Return whether conv_hyperparams normalizes the backbone of TF1, too; some keep their own, or take none."""
    if extractor_version(extractor) == 2 or re.search("mnasfpn|mobiledet|spaghettinet", extractor.type):
        return False
    return extractor.override_base_feature_extractor_hyperparams or "inception" in extractor.type
