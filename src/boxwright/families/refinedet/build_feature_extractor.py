"""`RefineDetFeatureExtractor`: maps of strides 8 (or 4), 16, 32, and coarser ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from boxwright.families.refinedet.message import RefineDetFeatureExtractor
from boxwright.families.refinedet.residual_level import ResidualLevel
from boxwright.families.shared.backbones import BackboneRequest, build_backbone
from boxwright.families.shared.feature_extractor import FeatureExtractor
from boxwright.families.shared.hyperparams import caffe_xavier
from boxwright.families.shared.necks import COARSEST_OF_BACKBONE, BuiltNeck, build_extra_maps
from boxwright.nn.batch_norm import BatchNormSettings
from boxwright.nn.layers import ConvSettings, KernelRule
from boxwright.nn.necks.vgg_extras import ExtraMap, VggExtras
from boxwright.nn.preprocessing.preprocessor import CAFFE_MEAN
from boxwright.nn.regularization import Regularizer

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
    config: RefineDetFeatureExtractor, levels: int, *, image_channels: int
) -> FeatureExtractor:
    """Build a feature extractor.

    Args:
        levels: The number of maps, of the stride of `min_level` and its doubles.
    """
    build, default, coarsest = REFINEDET_EXTRACTORS[config.type.split("/")[0]]
    counts = [level - config.min_level + 1 for level in coarsest]
    if levels not in counts:
        found = f"{config.type} has {' or '.join(map(str, counts))} maps, of stride {2**config.min_level} and up"
        raise config.refusal("type", f"{found}; the anchors are for {levels}")
    return build(BackboneRequest(config, default, image_channels), range(config.min_level, config.min_level + levels))


def _of_backbone(levels: range) -> range:
    """Return the levels that are the backbone's own; coarser ones are added to it."""
    return range(levels.start, COARSEST_OF_BACKBONE + 1)


def _beside(request: BackboneRequest, settings: ConvSettings) -> ConvSettings:
    """Return the neck's convolutions: the configuration's, else the backbone's."""
    return settings if request.config.conv_hyperparams is None else request.neck_settings()


def _vgg16(request: BackboneRequest, levels: range) -> FeatureExtractor:
    own = _of_backbone(levels)
    backbone = build_backbone("vgg16_refinedet", own, request)
    extras = [ExtraMap(*_EXTRA)] * (len(levels) - len(own))
    neck = VggExtras(backbone.module.channels, extras, _beside(request, request.default))
    return FeatureExtractor(backbone, BuiltNeck(neck, neck.channels))


def _resnet101(request: BackboneRequest, levels: range) -> FeatureExtractor:
    # The paper starts from Caffe's weights, trained with other means than TF's.
    backbone = replace(build_backbone("resnet101_v1", _of_backbone(levels), request), scaling=CAFFE_MEAN)
    neck = ResidualLevel(backbone.module.channels, 128, 512, _beside(request, request.settings()))
    return FeatureExtractor(backbone, BuiltNeck(neck, neck.channels))


def _with_extra_maps(name: str) -> _Build:
    def build(request: BackboneRequest, levels: range) -> FeatureExtractor:
        own = _of_backbone(levels)
        backbone = build_backbone(name or request.config.type, own, request)
        widths = _EXTRA * (len(levels) - len(own))
        return FeatureExtractor(backbone, build_extra_maps(widths, backbone.module.channels, request))

    return build


_Build = Callable[[BackboneRequest, range], FeatureExtractor]
# Type → its builder, the backbone's default convolutions, and the possible coarsest levels.
REFINEDET_EXTRACTORS: dict[str, tuple[_Build, ConvSettings, tuple[int, ...]]] = {
    "refinedet_vgg16": (_vgg16, _VGG, (5, 6, 7)),
    "refinedet_resnet101": (_resnet101, _RESNET, (6,)),
    "refinedet_mobilenet_v2": (_with_extra_maps("mobilenet_v2"), _KERAS, (5, 6, 7)),
    "timm": (_with_extra_maps(""), _KERAS, (5, 6, 7)),
}
