"""`SsdFeatureExtractor`: backbones and necks, by TF's names.

A TF1 name (`ssd_mobilenet_v2`) and its TF2 name (`…_keras`) are the same network; where the
configuration leaves the backbone's own convolutions alone, the first gets TF-Slim's penalty,
initializer and normalization, the second Keras's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from boxwright.builders.hyperparams import build_backbone_settings, build_conv_settings
from boxwright.config import messages as m
from boxwright.config.interpret import nearest
from boxwright.errors import ConfigError
from boxwright.models.backbones.mobilenet_v1 import MobileNetV1
from boxwright.models.backbones.mobilenet_v2 import MobileNetV2
from boxwright.models.backbones.timm_backbone import TimmBackbone
from boxwright.models.layers import BatchNormSettings, ConvSettings, KernelRule, Padding, Regularizer
from boxwright.models.necks.fpn import FeaturePyramid
from boxwright.models.necks.multi_resolution import MultiResolutionFeatureMaps

__all__ = ["FeatureExtractor", "build_feature_extractor"]

_KERAS = ConvSettings(norm=BatchNormSettings(decay=0.999))
_SLIM_KERNEL = KernelRule(lambda kernel: nn.init.trunc_normal_(kernel, 0.0, 0.09, -0.18, 0.18), Regularizer(l2=4e-5))
_SLIM = ConvSettings(kernel=_SLIM_KERNEL, depthwise=_SLIM_KERNEL, norm=BatchNormSettings(decay=0.9997, epsilon=0.001))
_EXTRA_DEPTHS = (512, 256, 256, 128)


@dataclass(frozen=True)
class FeatureExtractor:
    """A backbone with its neck.

    Attributes:
        backbone: Images to feature maps.
        neck: Those to the maps that are predicted from.
        channels: Channels of each of the latter.
    """

    backbone: nn.Module
    neck: nn.Module
    channels: tuple[int, ...]


def build_feature_extractor(config: m.SsdFeatureExtractor, *, frozen_norm: bool = False) -> FeatureExtractor:
    """Build a feature extractor.

    Args:
        config: The message.
        frozen_norm: Whether batch normalization keeps its stored statistics in training.

    Returns:
        The backbone and neck.

    Raises:
        ConfigError: For an unknown type.
    """
    if config.type.startswith("timm/"):
        return _timm(config, frozen_norm)
    if config.type not in _EXTRACTORS:
        hint = nearest(config.type, _EXTRACTORS)
        raise ConfigError(
            f"feature_extractor.type {config.type!r} is not there yet{hint if 'mean' in hint else ''}; "
            f"known: {', '.join(_EXTRACTORS)}, timm/NAME"
        )
    build, default = _EXTRACTORS[config.type]
    return build(config, default, frozen_norm)


def _padding(config: m.SsdFeatureExtractor) -> Padding:
    return "explicit" if config.use_explicit_padding else "same"


def _depth(config: m.SsdFeatureExtractor, channels: int) -> int:
    return max(int(channels * config.depth_multiplier), config.min_depth)


def _neck_settings(config: m.SsdFeatureExtractor, frozen_norm: bool) -> ConvSettings:
    return build_conv_settings(config.conv_hyperparams or m.Hyperparams(), frozen_norm=frozen_norm)


def _backbone_settings(config: m.SsdFeatureExtractor, default: ConvSettings, frozen_norm: bool) -> ConvSettings:
    return build_backbone_settings(
        config.conv_hyperparams or m.Hyperparams(),
        default,
        override=config.override_base_feature_extractor_hyperparams,
        frozen_norm=frozen_norm,
    )


def _multi_resolution(
    config: m.SsdFeatureExtractor, channels: tuple[int, ...], frozen_norm: bool
) -> MultiResolutionFeatureMaps:
    extra = config.num_layers - len(channels)
    if not 0 <= extra <= len(_EXTRA_DEPTHS):
        raise ConfigError(f"feature_extractor.num_layers: expected 2 to 6, found {config.num_layers}")
    widths = [width for depth in _EXTRA_DEPTHS[:extra] for width in (_depth(config, depth // 2), _depth(config, depth))]
    settings = _neck_settings(config, frozen_norm)
    return MultiResolutionFeatureMaps(
        channels, widths, settings, use_depthwise=config.use_depthwise, padding=_padding(config)
    )


def _pyramid(config: m.SsdFeatureExtractor, channels: tuple[int, ...], frozen_norm: bool) -> FeaturePyramid:
    fpn = config.fpn or m.FeaturePyramidNetworks()
    return FeaturePyramid(
        channels,
        _depth(config, fpn.additional_layer_depth),
        _neck_settings(config, frozen_norm),
        extra_levels=fpn.max_level - min(fpn.max_level, 5),
        use_depthwise=config.use_depthwise,
        padding=_padding(config),
    )


def _levels(config: m.SsdFeatureExtractor) -> range:
    """List the pyramid levels that come from the backbone itself."""
    fpn = config.fpn or m.FeaturePyramidNetworks()
    if not 2 <= fpn.min_level <= min(fpn.max_level, 5):
        raise ConfigError(
            f"feature_extractor.fpn: expected 2 <= min_level <= max_level, and min_level <= 5, "
            f"found {fpn.min_level} and {fpn.max_level}"
        )
    return range(fpn.min_level, min(fpn.max_level, 5) + 1)


def _mobilenet_v1(config: m.SsdFeatureExtractor, default: ConvSettings, frozen_norm: bool) -> FeatureExtractor:
    backbone = MobileNetV1(
        _backbone_settings(config, default, frozen_norm),
        depth_multiplier=config.depth_multiplier,
        min_depth=config.min_depth,
        padding=_padding(config),
    )
    neck = _multi_resolution(config, backbone.channels, frozen_norm)
    return FeatureExtractor(backbone, neck, neck.channels)


def _mobilenet_v2(config: m.SsdFeatureExtractor, default: ConvSettings, frozen_norm: bool) -> FeatureExtractor:
    backbone = MobileNetV2(
        _backbone_settings(config, default, frozen_norm),
        depth_multiplier=config.depth_multiplier,
        min_depth=config.min_depth,
        padding=_padding(config),
    )
    neck = _multi_resolution(config, backbone.channels, frozen_norm)
    return FeatureExtractor(backbone, neck, neck.channels)


def _mobilenet_v2_fpn(config: m.SsdFeatureExtractor, default: ConvSettings, frozen_norm: bool) -> FeatureExtractor:
    taps = {2: "2", 3: "5", 4: "12", 5: "17"}
    backbone = MobileNetV2(
        _backbone_settings(config, default, frozen_norm),
        taps=[taps[level] for level in _levels(config)],
        depth_multiplier=config.depth_multiplier,
        min_depth=config.min_depth,
        padding=_padding(config),
    )
    neck = _pyramid(config, backbone.channels, frozen_norm)
    return FeatureExtractor(backbone, neck, neck.channels)


def _timm(config: m.SsdFeatureExtractor, frozen_norm: bool) -> FeatureExtractor:
    pyramid = config.fpn is not None
    strides = [2**level for level in _levels(config)] if pyramid else [16, 32]
    backbone = TimmBackbone(config.type.removeprefix("timm/"), strides=strides)
    channels = backbone.channels
    neck = _pyramid(config, channels, frozen_norm) if pyramid else _multi_resolution(config, channels, frozen_norm)
    return FeatureExtractor(backbone, neck, neck.channels)


_Build = Callable[[m.SsdFeatureExtractor, ConvSettings, bool], FeatureExtractor]
_EXTRACTORS: dict[str, tuple[_Build, ConvSettings]] = {
    "ssd_mobilenet_v1": (_mobilenet_v1, _SLIM),
    "ssd_mobilenet_v1_keras": (_mobilenet_v1, _KERAS),
    "ssd_mobilenet_v2": (_mobilenet_v2, _SLIM),
    "ssd_mobilenet_v2_keras": (_mobilenet_v2, _KERAS),
    "ssd_mobilenet_v2_fpn": (_mobilenet_v2_fpn, _SLIM),
    "ssd_mobilenet_v2_fpn_keras": (_mobilenet_v2_fpn, _KERAS),
}
