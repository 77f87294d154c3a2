"""`CenterNetFeatureExtractor`: backbones, and the necks that give maps of stride 4, by TF's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from boxwright.config.support import refuse_contradictions
from boxwright.families.center_net.backbones import (
    HOURGLASSES,
    KERAS_RESNETS,
    KerasResNetV1,
    PreactivationResNet,
    StackedHourglass,
)
from boxwright.families.center_net.message import (
    HOURGLASS_TYPES,
    MOBILENET_TYPES,
    RESNET_FPN_TYPES,
    RESNET_TYPES,
    CenterNetFeatureExtractor,
)
from boxwright.families.center_net.network import Deconvolutions, Interpolation, ReversedChannels, TopDownMap
from boxwright.nn.backbones.mobilenet_v2 import MobileNetV2
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.batch_norm import BatchNormSettings
from boxwright.nn.layers import ConvSettings, full_conv, separable_conv
from boxwright.nn.network import Backbone
from boxwright.nn.preprocessing import PixelScaling

# Keras's defaults, with which TF makes all but the hourglass and the MobileNet: nothing is penalized.
_KERAS = ConvSettings(norm=BatchNormSettings(decay=0.99), activation="RELU", force_bias=True)
RESNET_NORM = ConvSettings(norm=BatchNormSettings(decay=0.99, epsilon=1.001e-5), activation="RELU")
_MOBILENET = ConvSettings(norm=BatchNormSettings(decay=0.999))
# Keras's momentum is the share of the old average, Torch's that of the new value: TF's 0.1 was meant to be 0.9.
HOURGLASS_NORM = ConvSettings(norm=BatchNormSettings(decay=0.1, epsilon=1e-5, sync=True), activation="RELU")
# Channels of the merged maps, finest first.
_RESNET_WIDTHS, _MOBILENET_WIDTHS = (64, 128, 256), (24, 32, 64)
_COARSEST_STRIDE = 32


@dataclass(frozen=True)
class FeatureExtractor:
    """A backbone, the neck that follows it, and what both read.

    Attributes:
        stages: The number of maps of stride 4.
        channels: Channels of each.
        pad_to_multiple: Of what number the input's sides have to be multiples.
    """

    backbone: Backbone
    neck: nn.Module
    stages: int
    channels: int
    scaling: PixelScaling
    channel_order: nn.Module
    pad_to_multiple: int = _COARSEST_STRIDE


def build_feature_extractor(config: CenterNetFeatureExtractor) -> FeatureExtractor:
    """Build a feature extractor."""
    refuse_contradictions(config)
    return CENTER_NET_EXTRACTORS["timm/" if config.type.startswith("timm/") else config.type](config)


def _hourglass(layers: int, config: CenterNetFeatureExtractor) -> FeatureExtractor:
    layout = HOURGLASSES[layers]
    backbone = StackedHourglass(layout, HOURGLASS_NORM)
    scaling, order = _scaled(config)
    # The stem shrinks the image to a quarter, and each further size to half of the one before.
    multiple = 4 * 2 ** (len(layout.channels) - 1)
    return FeatureExtractor(
        backbone, nn.Identity(), layout.hourglasses, layout.channels[0], scaling, order, pad_to_multiple=multiple
    )


def _resnet_deconv(layers: int, config: CenterNetFeatureExtractor) -> FeatureExtractor:
    backbone = PreactivationResNet(KERAS_RESNETS[layers], RESNET_NORM, strides=(2, 2, 2, 1), outputs=(3,))
    neck = Deconvolutions(backbone.channels[-1], (256, 128, 64), 3, _KERAS)
    return FeatureExtractor(backbone, neck, 1, neck.channels[0], *_scaled(config, to_unit=True))


def _resnet_fpn(layers: int, config: CenterNetFeatureExtractor) -> FeatureExtractor:
    layout = KERAS_RESNETS[layers]
    backbone: Backbone
    if layout.basic:
        backbone = PreactivationResNet(layout, RESNET_NORM, strides=(1, 2, 2, 2), outputs=(0, 1, 2, 3))
    else:
        backbone = KerasResNetV1(layout, RESNET_NORM)
    neck = _pyramid(config, backbone, _RESNET_WIDTHS)
    return FeatureExtractor(backbone, neck, 1, neck.channels[0], *_caffe_scaled(config))


def _mobilenet_deconv(config: CenterNetFeatureExtractor) -> FeatureExtractor:
    backbone = MobileNetV2(_MOBILENET, taps=("17",), depth_multiplier=config.depth_multiplier)
    neck = Deconvolutions(backbone.channels[-1], (256, 128, 64), 1, _KERAS)
    return FeatureExtractor(backbone, neck, 1, neck.channels[0], *_scaled(config, to_unit=True))


def _mobilenet_fpn(config: CenterNetFeatureExtractor) -> FeatureExtractor:
    backbone = MobileNetV2(_MOBILENET, taps=("2", "5", "9", "17"), depth_multiplier=config.depth_multiplier)
    neck = _pyramid(config, backbone, _MOBILENET_WIDTHS)
    return FeatureExtractor(backbone, neck, 1, neck.channels[0], *_scaled(config, to_unit=True))


def _timm(config: CenterNetFeatureExtractor) -> FeatureExtractor:
    backbone = TimmBackbone(config.type.removeprefix("timm/"), strides=[4, 8, 16, 32])
    neck = _pyramid(config, backbone, _RESNET_WIDTHS)
    if config.channel_means or config.channel_stds or config.bgr_ordering:
        scaling, order = _scaled(config)
    else:
        scaling, order = PixelScaling.standardize(backbone.mean, backbone.deviation), nn.Identity()
    return FeatureExtractor(backbone, neck, 1, neck.channels[0], scaling, order)


def _pyramid(config: CenterNetFeatureExtractor, backbone: Backbone, widths: tuple[int, ...]) -> TopDownMap:
    separable = config.use_separable_conv or config.type == "mobilenet_v2_fpn_sep_conv"
    make = partial(separable_conv if separable else full_conv, kernel_size=3, settings=_KERAS, bias=True)
    interpolation: Interpolation = "bilinear" if config.upsampling_interpolation == "bilinear" else "nearest"
    return TopDownMap(backbone.channels, widths, make, _KERAS, interpolation=interpolation)


def _scaled(config: CenterNetFeatureExtractor, *, to_unit: bool = False) -> tuple[PixelScaling, nn.Module]:
    """Return the scaling of red, green and blue, and the order in which the backbone reads them.

    Args:
        to_unit: Whether values are scaled from 0..255 to -1..1 after the means and deviations, as in TF.
    """
    means, deviations = _statistics(config)
    unit, shift = (127.5, 1.0) if to_unit else (1.0, 0.0)
    scale = tuple(1 / (unit * deviation) for deviation in deviations)
    offset = tuple(-mean * by - shift for mean, by in zip(means, scale, strict=True))
    return _build_scaling(scale, offset), ReversedChannels() if config.bgr_ordering else nn.Identity()


# What Keras subtracts from the first, second and third channel, after it reversed them.
_CAFFE = (103.939, 116.779, 123.68)


def _caffe_scaled(config: CenterNetFeatureExtractor) -> tuple[PixelScaling, nn.Module]:
    """Return the scaling and order of ResNet v1: TF reverses the channels once more, and subtracts its own means."""
    means, deviations = _statistics(config)
    # TF subtracts blue's mean from whatever comes first: with `bgr_ordering`, red.
    first_to_last = _CAFFE if config.bgr_ordering else _CAFFE[::-1]
    scale = tuple(1 / deviation for deviation in deviations)
    offset = tuple(-mean * by - own for mean, by, own in zip(means, scale, first_to_last, strict=True))
    return _build_scaling(scale, offset), nn.Identity() if config.bgr_ordering else ReversedChannels()


def _statistics(config: CenterNetFeatureExtractor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the means and deviations of red, green and blue."""
    order = -1 if config.bgr_ordering else 1
    means, deviations = config.channel_means or (0.0, 0.0, 0.0), config.channel_stds or (1.0, 1.0, 1.0)
    return tuple(means)[::order], tuple(deviations)[::order]


def _build_scaling(scale: tuple[float, ...], offset: tuple[float, ...]) -> PixelScaling:
    (red, green, blue), (red_shift, green_shift, blue_shift) = scale, offset
    return PixelScaling((red, green, blue), (red_shift, green_shift, blue_shift))


def _number(name: str) -> int:
    """Return the number of layers that a type's name contains."""
    return int(name.removesuffix("_fpn").rpartition("_")[2])


CENTER_NET_EXTRACTORS: dict[str, Callable[[CenterNetFeatureExtractor], FeatureExtractor]] = {
    **{name: partial(_hourglass, _number(name)) for name in HOURGLASS_TYPES},
    **{name: partial(_resnet_deconv, _number(name)) for name in RESNET_TYPES},
    **{name: partial(_resnet_fpn, _number(name)) for name in RESNET_FPN_TYPES},
    MOBILENET_TYPES[0]: _mobilenet_deconv,
    **dict.fromkeys(MOBILENET_TYPES[1:], _mobilenet_fpn),
    "timm/": _timm,
}
