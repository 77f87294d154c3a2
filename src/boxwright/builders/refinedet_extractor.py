"""`SsdFeatureExtractor` for a RefineDet: maps of strides 8, 16, 32, and coarser ones."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from boxwright.builders.feature_extractor import ExtractionRequest, FeatureExtractor
from boxwright.builders.hyperparams import caffe_xavier
from boxwright.config import messages as m
from boxwright.config.interpret import nearest
from boxwright.errors import ConfigError
from boxwright.models.backbones.backbone import Backbone
from boxwright.models.backbones.mobilenet_v2 import MobileNetV2
from boxwright.models.backbones.resnet_v1 import RESNET_BLOCKS, ResNetV1
from boxwright.models.backbones.timm_backbone import TimmBackbone
from boxwright.models.backbones.vgg16 import REFINEDET_VGG, Vgg16
from boxwright.models.batch_norm import BatchNormSettings
from boxwright.models.layers import ConvSettings, KernelRule, Regularizer
from boxwright.models.necks.multi_resolution import MultiResolutionFeatureMaps
from boxwright.models.necks.residual_level import ResidualLevel
from boxwright.models.necks.vgg_extras import ExtraMap, VggExtras
from boxwright.preprocessing.preprocessor import CAFFE_MEAN, MINUS_ONE_TO_ONE, PixelScaling

__all__ = ["build_refinedet_extractor"]

FINEST_LEVEL = 3
_DECAY = Regularizer(l2=5e-4)
_VGG = ConvSettings(kernel=KernelRule(caffe_xavier, _DECAY), norm=None, activation="RELU")
_RESNET = ConvSettings(
    kernel=KernelRule(lambda kernel: nn.init.normal_(kernel, 0.0, 0.01), _DECAY),
    norm=BatchNormSettings(decay=0.999, epsilon=1e-5),
    activation="RELU",
)
_KERAS = ConvSettings(norm=BatchNormSettings(decay=0.999))
_EXTRA = (256, 512)


def build_refinedet_extractor(
    config: m.SsdFeatureExtractor, levels: int, *, frozen_norm: bool, image_channels: int
) -> FeatureExtractor:
    """Build a feature extractor.

    Args:
        config: The message.
        levels: How many maps, of strides 8, 16, 32, 64 and so on.
        frozen_norm: Whether batch normalization keeps its stored statistics in training.
        image_channels: Channels of the image: 3, or 1 where the resizer makes it grey.

    Returns:
        The backbone and neck.

    Raises:
        ConfigError: For an unknown type, or a number of levels that it has not.
    """
    name = "timm" if config.type.startswith("timm/") else config.type
    if name not in _EXTRACTORS:
        known = [*_EXTRACTORS][:-1]
        hint = nearest(name, known)
        raise ConfigError(
            f"feature_extractor.type {config.type!r} is none of a RefineDet{hint if 'mean' in hint else ''}; "
            f"known: {', '.join(known)}, timm/NAME"
        )
    build, default, counts = _EXTRACTORS[name]
    if levels not in counts:
        raise ConfigError(
            f"feature_extractor.type {config.type} has {' or '.join(map(str, counts))} maps, of stride 8 and up; "
            f"the anchors are for {levels}"
        )
    request = ExtractionRequest(config, default, frozen_norm, image_channels)
    # How many maps there are follows from the anchors; they are no pyramid, and sides are checked, not padded.
    request.refuse("num_layers", "fpn", "bifpn", "pad_to_multiple")
    return build(request, levels)


def _vgg16(request: ExtractionRequest, levels: int) -> FeatureExtractor:
    request.refuse("depth_multiplier", "min_depth", "use_explicit_padding", "use_depthwise")
    request.refuse_normalization()
    backbone = Vgg16(request.backbone_settings(), REFINEDET_VGG, in_channels=request.image_channels)
    extras = [ExtraMap(*_EXTRA)] * (levels - len(backbone.channels))
    neck = VggExtras(backbone.channels, extras, request.settings_beside(request.default))
    return FeatureExtractor(backbone, neck, neck.channels, CAFFE_MEAN)


def _resnet101(request: ExtractionRequest, levels: int) -> FeatureExtractor:
    request.refuse("depth_multiplier", "min_depth", "use_explicit_padding", "use_depthwise")
    settings = request.backbone_settings()
    backbone = ResNetV1(RESNET_BLOCKS[101], settings, in_channels=request.image_channels)
    neck = ResidualLevel(backbone.channels, 128, 512, request.settings_beside(settings))
    return FeatureExtractor(backbone, neck, neck.channels, CAFFE_MEAN)


def _mobilenet_v2(request: ExtractionRequest, levels: int) -> FeatureExtractor:
    backbone = MobileNetV2(
        request.backbone_settings(),
        taps=["5", "12", "17"],
        depth_multiplier=request.config.depth_multiplier,
        min_depth=request.config.min_depth,
        padding=request.padding,
        in_channels=request.image_channels,
    )
    return _with_extra_levels(request, backbone, backbone.channels, levels, MINUS_ONE_TO_ONE)


def _timm(request: ExtractionRequest, levels: int) -> FeatureExtractor:
    request.refuse("depth_multiplier", "use_explicit_padding", "override_base_feature_extractor_hyperparams")
    if request.image_channels != 3:
        raise ConfigError(f"{request.config.type} takes images in colour; remove convert_to_grayscale")
    name = request.config.type.removeprefix("timm/")
    backbone = TimmBackbone(name, strides=(8, 16, 32), frozen_norm=request.frozen_norm)
    scaling = PixelScaling.standardize(backbone.mean, backbone.deviation)
    return _with_extra_levels(request, backbone, backbone.channels, levels, scaling)


def _with_extra_levels(
    request: ExtractionRequest, backbone: Backbone, channels: tuple[int, ...], levels: int, scaling: PixelScaling
) -> FeatureExtractor:
    widths = [request.depth(width) for width in _EXTRA] * (levels - len(channels))
    neck = MultiResolutionFeatureMaps(
        channels, widths, request.neck_settings(), use_depthwise=request.config.use_depthwise, padding=request.padding
    )
    return FeatureExtractor(backbone, neck, neck.channels, scaling)


_Build = Callable[[ExtractionRequest, int], FeatureExtractor]
# The builder, the backbone's own convolutions, and how many maps there can be.
_EXTRACTORS: dict[str, tuple[_Build, ConvSettings, tuple[int, ...]]] = {
    "refinedet_vgg16": (_vgg16, _VGG, (3, 4, 5)),
    "refinedet_resnet101": (_resnet101, _RESNET, (4,)),
    "refinedet_mobilenet_v2": (_mobilenet_v2, _KERAS, (3, 4, 5)),
    "timm": (_timm, _KERAS, (3, 4, 5)),
}
