"""Backbones by name, up to the requested levels.

Used by every family's extractor. A level is a pyramid level: its map has a stride of 2 to that power.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypedDict

from boxwright.config import messages as m
from boxwright.config.messages.ssd_feature_extractor import SsdFeatureExtractor
from boxwright.families.shared.hyperparams import build_conv_settings
from boxwright.nn.backbones.cells import PNASNET, PNASNET_SETTINGS, CellNetwork, overridden_settings
from boxwright.nn.backbones.efficientnet import EFFICIENTNETS, EfficientNet
from boxwright.nn.backbones.inception import INCEPTION_V2, INCEPTION_V3, Inception, InceptionLayout
from boxwright.nn.backbones.mobiledet import MOBILEDETS, MobileDet
from boxwright.nn.backbones.mobilenet_v1 import MobileNetV1
from boxwright.nn.backbones.mobilenet_v2 import MobileNetV2
from boxwright.nn.backbones.mobilenet_v3 import (
    MOBILENET_EDGETPU,
    MOBILENET_V3_LARGE,
    MOBILENET_V3_SMALL,
    MobileNetV3,
    MobileNetV3Layout,
)
from boxwright.nn.backbones.resnet_v1 import RESNET_BLOCKS, ResNetV1, ResNetV1Slim
from boxwright.nn.backbones.spaghettinet import SpaghettiNet
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.backbones.vgg16 import FACE_VGG, REFINEDET_VGG, SSD_VGG, Vgg16
from boxwright.nn.layers import ConvSettings, Padding
from boxwright.nn.network import Backbone
from boxwright.nn.preprocessing import CAFFE_MEAN, IMAGENET, MINUS_ONE_TO_ONE, VGG_MEAN, PixelScaling


class ExtractorMessage(Protocol):
    """What a message of a feature extractor says of its backbone."""

    type: str
    depth_multiplier: float
    min_depth: int
    conv_hyperparams: m.Hyperparams | None
    override_base_feature_extractor_hyperparams: bool
    use_explicit_padding: bool


class Widths(TypedDict):
    """What the channels of a backbone's layers follow from."""

    depth_multiplier: float
    min_depth: int
    in_channels: int


@dataclass(frozen=True)
class BackboneRequest:
    """The parameters of a backbone.

    Attributes:
        conv_settings: Builds settings from a message of hyperparameters.
        overridden: From the configuration's convolutions and the default, to those of a backbone with overridden
            hyperparameters: some keep some of their own.
    """

    config: ExtractorMessage
    default: ConvSettings
    image_channels: int
    conv_settings: Callable[[m.Hyperparams], ConvSettings] = build_conv_settings
    overridden: Callable[[ConvSettings, ConvSettings], ConvSettings] = lambda settings, _: settings

    @property
    def padding(self) -> Padding:
        """How strided convolutions are padded."""
        return "explicit" if self.config.use_explicit_padding else "same"

    @property
    def use_depthwise(self) -> bool:
        """Whether the neck's convolutions are separable; False for messages without the field."""
        return bool(getattr(self.config, "use_depthwise", False))

    @property
    def hyperparams(self) -> m.Hyperparams:
        """The hyperparameters of convolutions outside the backbone."""
        return self.config.conv_hyperparams or m.Hyperparams()

    def depth(self, channels: int) -> int:
        """Return a number of channels scaled by `depth_multiplier`, at least `min_depth`."""
        return max(int(channels * self.config.depth_multiplier), self.config.min_depth)

    def widths(self) -> Widths:
        """Return the backbone's channels of images and of layers, by the names of its arguments."""
        config = self.config
        return Widths(
            depth_multiplier=config.depth_multiplier, min_depth=config.min_depth, in_channels=self.image_channels
        )

    def neck_settings(self) -> ConvSettings:
        """Return the settings of convolutions outside the backbone."""
        return self.conv_settings(self.hyperparams)

    def settings(self) -> ConvSettings:
        """Return the settings of the backbone's convolutions: its defaults, unless overridden by the configuration."""
        if not self.config.override_base_feature_extractor_hyperparams:
            return self.default
        settings = self.neck_settings()
        return self.overridden(replace(settings, depthwise=settings.kernel), self.default)


@dataclass(frozen=True)
class BuiltBackbone:
    """A backbone and its pixel scaling.

    Attributes:
        module: Images to feature maps, with their channels.
        scaling: The scaling of pixel values.
    """

    module: Backbone
    scaling: PixelScaling


