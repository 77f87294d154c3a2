"""`SsdFeatureExtractor`: backbones and necks, by TF's names.

A TF1 name (`ssd_mobilenet_v2`) and its TF2 name (`…_keras`) are the same network; where the
configuration leaves the backbone's own convolutions alone, the first gets TF-Slim's penalty,
initializer and normalization, the second Keras's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from boxwright.builders.backbones import BackboneRequest, BuiltBackbone, build_backbone
from boxwright.builders.hyperparams import variance_scaling
from boxwright.builders.necks import BuiltNeck, build_bifpn, build_extra_maps, build_fpn, pyramid_levels
from boxwright.config import messages as m
from boxwright.errors import ConfigError
from boxwright.models.backbones.efficientnet import EFFICIENTNETS
from boxwright.models.backbones.resnet_v1 import RESNET_BLOCKS
from boxwright.models.batch_norm import BatchNormSettings
from boxwright.models.layers import ConvSettings, KernelRule, Regularizer
from boxwright.models.necks.vgg_extras import SSD300_EXTRAS, SSD512_EXTRAS, VggExtras

__all__ = ["SSD_EXTRACTORS", "FeatureExtractor", "build_feature_extractor"]

_KERAS = ConvSettings(norm=BatchNormSettings(decay=0.999))
_SLIM_KERNEL = KernelRule(lambda kernel: nn.init.trunc_normal_(kernel, 0.0, 0.09, -0.18, 0.18), Regularizer(l2=4e-5))
_SLIM = ConvSettings(kernel=_SLIM_KERNEL, depthwise=_SLIM_KERNEL, norm=BatchNormSettings(decay=0.9997, epsilon=0.001))
_RESNET_NORM = BatchNormSettings(decay=0.997, epsilon=1e-5)
_RESNET = ConvSettings(
    kernel=KernelRule(variance_scaling(1.0, "FAN_IN"), Regularizer(l2=2e-4)), norm=_RESNET_NORM, activation="RELU"
)
_SLIM_RESNET = ConvSettings(
    kernel=KernelRule(variance_scaling(2.0, "FAN_IN"), Regularizer(l2=1e-4)), norm=_RESNET_NORM, activation="RELU"
)
# TF means to penalize depthwise kernels too, but passes the penalty under a name that Keras leaves unused.
_EFFICIENTNET = ConvSettings(
    kernel=KernelRule(variance_scaling(2.0, "FAN_OUT"), Regularizer(l2=1e-5), Regularizer(l2=1e-5)),
    depthwise=KernelRule(variance_scaling(2.0, "FAN_OUT")),
    norm=BatchNormSettings(decay=0.99, epsilon=1e-3),
    activation="SWISH",
)
_VGG = ConvSettings(kernel=KernelRule(regularizer=Regularizer(l2=5e-4)), norm=None, activation="RELU")
# Channels behind each extra map; half as many lie between its two convolutions.
_EXTRA_DEPTHS = (512, 256, 256, 128)


@dataclass(frozen=True)
class FeatureExtractor:
    """A backbone with its neck."""

    backbone: BuiltBackbone
    neck: BuiltNeck


def build_feature_extractor(config: m.SsdFeatureExtractor, *, image_channels: int = 3) -> FeatureExtractor:
    """Build a feature extractor.

    Args:
        config: The message.
        image_channels: Channels of the image: 3, or 1 where the resizer makes it grey.

    Returns:
        The backbone and neck.

    Raises:
        ConfigError: For settings that the type has not.
    """
    build, default = SSD_EXTRACTORS[config.type.split("/")[0]]
    _refuse_other_pyramid(config)
    return build(BackboneRequest(config, default, image_channels))


def _refuse_other_pyramid(config: m.SsdFeatureExtractor) -> None:
    """Refuse a pyramid of a kind that the type does not have."""
    if config.type.startswith("timm/"):
        return
    own = next((kind for kind in ("bifpn", "fpn") if f"_{kind}" in config.type), None)
    for kind in ("bifpn", "fpn"):
        if kind != own and getattr(config, kind) is not None:
            raise ConfigError(f"feature_extractor.{kind}: {config.type} has none; remove it, or use another type")


def _message(request: BackboneRequest) -> m.SsdFeatureExtractor:
    if not isinstance(request.config, m.SsdFeatureExtractor):
        raise TypeError("expected an SsdFeatureExtractor")
    return request.config


def _with_extra_maps(name: str) -> _Build:
    def build(request: BackboneRequest) -> FeatureExtractor:
        config = _message(request)
        backbone = build_backbone(name or config.type, (4, 5), request)
        channels = backbone.module.channels
        extra = config.num_layers - len(channels)
        if not 0 <= extra <= len(_EXTRA_DEPTHS):
            raise ConfigError(f"feature_extractor.num_layers: expected 2 to 6, found {config.num_layers}")
        widths = tuple(width for depth in _EXTRA_DEPTHS[:extra] for width in (depth // 2, depth))
        return FeatureExtractor(backbone, build_extra_maps(widths, channels, request))

    return build


def _with_fpn(name: str, narrow: str = "") -> _Build:
    """Build a backbone with a pyramid; FPNLite may have one of another name."""

    def build(request: BackboneRequest) -> FeatureExtractor:
        config = _message(request)
        fpn = config.fpn or m.FeaturePyramidNetworks()
        chosen = narrow if narrow and config.use_depthwise else name or config.type
        backbone = build_backbone(chosen, pyramid_levels(fpn, finest=2), request)
        return FeatureExtractor(backbone, build_fpn(fpn, backbone.module.channels, request))

    return build


def _with_bifpn(name: str) -> _Build:
    def build(request: BackboneRequest) -> FeatureExtractor:
        bifpn = _message(request).bifpn or m.BidirectionalFeaturePyramidNetworks()
        backbone = build_backbone(name, pyramid_levels(bifpn, finest=1), request)
        return FeatureExtractor(backbone, build_bifpn(bifpn, backbone.module.channels, request))

    return build


def _vgg16(request: BackboneRequest) -> FeatureExtractor:
    extras = {6: SSD300_EXTRAS, 7: SSD512_EXTRAS}
    count = _message(request).num_layers
    if count not in extras:
        raise ConfigError(
            f"feature_extractor.num_layers: ssd_vgg16 has 6 layers (for 300 px) or 7 (for 512 px), found {count}"
        )
    backbone = build_backbone("vgg16_ssd", (3, 4), request)
    settings = request.default if request.config.conv_hyperparams is None else request.neck_settings()
    neck = VggExtras(backbone.module.channels, extras[count], settings)
    return FeatureExtractor(backbone, BuiltNeck(neck, neck.channels))


def _timm(request: BackboneRequest) -> FeatureExtractor:
    return (_with_extra_maps("") if _message(request).fpn is None else _with_fpn(""))(request)


_Build = Callable[[BackboneRequest], FeatureExtractor]
# Type → what builds it, and the backbone's own convolutions. `SsdFeatureExtractor.type` declares the same names.
SSD_EXTRACTORS: dict[str, tuple[_Build, ConvSettings]] = {
    "ssd_mobilenet_v1": (_with_extra_maps("mobilenet_v1"), _SLIM),
    "ssd_mobilenet_v1_keras": (_with_extra_maps("mobilenet_v1"), _KERAS),
    "ssd_mobilenet_v1_fpn": (_with_fpn("mobilenet_v1", narrow="mobilenet_v1_narrow"), _SLIM),
    "ssd_mobilenet_v1_fpn_keras": (_with_fpn("mobilenet_v1", narrow="mobilenet_v1_narrow"), _KERAS),
    "ssd_mobilenet_v2": (_with_extra_maps("mobilenet_v2_expanded"), _SLIM),
    "ssd_mobilenet_v2_keras": (_with_extra_maps("mobilenet_v2_expanded"), _KERAS),
    "ssd_mobilenet_v2_fpn": (_with_fpn("mobilenet_v2"), _SLIM),
    "ssd_mobilenet_v2_fpn_keras": (_with_fpn("mobilenet_v2"), _KERAS),
    **{f"ssd_resnet{depth}_v1_fpn": (_with_fpn(f"resnet{depth}_v1"), _SLIM_RESNET) for depth in RESNET_BLOCKS},
    **{f"ssd_resnet{depth}_v1_fpn_keras": (_with_fpn(f"resnet{depth}_v1"), _RESNET) for depth in RESNET_BLOCKS},
    **{
        f"ssd_efficientnet-{name}_bifpn_keras": (_with_bifpn(f"efficientnet-{name}"), _EFFICIENTNET)
        for name in EFFICIENTNETS
    },
    "ssd_vgg16": (_vgg16, _VGG),
    "timm": (_timm, _KERAS),
}
