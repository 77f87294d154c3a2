"""`SsdFeatureExtractor`: backbones by TF's names, and necks between them and the heads.

TF1's types have TF-Slim's networks, TF2's have Keras's; they differ in more than names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from boxwright.config import messages as m
from boxwright.config.messages.ssd_feature_extractor import TF1_EXTRACTORS, SsdFeatureExtractor, extractor_version
from boxwright.config.support import refuse_contradictions
from boxwright.families.shared.backbones import BackboneRequest, BuiltBackbone, build_backbone
from boxwright.families.shared.hyperparams import CONV_SETTINGS, variance_scaling
from boxwright.nn.backbones.efficientnet import EFFICIENTNETS
from boxwright.nn.backbones.mobiledet import MOBILEDETS
from boxwright.nn.backbones.mobilenet_v2 import divisible
from boxwright.nn.backbones.resnet_v1 import RESNET_BLOCKS
from boxwright.nn.batch_norm import BatchNormSettings
from boxwright.nn.layers import ConvSettings, KernelRule
from boxwright.nn.necks.bifpn import COMBINERS, BiFpn
from boxwright.nn.necks.fpn import FeaturePyramid, HandDown, smoothed, unsmoothed
from boxwright.nn.necks.mnasfpn import MnasFpn
from boxwright.nn.necks.multi_resolution import (
    SSD300_EXTRAS,
    SSD512_EXTRAS,
    MultiResolutionFeatureMaps,
    PoolingPyramid,
    VggExtras,
)
from boxwright.nn.regularization import Regularizer

COARSEST_OF_BACKBONE = 5
Pyramid = m.FeaturePyramidNetworks | m.BidirectionalFeaturePyramidNetworks


@dataclass(frozen=True)
class BuiltNeck:
    """A neck and its output channels."""

    module: nn.Module
    channels: tuple[int, ...]


def pyramid_levels(pyramid: Pyramid) -> list[int]:
    """Return the levels of a pyramid that are the backbone's own."""
    return list(range(pyramid.min_level, min(pyramid.max_level, COARSEST_OF_BACKBONE) + 1))


def _extra_levels(pyramid: Pyramid) -> int:
    return pyramid.max_level - min(pyramid.max_level, COARSEST_OF_BACKBONE)


def build_fpn(
    pyramid: m.FeaturePyramidNetworks,
    channels: tuple[int, ...],
    request: BackboneRequest,
    *,
    use_depthwise: bool,
    hand_down: HandDown = smoothed,
) -> BuiltNeck:
    """Return a feature pyramid over a backbone's maps of so many channels."""
    neck = FeaturePyramid(
        channels,
        request.depth(pyramid.additional_layer_depth),
        request.neck_settings(),
        extra_levels=_extra_levels(pyramid),
        use_depthwise=use_depthwise,
        padding=request.padding,
        hand_down=hand_down,
    )
    return BuiltNeck(neck, neck.channels)


def build_bifpn(
    pyramid: m.BidirectionalFeaturePyramidNetworks, channels: tuple[int, ...], request: BackboneRequest
) -> BuiltNeck:
    """Return a bidirectional pyramid over a backbone's maps of so many channels."""
    neck = BiFpn(
        channels,
        max(pyramid.num_filters, request.config.min_depth),
        request.neck_settings(),
        extra_levels=_extra_levels(pyramid),
        iterations=pyramid.num_iterations,
        combiner=COMBINERS[pyramid.combine_method],
        padding=request.padding,
    )
    return BuiltNeck(neck, neck.channels)


def build_extra_maps(
    widths: tuple[int, ...], channels: tuple[int, ...], request: BackboneRequest, kernels: tuple[int, ...] = ()
) -> BuiltNeck:
    """Return smaller maps appended to a backbone's; `widths` are the channels between and after two convolutions.

    Strided convolutions have kernels of side 3 unless `kernels` gives another.
    """
    neck = MultiResolutionFeatureMaps(
        channels,
        [request.depth(width) for width in widths],
        request.neck_settings(),
        kernels=kernels,
        use_depthwise=request.use_depthwise,
        padding=request.padding,
    )
    return BuiltNeck(neck, neck.channels)


def build_pooling_pyramid(depth: int, channels: tuple[int, ...], request: BackboneRequest, levels: int) -> BuiltNeck:
    """Return a pooling pyramid over a backbone's single map; a depth of 0 keeps its channels."""
    neck = PoolingPyramid(channels[-1], depth, request.neck_settings(), levels=levels)
    return BuiltNeck(neck, neck.channels)