def build_backbone(name: str, levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
    """Build a backbone up to the last level.

    Args:
        name: A key of `_BACKBONES`, or timm's, as in "timm/resnet18".
    """
    if name.startswith("timm/"):
        return _timm(name.removeprefix("timm/"), levels, request)
    return _BACKBONES[name](levels, request)


def _mobilenet_v1(*, narrow: bool) -> _Build:
    taps = {2: 3, 3: 5, 4: 11, 5: 13}

    def build(levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
        layers = [taps[level] for level in levels]
        backbone = MobileNetV1(
            request.settings(), taps=layers, padding=request.padding, narrow=narrow, **request.widths()
        )
        return BuiltBackbone(backbone, MINUS_ONE_TO_ONE)

    return build


def _mobilenet_v2(taps: dict[int, str], last_channels: int = 1280) -> _Build:
    def build(levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
        layers = [taps[level] for level in levels]
        backbone = MobileNetV2(
            request.settings(), taps=layers, padding=request.padding, last_channels=last_channels, **request.widths()
        )
        return BuiltBackbone(backbone, MINUS_ONE_TO_ONE)

    return build


def _mobilenet_v3(layout: MobileNetV3Layout, taps: dict[int, str]) -> _Build:
    def build(levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
        layers = [taps[level] for level in levels]
        backbone = MobileNetV3(layout, request.settings(), taps=layers, **request.widths())
        return BuiltBackbone(backbone, MINUS_ONE_TO_ONE)

    return build


def _mobiledet(hardware: str) -> _Build:
    def build(levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
        del levels  # fixed: strides 16 and 32
        backbone = MobileDet(
            MOBILEDETS[hardware],
            depth_multiplier=request.config.depth_multiplier,
            in_channels=request.image_channels,
        )
        return BuiltBackbone(backbone, MINUS_ONE_TO_ONE)

    return build


def _inception(layout: InceptionLayout, taps: dict[int, str]) -> _Build:
    def build(levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
        layers = [taps[level] for level in levels]
        # There is no default: TF first always used the neck's settings, and later required the override.
        backbone = Inception(layout, request.neck_settings(), taps=layers, **request.widths())
        return BuiltBackbone(backbone, MINUS_ONE_TO_ONE)

    return build


def _resnet(kind: type[ResNetV1] | type[ResNetV1Slim], depth: int) -> _Build:
    def build(levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
        return BuiltBackbone(
            kind(RESNET_BLOCKS[depth], request.settings(), levels=levels, **request.widths()), VGG_MEAN
        )

    return build


def _pnasnet(levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
    del levels  # fixed: strides 16 and 32
    settings = PNASNET_SETTINGS
    if request.config.override_base_feature_extractor_hyperparams:
        settings = overridden_settings(request.settings(), settings)
    backbone = CellNetwork(PNASNET, settings, taps=("cell_7", "cell_11"), in_channels=request.image_channels)
    return BuiltBackbone(backbone, MINUS_ONE_TO_ONE)


def _spaghettinet(levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
    del levels  # fixed: strides 16, 32, 64, 128 and 128
    name = request.config.spaghettinet_arch_name if isinstance(request.config, SsdFeatureExtractor) else ""
    # TF's default where none is named.
    backbone = SpaghettiNet(
        name or "spaghettinet_edgetpu_m", padding=request.padding, in_channels=request.image_channels
    )
    return BuiltBackbone(backbone, MINUS_ONE_TO_ONE)


def _efficientnet(name: str) -> _Build:
    def build(levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
        return BuiltBackbone(EfficientNet(*EFFICIENTNETS[name], request.settings(), levels=levels), IMAGENET)

    return build


def _vgg16_ssd(levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
    del levels  # fixed: strides 8 and 16
    return BuiltBackbone(Vgg16(request.settings(), SSD_VGG, in_channels=request.image_channels), VGG_MEAN)


def _vgg16_refinedet(levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
    reduction = {2: FACE_VGG, 3: REFINEDET_VGG}[levels[0]]
    return BuiltBackbone(Vgg16(request.settings(), reduction, in_channels=request.image_channels), CAFFE_MEAN)


def _timm(name: str, levels: Sequence[int], request: BackboneRequest) -> BuiltBackbone:
    backbone = TimmBackbone(name, strides=[2**level for level in levels])
    if request.config.override_base_feature_extractor_hyperparams:
        backbone.penalize(request.neck_settings().kernel.regularizer)
    return BuiltBackbone(backbone, PixelScaling.standardize(backbone.mean, backbone.deviation))


_Build = Callable[[Sequence[int], BackboneRequest], BuiltBackbone]
_BACKBONES: dict[str, _Build] = {
    "mobilenet_v1": _mobilenet_v1(narrow=False),
    "mobilenet_v1_narrow": _mobilenet_v1(narrow=True),
    "mobilenet_v2": _mobilenet_v2({2: "2", 3: "5", 4: "12", 5: "17"}),
    # SSD without a pyramid taps the features of stride 16 before their projection.
    "mobilenet_v2_expanded": _mobilenet_v2({4: "13/expand", 5: "17"}),
    "mobilenet_v2_narrow": _mobilenet_v2({2: "2", 3: "5", 4: "12", 5: "17"}, last_channels=256),
    # Without the last convolution, as in MnasFPN.
    "mobilenet_v2_blocks": _mobilenet_v2({3: "5", 4: "12", 5: "16"}),
    "mobilenet_v3_large": _mobilenet_v3(MOBILENET_V3_LARGE, {4: "12/expand", 5: "last"}),
    "mobilenet_v3_small": _mobilenet_v3(MOBILENET_V3_SMALL, {4: "8/expand", 5: "last"}),
    "mobilenet_edgetpu": _mobilenet_v3(MOBILENET_EDGETPU, {4: "16/expand", 5: "21"}),
    **{f"mobiledet_{hardware}": _mobiledet(hardware) for hardware in MOBILEDETS},
    "pnasnet": _pnasnet,
    "spaghettinet": _spaghettinet,
    "inception_v2": _inception(INCEPTION_V2, {4: "Mixed_4c", 5: "Mixed_5c"}),
    "inception_v3": _inception(INCEPTION_V3, {3: "Mixed_5d", 4: "Mixed_6e", 5: "Mixed_7c"}),
    **{f"resnet{depth}_v1": _resnet(ResNetV1, depth) for depth in RESNET_BLOCKS},
    **{f"resnet{depth}_v1_slim": _resnet(ResNetV1Slim, depth) for depth in RESNET_BLOCKS},
    **{f"efficientnet-{name}": _efficientnet(name) for name in EFFICIENTNETS},
    "vgg16_ssd": _vgg16_ssd,
    "vgg16_refinedet": _vgg16_refinedet,
}
