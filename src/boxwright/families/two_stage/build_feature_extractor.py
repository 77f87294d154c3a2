"""`FasterRcnnFeatureExtractor`: the two halves of a two-stage detector's backbone, by TF's names.

The first half returns the maps for the RPN; the second processes crops of them. With a pyramid, two dense layers
replace the second half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import Literal

from torch import nn

from boxwright.config import messages as m
from boxwright.config.build import require
from boxwright.config.support import refuse_contradictions
from boxwright.families.shared.feature_extractor import pyramid_levels
from boxwright.families.shared.hyperparams import CONV_SETTINGS, variance_scaling
from boxwright.families.two_stage.inception_resnet_v2 import NASNET, NASNET_SETTINGS, inception_resnet_v2
from boxwright.families.two_stage.message import FasterRcnnFeatureExtractor
from boxwright.nn.backbones.cells import (
    PNASNET,
    PNASNET_SETTINGS,
    CellLayout,
    CellNetwork,
    CellSettings,
    JoinedCells,
    LaterCells,
)
from boxwright.nn.backbones.inception import INCEPTION_V2, Inception, InceptionLayout
from boxwright.nn.backbones.mobilenet_v1 import MobileNetV1, MobileNetV1Tail
from boxwright.nn.backbones.resnet_v1 import RESNET_BLOCKS, ResNetV1, ResNetV1Slim, ResNetV1SlimBlock4, ResNetV1Stage5
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.batch_norm import BatchNormSettings, make_norm
from boxwright.nn.layers import ConvSettings, Dense, KernelRule
from boxwright.nn.necks.fpn import FeaturePyramid, PaperFeaturePyramid
from boxwright.nn.network import Backbone, LastMap
from boxwright.nn.preprocessing import MINUS_ONE_TO_ONE, VGG_MEAN, PixelScaling
from boxwright.nn.regularization import Regularizer

_PYRAMID_MULTIPLE = 32
_DENSE = 1024
_GLOROT = ConvSettings(activation="RELU")
_RESNET_NORM = BatchNormSettings(decay=0.997, epsilon=1e-5)
_RESNET = ConvSettings(kernel=KernelRule(variance_scaling(1.0, "FAN_IN")), norm=_RESNET_NORM, activation="RELU")
_PYRAMID_RESNET = replace(_RESNET, kernel=replace(_RESNET.kernel, regularizer=Regularizer(l2=2e-4)))
_SLIM_RESNET = replace(_RESNET, kernel=KernelRule(variance_scaling(2.0, "FAN_IN")))
_INCEPTION_RESNET = replace(_GLOROT, norm=BatchNormSettings(decay=0.9997, epsilon=0.001, scale=False))
_INCEPTION_V2 = replace(_GLOROT, norm=BatchNormSettings(decay=0.9997, epsilon=0.001))
_SLIM_MOBILENET = KernelRule(lambda kernel: nn.init.trunc_normal_(kernel, 0.0, 0.09, -0.18, 0.18))
_MOBILENET_V1 = ConvSettings(
    kernel=_SLIM_MOBILENET,
    depthwise=_SLIM_MOBILENET,
    separable_depthwise=_SLIM_MOBILENET,
    separable_pointwise=_SLIM_MOBILENET,
    norm=BatchNormSettings(decay=0.9997, epsilon=0.001),
)


@dataclass(frozen=True)
class CropFeatures:
    """The module that processes crops."""

    module: nn.Module
    channels: int
    side: int


@dataclass(frozen=True)
class TwoStageExtractor:
    """Both halves of a two-stage extractor.

    Attributes:
        channels: Channels of each of the RPN's maps.
        scaling: The scaling of pixel values.
        crop_features: From a crop's side to the module that processes it.
        strided: Whether the second half reads only every second row and column of a crop.
        pad_to_multiple: The multiple to which inputs are padded.
        finest_level: The finest map's level: its stride is 2 to that power.
        is_ours: Whether TensorFlow lacks it, so that hyperparameters apply everywhere.
        always_normalizes: Modules whose normalization is trained whatever `batch_norm_trainable` says.
    """

    backbone: Backbone
    neck: nn.Module
    channels: tuple[int, ...]
    scaling: PixelScaling
    crop_features: Callable[[int], CropFeatures]
    strided: bool = False
    pad_to_multiple: int = 1
    finest_level: int = 4
    is_ours: bool = False
    always_normalizes: tuple[str, ...] = ()


def build_two_stage_extractor(config: FasterRcnnFeatureExtractor, image_channels: int) -> TwoStageExtractor:
    """Build both halves."""
    refuse_contradictions(config)
    if config.type.startswith("timm/"):
        return _timm(config)
    return FASTER_RCNN_EXTRACTORS[config.type](config, image_channels)


_Build = Callable[[FasterRcnnFeatureExtractor, int], TwoStageExtractor]


def _resnet(depth: int) -> _Build:
    def build(config: FasterRcnnFeatureExtractor, image_channels: int) -> TwoStageExtractor:
        blocks = RESNET_BLOCKS[depth]
        backbone = ResNetV1(blocks, _RESNET, levels=(4,), in_channels=image_channels)

        def crop_features(side: int) -> CropFeatures:
            stage = ResNetV1Stage5(blocks, _RESNET, stride=1)
            return CropFeatures(stage, stage.out_channels, -(-side // 2))

        return TwoStageExtractor(backbone, nn.Identity(), backbone.channels, VGG_MEAN, crop_features, strided=True)

    return build


def _slim_resnet(depth: int) -> _Build:
    def build(config: FasterRcnnFeatureExtractor, image_channels: int) -> TwoStageExtractor:
        stride, blocks = config.first_stage_features_stride, RESNET_BLOCKS[depth]
        backbone = ResNetV1Slim(blocks, _SLIM_RESNET, levels=(4,), in_channels=image_channels, coarsest_stride=stride)

        def crop_features(side: int) -> CropFeatures:
            block = ResNetV1SlimBlock4(blocks, _SLIM_RESNET)
            return CropFeatures(block, block.channels[0], side)

        return TwoStageExtractor(backbone, nn.Identity(), backbone.channels, VGG_MEAN, crop_features)

    return build


def _inception(
    layout: Callable[[int], InceptionLayout],
    last: str,
    settings: ConvSettings,
    halved: Callable[[int], int] = lambda side: -(-side // 2),
) -> _Build:
    """Return a builder that splits a network after its layer `last`; `halved` maps a crop's side to its features'."""

    def build(config: FasterRcnnFeatureExtractor, image_channels: int) -> TwoStageExtractor:
        whole = layout(config.first_stage_features_stride)
        backbone = Inception(whole, settings, taps=(last,), in_channels=image_channels)
        behind = tuple(dropwhile(lambda item: getattr(item, "name", "") != last, whole.layers))[1:]

        def crop_features(side: int) -> CropFeatures:
            end = getattr(behind[-1], "name", "")
            half = Inception(replace(whole, layers=behind), settings, taps=(end,), in_channels=backbone.channels[-1])
            return CropFeatures(LastMap(half), half.channels[-1], halved(side))

        return TwoStageExtractor(backbone, nn.Identity(), backbone.channels, MINUS_ONE_TO_ONE, crop_features)

    return build


def _cells(layout: CellLayout, settings: CellSettings, last: tuple[str, str]) -> _Build:
    """Return a builder that splits a network of cells behind the last two of the first half."""

    def build(config: FasterRcnnFeatureExtractor, image_channels: int) -> TwoStageExtractor:
        del config
        backbone = JoinedCells(CellNetwork(layout, settings, taps=last, in_channels=image_channels))

        def crop_features(side: int) -> CropFeatures:
            later = LaterCells(layout, settings, backbone)
            return CropFeatures(later, later.channels, -(-side // 2))

        # TF-Slim's builder of the whole network sets its own mode of normalization over the detector's.
        return TwoStageExtractor(
            backbone,
            nn.Identity(),
            backbone.channels,
            MINUS_ONE_TO_ONE,
            crop_features,
            always_normalizes=("backbone",),
        )

    return build


def _mobilenet_v1(config: FasterRcnnFeatureExtractor, image_channels: int) -> TwoStageExtractor:
    del config
    backbone = MobileNetV1(_MOBILENET_V1, taps=(11,), min_depth=16, in_channels=image_channels)

    def crop_features(side: int) -> CropFeatures:
        tail = MobileNetV1Tail(_MOBILENET_V1, backbone.channels[-1])
        return CropFeatures(tail, tail.channels, -(-side // 2))

    return TwoStageExtractor(backbone, nn.Identity(), backbone.channels, MINUS_ONE_TO_ONE, crop_features)


def _pyramid_resnet(depth: int) -> _Build:
    def build(config: FasterRcnnFeatureExtractor, image_channels: int) -> TwoStageExtractor:
        settings = _pyramid_settings(config)
        base = settings if config.override_base_feature_extractor_hyperparams else _PYRAMID_RESNET
        backbone = ResNetV1(
            RESNET_BLOCKS[depth],
            replace(base, depthwise=base.kernel),
            levels=pyramid_levels(_pyramid(config)),
            in_channels=image_channels,
        )
        return _with_pyramid(config, backbone, VGG_MEAN, settings)

    return build


def _timm(config: FasterRcnnFeatureExtractor) -> TwoStageExtractor:
    settings = _pyramid_settings(config)
    levels = pyramid_levels(_pyramid(config))
    backbone = TimmBackbone(config.type.removeprefix("timm/"), strides=[2**level for level in levels])
    if config.override_base_feature_extractor_hyperparams:
        backbone.penalize(settings.kernel.regularizer)
    scaling = PixelScaling.standardize(backbone.mean, backbone.deviation)
    return _with_pyramid(config, backbone, scaling, settings)


def _pyramid(config: FasterRcnnFeatureExtractor) -> m.FeaturePyramidNetworks:
    return config.fpn or m.FeaturePyramidNetworks()


def _pyramid_settings(config: FasterRcnnFeatureExtractor) -> ConvSettings:
    return CONV_SETTINGS[2](require(config.conv_hyperparams, config, "conv_hyperparams"))


def _with_pyramid(
    config: FasterRcnnFeatureExtractor, backbone: Backbone, scaling: PixelScaling, settings: ConvSettings
) -> TwoStageExtractor:
    pyramid, depth = _pyramid(config), _pyramid(config).additional_layer_depth
    extra = pyramid.max_level - pyramid.min_level + 1 - len(backbone.channels)
    neck: FeaturePyramid | PaperFeaturePyramid
    if config.pyramid.name == "TENSORFLOW":
        neck = FeaturePyramid(backbone.channels, depth, settings, extra_levels=extra)
    else:
        pool = {"SUBSAMPLED": 1, "POOLED": 2}[config.pyramid.name]
        neck = PaperFeaturePyramid(backbone.channels, depth, settings, extra_levels=extra, pool=pool)

    is_ours = config.type.startswith("timm/")
    # TF uses Keras's defaults; only the normalization in between is configurable.
    rule = replace(KernelRule(), regularizer=settings.kernel.regularizer) if is_ours else KernelRule()

    def crop_features(side: int) -> CropFeatures:
        layers = nn.Sequential(
            rule.apply(Dense(depth, _DENSE, side)),
            nn.ReLU(inplace=True),
            make_norm(_DENSE, settings.norm),
            rule.apply(Dense(_DENSE, _DENSE)),
            nn.ReLU(inplace=True),
        )
        return CropFeatures(layers, _DENSE, 1)

    return TwoStageExtractor(
        backbone,
        neck,
        neck.channels,
        scaling,
        crop_features,
        pad_to_multiple=_PYRAMID_MULTIPLE,
        finest_level=pyramid.min_level,
        is_ours=is_ours,
    )


def _inception_resnet_v2(tail_padding: Literal["same", "valid"]) -> Callable[[int], InceptionLayout]:
    return lambda stride: inception_resnet_v2(middle_stride=stride // 8, tail_padding=tail_padding)


# Type → its builder. `FasterRcnnFeatureExtractor.type` declares the same names.
FASTER_RCNN_EXTRACTORS: dict[str, _Build] = {
    **{f"faster_rcnn_resnet{depth}": _slim_resnet(depth) for depth in RESNET_BLOCKS},
    "faster_rcnn_inception_v2": _inception(lambda _: INCEPTION_V2, "Mixed_4e", _INCEPTION_V2),
    "faster_rcnn_inception_resnet_v2": _inception(
        _inception_resnet_v2("valid"), "Repeat_1/block17_20", _INCEPTION_RESNET, lambda side: (side - 1) // 2
    ),
    "faster_rcnn_nas": _cells(NASNET, NASNET_SETTINGS, ("cell_10", "cell_11")),
    "faster_rcnn_pnas": _cells(PNASNET, PNASNET_SETTINGS, ("cell_6", "cell_7")),
    "faster_rcnn_mobilenet_v1": _mobilenet_v1,
    **{f"faster_rcnn_resnet{depth}_keras": _resnet(depth) for depth in RESNET_BLOCKS},
    **{f"faster_rcnn_resnet{depth}_fpn_keras": _pyramid_resnet(depth) for depth in RESNET_BLOCKS},
    "faster_rcnn_inception_resnet_v2_keras": _inception(
        _inception_resnet_v2("same"), "Repeat_1/block17_20", _INCEPTION_RESNET
    ),
}