_KERAS = ConvSettings(norm=BatchNormSettings(decay=0.999))
_SLIM_NORM = BatchNormSettings(decay=0.9997, epsilon=0.001)
_SLIM_KERNEL = KernelRule(lambda kernel: nn.init.trunc_normal_(kernel, 0.0, 0.09, -0.18, 0.18), Regularizer(l2=4e-5))
_SLIM = ConvSettings(kernel=_SLIM_KERNEL, depthwise=_SLIM_KERNEL, norm=_SLIM_NORM)
_SLIM_FREE_DEPTHWISE = replace(_SLIM, depthwise=replace(_SLIM_KERNEL, regularizer=Regularizer()))
_RESNET_NORM = BatchNormSettings(decay=0.997, epsilon=1e-5)
_RESNET = ConvSettings(
    kernel=KernelRule(variance_scaling(1.0, "FAN_IN"), Regularizer(l2=2e-4)), norm=_RESNET_NORM, activation="RELU"
)
_SLIM_RESNET = ConvSettings(
    kernel=KernelRule(variance_scaling(2.0, "FAN_IN"), Regularizer(l2=1e-4)), norm=_RESNET_NORM, activation="RELU"
)
# TF intends to penalize depthwise kernels too, but passes the penalty by a name that Keras ignores.
_EFFICIENTNET = ConvSettings(
    kernel=KernelRule(variance_scaling(2.0, "FAN_OUT"), Regularizer(l2=1e-5), Regularizer(l2=1e-5)),
    depthwise=KernelRule(variance_scaling(2.0, "FAN_OUT")),
    norm=BatchNormSettings(decay=0.99, epsilon=1e-3),
    activation="SWISH",
)
_VGG = ConvSettings(kernel=KernelRule(regularizer=Regularizer(l2=5e-4)), norm=None, activation="RELU")
# MnasFPN's MobileNetV2 has another initialization and normalization.
_MNAS_BASE = ConvSettings(
    kernel=KernelRule(lambda kernel: nn.init.kaiming_normal_(kernel, nonlinearity="relu"), Regularizer(l2=4e-5)),
    depthwise=KernelRule(lambda kernel: nn.init.trunc_normal_(kernel, 0.0, 0.536, -1.072, 1.072), Regularizer(l2=4e-5)),
    norm=BatchNormSettings(decay=0.99, epsilon=0.01),
)
# Channels of each extra map; half as many between its two convolutions.
_EXTRA_DEPTHS = (512, 256, 256, 128)


@dataclass(frozen=True)
class FeatureExtractor:
    """A backbone with its neck."""

    backbone: BuiltBackbone
    neck: BuiltNeck


def build_feature_extractor(config: SsdFeatureExtractor, *, image_channels: int = 3) -> FeatureExtractor:
    """Build a feature extractor."""
    refuse_contradictions(config)
    name = config.type.split("/")[0]
    version = extractor_version(config)
    # Types that both versions have, with TF2's semantics.
    table = SSD_EXTRACTORS if version == 1 or name not in TF1_EXTRACTORS else _TF1_TYPES_AS_TF2
    extractor = table[name]
    request = BackboneRequest(config, extractor.default, image_channels, CONV_SETTINGS[version], extractor.overridden)
    return extractor.build(request)


def _message(request: BackboneRequest) -> SsdFeatureExtractor:
    if not isinstance(request.config, SsdFeatureExtractor):
        raise TypeError("expected an SsdFeatureExtractor")
    return request.config


def _with_extra_maps(
    name: str,
    levels: tuple[int, ...] = (4, 5),
    depths: tuple[int, ...] = _EXTRA_DEPTHS,
    kernels: tuple[int, ...] = (),
) -> _Build:
    """Return a builder of a backbone with extra maps; `depths` are their channels, `kernels` sides other than 3."""

    def build(request: BackboneRequest) -> FeatureExtractor:
        config = _message(request)
        backbone = build_backbone(name or config.type, levels, request)
        channels = backbone.module.channels
        extra = min(config.num_layers - len(channels), len(depths))
        widths = tuple(width for depth in depths[:extra] for width in (depth // 2, depth))
        return FeatureExtractor(backbone, build_extra_maps(widths, channels, request, kernels))

    return build


def _embedded(request: BackboneRequest) -> FeatureExtractor:
    return _with_extra_maps("mobilenet_v1", depths=(512, 256, 256), kernels=(3, 3, 2))(request)


def _with_fpn(name: str, narrow: str = "") -> _Build:
    """Return a builder of a backbone with a pyramid; `narrow` is FPNLite's backbone, if it differs."""

    def build(request: BackboneRequest) -> FeatureExtractor:
        config = _message(request)
        fpn = config.fpn or m.FeaturePyramidNetworks()
        chosen = narrow if narrow and config.use_depthwise else name or config.type
        backbone = build_backbone(chosen, pyramid_levels(fpn), request)
        neck = build_fpn(fpn, backbone.module.channels, request, use_depthwise=config.use_depthwise)
        return FeatureExtractor(backbone, neck)

    return build


def _with_slim_fpn(name: str, narrow: str = "") -> _Build:
    """Return a builder of a TF-Slim backbone with a pyramid that passes down sums; FPNLite only with `narrow`."""

    def build(request: BackboneRequest) -> FeatureExtractor:
        config = _message(request)
        fpn = config.fpn or m.FeaturePyramidNetworks()
        lite = bool(narrow) and config.use_depthwise
        backbone = build_backbone(narrow if lite else name, pyramid_levels(fpn), request)
        neck = build_fpn(fpn, backbone.module.channels, request, use_depthwise=lite, hand_down=unsmoothed)
        return FeatureExtractor(backbone, neck)

    return build


def _with_pooling_pyramid(name: str, depth: int) -> _Build:
    def build(request: BackboneRequest) -> FeatureExtractor:
        backbone = build_backbone(name, (4,), request)
        neck = build_pooling_pyramid(depth, backbone.module.channels, request, _message(request).num_layers)
        return FeatureExtractor(backbone, neck)

    return build


def _mnasfpn(request: BackboneRequest) -> FeatureExtractor:
    config = _message(request)
    pyramid = config.fpn or m.FeaturePyramidNetworks(min_level=3, max_level=6, additional_layer_depth=48)

    def scaled(channels: int) -> int:
        return divisible(channels * config.depth_multiplier, config.min_depth)

    # TF's ignores the hyperparameters.
    plain = config.replaced(override_base_feature_extractor_hyperparams=False)
    backbone = build_backbone("mobilenet_v2_blocks", (3, 4, 5), replace(request, config=plain))
    neck = MnasFpn(backbone.module.channels, scaled(pyramid.additional_layer_depth), scaled)
    return FeatureExtractor(backbone, BuiltNeck(neck, neck.channels))


def _spaghettinet(request: BackboneRequest) -> FeatureExtractor:
    """Return the backbone, which has its own pyramid."""
    backbone = build_backbone("spaghettinet", (), request)
    return FeatureExtractor(backbone, BuiltNeck(nn.Identity(), backbone.module.channels))


def _with_bifpn(name: str) -> _Build:
    def build(request: BackboneRequest) -> FeatureExtractor:
        config = _message(request)
        bifpn = config.bifpn or m.BidirectionalFeaturePyramidNetworks()
        backbone = build_backbone(name or config.type, pyramid_levels(bifpn), request)
        return FeatureExtractor(backbone, build_bifpn(bifpn, backbone.module.channels, request))

    return build


def _vgg16(request: BackboneRequest) -> FeatureExtractor:
    extras = {6: SSD300_EXTRAS, 7: SSD512_EXTRAS}
    config = _message(request)
    count = config.num_layers
    backbone = build_backbone("vgg16_ssd", (3, 4), request)
    settings = request.default if request.config.conv_hyperparams is None else request.neck_settings()
    neck = VggExtras(backbone.module.channels, extras[count], settings)
    return FeatureExtractor(backbone, BuiltNeck(neck, neck.channels))


def _timm(request: BackboneRequest) -> FeatureExtractor:
    config = _message(request)
    if config.bifpn is not None:
        return _with_bifpn("")(request)
    return (_with_extra_maps("") if config.fpn is None else _with_fpn(""))(request)


def _keeping_activation(settings: ConvSettings, own: ConvSettings) -> ConvSettings:
    """Return the configuration's convolutions with the default activation and a learned gain and bias (MobileNetV2)."""
    norm = settings.norm
    norm = replace(norm, center=True, scale=True) if isinstance(norm, BatchNormSettings) else own.norm
    return replace(settings, activation=own.activation, norm=norm)


def _keeping_norm(settings: ConvSettings, own: ConvSettings) -> ConvSettings:
    """Return the configuration's convolutions with the default decay and epsilon, as in TF-Slim's ResNets."""
    return replace(settings, norm=settings.norm and own.norm)


def _keeping_all(settings: ConvSettings, own: ConvSettings) -> ConvSettings:
    """Return the default convolutions: TF passes the flag on in the place of the number of layers, without effect."""
    del settings
    return own


def _always_normalized(settings: ConvSettings, own: ConvSettings) -> ConvSettings:
    """Return the configuration's convolutions, always normalized, as in TF-Slim's MobileNetV1."""
    return replace(settings, norm=settings.norm or own.norm)


_Build = Callable[[BackboneRequest], FeatureExtractor]


@dataclass(frozen=True)
class Extractor:
    """A type of extractor.

    Attributes:
        default: The backbone's default convolutions.
        overridden: As in `BackboneRequest`, for `override_base_feature_extractor_hyperparams`.
    """

    build: _Build
    default: ConvSettings
    overridden: Callable[[ConvSettings, ConvSettings], ConvSettings] = lambda settings, _: settings


# Type → its builder. `SsdFeatureExtractor.type` declares the same names.
SSD_EXTRACTORS: dict[str, Extractor] = {
    "ssd_mobilenet_v1": Extractor(_with_extra_maps("mobilenet_v1"), _SLIM, _always_normalized),
    "ssd_mobilenet_v1_fpn": Extractor(
        _with_slim_fpn("mobilenet_v1", narrow="mobilenet_v1_narrow"), _SLIM, _always_normalized
    ),
    "ssd_mobilenet_v1_ppn": Extractor(_with_pooling_pyramid("mobilenet_v1", 0), _SLIM, _always_normalized),
    "embedded_ssd_mobilenet_v1": Extractor(_embedded, _SLIM_FREE_DEPTHWISE, _always_normalized),
    "ssd_mobilenet_v2": Extractor(_with_extra_maps("mobilenet_v2_expanded"), _SLIM_FREE_DEPTHWISE, _keeping_activation),
    "ssd_mobilenet_v2_fpn": Extractor(
        _with_slim_fpn("mobilenet_v2", narrow="mobilenet_v2_narrow"), _SLIM_FREE_DEPTHWISE, _keeping_activation
    ),
    "ssd_mobilenet_v2_mnasfpn": Extractor(_mnasfpn, _MNAS_BASE),
    **{
        f"ssd_{name}": Extractor(_with_extra_maps(name), _SLIM_FREE_DEPTHWISE, _keeping_activation)
        for name in ("mobilenet_v3_large", "mobilenet_v3_small", "mobilenet_edgetpu")
    },
    **{
        f"ssd_mobiledet_{hardware}": Extractor(_with_extra_maps(f"mobiledet_{hardware}"), _SLIM)
        for hardware in MOBILEDETS
    },
    "ssd_pnasnet": Extractor(_with_extra_maps("pnasnet"), _SLIM),
    "ssd_spaghettinet": Extractor(_spaghettinet, _SLIM),
    "ssd_inception_v2": Extractor(_with_extra_maps("inception_v2"), _SLIM),
    "ssd_inception_v3": Extractor(_with_extra_maps("inception_v3", (3, 4, 5), (512, 256, 128)), _SLIM),
    **{
        f"ssd_resnet{depth}_v1_fpn": Extractor(_with_slim_fpn(f"resnet{depth}_v1_slim"), _SLIM_RESNET, _keeping_norm)
        for depth in RESNET_BLOCKS
    },
    **{
        f"ssd_resnet{depth}_v1_ppn": Extractor(
            _with_pooling_pyramid(f"resnet{depth}_v1_slim", 1024), _SLIM_RESNET, _keeping_all
        )
        for depth in RESNET_BLOCKS
    },
    "ssd_mobilenet_v1_keras": Extractor(_with_extra_maps("mobilenet_v1"), _KERAS),
    "ssd_mobilenet_v1_fpn_keras": Extractor(_with_fpn("mobilenet_v1", narrow="mobilenet_v1_narrow"), _KERAS),
    "ssd_mobilenet_v2_keras": Extractor(_with_extra_maps("mobilenet_v2_expanded"), _KERAS),
    "ssd_mobilenet_v2_fpn_keras": Extractor(_with_fpn("mobilenet_v2"), _KERAS),
    **{
        f"ssd_resnet{depth}_v1_fpn_keras": Extractor(_with_fpn(f"resnet{depth}_v1"), _RESNET) for depth in RESNET_BLOCKS
    },
    **{
        f"ssd_efficientnet-{name}_bifpn_keras": Extractor(_with_bifpn(f"efficientnet-{name}"), _EFFICIENTNET)
        for name in EFFICIENTNETS
    },
    "ssd_vgg16": Extractor(_vgg16, _VGG),
    "timm": Extractor(_timm, _KERAS),
}
_TF1_TYPES_AS_TF2: dict[str, Extractor] = {
    "ssd_mobilenet_v1": Extractor(_with_extra_maps("mobilenet_v1"), _SLIM),
    "ssd_mobilenet_v1_fpn": Extractor(_with_fpn("mobilenet_v1", narrow="mobilenet_v1_narrow"), _SLIM),
    "ssd_mobilenet_v2": Extractor(_with_extra_maps("mobilenet_v2_expanded"), _SLIM),
    "ssd_mobilenet_v2_fpn": Extractor(_with_fpn("mobilenet_v2"), _SLIM),
    **{f"ssd_resnet{depth}_v1_fpn": Extractor(_with_fpn(f"resnet{depth}_v1"), _SLIM_RESNET) for depth in RESNET_BLOCKS},
}
