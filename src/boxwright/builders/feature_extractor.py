"""`SsdFeatureExtractor`: backbones and necks, by TF's names.

A TF1 name (`ssd_mobilenet_v2`) and its TF2 name (`…_keras`) are the same network; where the
configuration leaves the backbone's own convolutions alone, the first gets TF-Slim's penalty,
initializer and normalization, the second Keras's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from boxwright.builders.hyperparams import build_backbone_settings, build_conv_settings, variance_scaling
from boxwright.config import messages as m
from boxwright.config.interpret import nearest
from boxwright.errors import ConfigError
from boxwright.models.backbones.backbone import Backbone
from boxwright.models.backbones.efficientnet import EFFICIENTNETS, EfficientNet
from boxwright.models.backbones.mobilenet_v1 import MobileNetV1
from boxwright.models.backbones.mobilenet_v2 import MobileNetV2
from boxwright.models.backbones.resnet_v1 import RESNET_BLOCKS, ResNetV1
from boxwright.models.backbones.timm_backbone import TimmBackbone
from boxwright.models.backbones.vgg16 import Vgg16
from boxwright.models.batch_norm import BatchNormSettings
from boxwright.models.layers import ConvSettings, KernelRule, Padding, Regularizer
from boxwright.models.necks.bifpn import COMBINERS, BiFpn
from boxwright.models.necks.fpn import FeaturePyramid
from boxwright.models.necks.multi_resolution import MultiResolutionFeatureMaps
from boxwright.models.necks.vgg_extras import SSD300_EXTRAS, SSD512_EXTRAS, VggExtras
from boxwright.preprocessing.preprocessor import IMAGENET, MINUS_ONE_TO_ONE, VGG_MEAN, PixelScaling

__all__ = ["ExtractionRequest", "FeatureExtractor", "build_feature_extractor"]

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
_EXTRA_DEPTHS = (512, 256, 256, 128)


@dataclass(frozen=True)
class FeatureExtractor:
    """A backbone with its neck.

    Attributes:
        backbone: Images to feature maps.
        neck: Those to the maps that are predicted from.
        channels: Channels of each of the latter.
        scaling: What the backbone wants done to pixel values.
    """

    backbone: Backbone
    neck: nn.Module
    channels: tuple[int, ...]
    scaling: PixelScaling


@dataclass(frozen=True)
class ExtractionRequest:
    """What is asked of an extractor's builder.

    Attributes:
        config: The message.
        default: The backbone's own convolutions.
        frozen_norm: Whether batch normalization keeps its stored statistics in training.
        image_channels: Channels of the image.
    """

    config: m.SsdFeatureExtractor
    default: ConvSettings
    frozen_norm: bool
    image_channels: int

    @property
    def padding(self) -> Padding:
        """How strided convolutions are padded."""
        return "explicit" if self.config.use_explicit_padding else "same"

    @property
    def hyperparams(self) -> m.Hyperparams:
        """The convolutions outside the backbone."""
        return self.config.conv_hyperparams or m.Hyperparams()

    def depth(self, channels: int) -> int:
        """Scale a number of channels.

        Args:
            channels: As the paper has it.

        Returns:
            The number to build.
        """
        return max(int(channels * self.config.depth_multiplier), self.config.min_depth)

    def neck_settings(self) -> ConvSettings:
        """Build the convolutions outside the backbone.

        Returns:
            The settings.
        """
        return build_conv_settings(self.hyperparams, frozen_norm=self.frozen_norm)

    def settings_beside(self, backbone: ConvSettings) -> ConvSettings:
        """Build the convolutions outside a backbone whose own serve them too.

        Args:
            backbone: What they are where the configuration says nothing.

        Returns:
            The settings.
        """
        return backbone if self.config.conv_hyperparams is None else self.neck_settings()

    def refuse_normalization(self) -> None:
        """Refuse batch normalization, for networks that have none.

        Raises:
            ConfigError: Where it is asked for.
        """
        if self.hyperparams.batch_norm or self.hyperparams.sync_batch_norm:
            raise ConfigError(
                f"feature_extractor.conv_hyperparams.batch_norm: {self.config.type} is not normalized; remove it"
            )

    def backbone_settings(self) -> ConvSettings:
        """Build the backbone's convolutions: its own, unless told to take the configuration's.

        Returns:
            The settings.
        """
        override = self.config.override_base_feature_extractor_hyperparams
        return build_backbone_settings(self.hyperparams, self.default, override=override, frozen_norm=self.frozen_norm)

    def refuse(self, *fields: str) -> None:
        """Refuse fields that the network has no use for, as TF does.

        Args:
            *fields: Names of fields that must keep their defaults.

        Raises:
            ConfigError: Where one is set to something else.
        """
        for field in fields:
            default = type(self.config).model_fields[field].default
            if getattr(self.config, field) != default:
                raise ConfigError(
                    f"feature_extractor.{field}: {self.config.type} takes only {default}; remove the line"
                )


def build_feature_extractor(
    config: m.SsdFeatureExtractor, *, frozen_norm: bool = False, image_channels: int = 3
) -> FeatureExtractor:
    """Build a feature extractor.

    Args:
        config: The message.
        frozen_norm: Whether batch normalization keeps its stored statistics in training.
        image_channels: Channels of the image: 3, or 1 where the resizer makes it grey.

    Returns:
        The backbone and neck.

    Raises:
        ConfigError: For an unknown type.
    """
    if config.type.startswith("timm/"):
        return _timm(ExtractionRequest(config, _KERAS, frozen_norm, image_channels))
    if config.type not in _EXTRACTORS:
        hint = nearest(config.type, _EXTRACTORS)
        raise ConfigError(
            f"feature_extractor.type {config.type!r} is not there yet{hint if 'mean' in hint else ''}; "
            f"known: {', '.join(_EXTRACTORS)}, timm/NAME"
        )
    build, default = _EXTRACTORS[config.type]
    _refuse_other_pyramid(config)
    return build(ExtractionRequest(config, default, frozen_norm, image_channels))


def _refuse_other_pyramid(config: m.SsdFeatureExtractor) -> None:
    """Refuse a pyramid of a kind that the type does not have."""
    own = next((kind for kind in ("bifpn", "fpn") if f"_{kind}" in config.type), None)
    for kind in ("bifpn", "fpn"):
        if kind != own and getattr(config, kind) is not None:
            raise ConfigError(f"feature_extractor.{kind}: {config.type} has none; remove it, or use another type")


def _multi_resolution(request: ExtractionRequest, channels: tuple[int, ...]) -> MultiResolutionFeatureMaps:
    config = request.config
    extra = config.num_layers - len(channels)
    if not 0 <= extra <= len(_EXTRA_DEPTHS):
        raise ConfigError(f"feature_extractor.num_layers: expected 2 to 6, found {config.num_layers}")
    depth = request.depth
    widths = [
        width for channels_out in _EXTRA_DEPTHS[:extra] for width in (depth(channels_out // 2), depth(channels_out))
    ]
    return MultiResolutionFeatureMaps(
        channels, widths, request.neck_settings(), use_depthwise=config.use_depthwise, padding=request.padding
    )


def _pyramid(request: ExtractionRequest, channels: tuple[int, ...]) -> FeaturePyramid:
    config = request.config
    fpn = config.fpn or m.FeaturePyramidNetworks()
    return FeaturePyramid(
        channels,
        request.depth(fpn.additional_layer_depth),
        request.neck_settings(),
        extra_levels=fpn.max_level - min(fpn.max_level, 5),
        use_depthwise=config.use_depthwise,
        padding=request.padding,
    )


def _levels(pyramid: m.FeaturePyramidNetworks | m.BidirectionalFeaturePyramidNetworks, finest: int) -> list[int]:
    """List the pyramid levels that come from the backbone itself."""
    if not finest <= pyramid.min_level <= min(pyramid.max_level, 5):
        raise ConfigError(
            f"feature_extractor: expected {finest} <= min_level <= max_level, and min_level <= 5, "
            f"found {pyramid.min_level} and {pyramid.max_level}"
        )
    return list(range(pyramid.min_level, min(pyramid.max_level, 5) + 1))


def _fpn_levels(request: ExtractionRequest) -> list[int]:
    return _levels(request.config.fpn or m.FeaturePyramidNetworks(), 2)


def _mobilenet_v1(request: ExtractionRequest) -> FeatureExtractor:
    backbone = MobileNetV1(
        request.backbone_settings(),
        depth_multiplier=request.config.depth_multiplier,
        min_depth=request.config.min_depth,
        padding=request.padding,
        in_channels=request.image_channels,
    )
    neck = _multi_resolution(request, backbone.channels)
    return FeatureExtractor(backbone, neck, neck.channels, MINUS_ONE_TO_ONE)


def _mobilenet_v1_fpn(request: ExtractionRequest) -> FeatureExtractor:
    taps = {2: 3, 3: 5, 4: 11, 5: 13}
    backbone = MobileNetV1(
        request.backbone_settings(),
        taps=[taps[level] for level in _fpn_levels(request)],
        depth_multiplier=request.config.depth_multiplier,
        min_depth=request.config.min_depth,
        padding=request.padding,
        narrow=request.config.use_depthwise,
        in_channels=request.image_channels,
    )
    neck = _pyramid(request, backbone.channels)
    return FeatureExtractor(backbone, neck, neck.channels, MINUS_ONE_TO_ONE)


def _mobilenet_v2(request: ExtractionRequest) -> FeatureExtractor:
    backbone = MobileNetV2(
        request.backbone_settings(),
        depth_multiplier=request.config.depth_multiplier,
        min_depth=request.config.min_depth,
        padding=request.padding,
        in_channels=request.image_channels,
    )
    neck = _multi_resolution(request, backbone.channels)
    return FeatureExtractor(backbone, neck, neck.channels, MINUS_ONE_TO_ONE)


def _mobilenet_v2_fpn(request: ExtractionRequest) -> FeatureExtractor:
    taps = {2: "2", 3: "5", 4: "12", 5: "17"}
    backbone = MobileNetV2(
        request.backbone_settings(),
        taps=[taps[level] for level in _fpn_levels(request)],
        depth_multiplier=request.config.depth_multiplier,
        min_depth=request.config.min_depth,
        padding=request.padding,
        in_channels=request.image_channels,
    )
    neck = _pyramid(request, backbone.channels)
    return FeatureExtractor(backbone, neck, neck.channels, MINUS_ONE_TO_ONE)


def _resnet_v1_fpn(depth: int) -> _Build:
    def build(request: ExtractionRequest) -> FeatureExtractor:
        request.refuse("use_explicit_padding", "use_depthwise")
        backbone = ResNetV1(
            RESNET_BLOCKS[depth],
            request.backbone_settings(),
            levels=_fpn_levels(request),
            depth_multiplier=request.config.depth_multiplier,
            min_depth=request.config.min_depth,
            in_channels=request.image_channels,
        )
        neck = _pyramid(request, backbone.channels)
        return FeatureExtractor(backbone, neck, neck.channels, VGG_MEAN)

    return build


def _efficientnet_bifpn(name: str) -> _Build:
    def build(request: ExtractionRequest) -> FeatureExtractor:
        request.refuse(
            "depth_multiplier", "use_explicit_padding", "use_depthwise", "override_base_feature_extractor_hyperparams"
        )
        if request.image_channels != 3:
            raise ConfigError(f"{request.config.type} takes images in colour; remove convert_to_grayscale")
        bifpn = request.config.bifpn or m.BidirectionalFeaturePyramidNetworks()
        if bifpn.combine_method not in COMBINERS:
            raise ConfigError(
                f"bifpn.combine_method: expected one of {', '.join(COMBINERS)}, found {bifpn.combine_method!r}"
            )
        if bifpn.num_iterations < 1:
            raise ConfigError(f"bifpn.num_iterations: expected at least 1, found {bifpn.num_iterations}")
        backbone = EfficientNet(*EFFICIENTNETS[name], request.backbone_settings(), levels=_levels(bifpn, 1))
        neck = BiFpn(
            backbone.channels,
            max(bifpn.num_filters, request.config.min_depth),
            request.neck_settings(),
            extra_levels=bifpn.max_level - min(bifpn.max_level, 5),
            iterations=bifpn.num_iterations,
            combiner=COMBINERS[bifpn.combine_method],
        )
        return FeatureExtractor(backbone, neck, neck.channels, IMAGENET)

    return build


def _vgg16(request: ExtractionRequest) -> FeatureExtractor:
    request.refuse("depth_multiplier", "use_explicit_padding", "use_depthwise")
    extras = {6: SSD300_EXTRAS, 7: SSD512_EXTRAS}
    if request.config.num_layers not in extras:
        raise ConfigError(
            f"feature_extractor.num_layers: ssd_vgg16 has 6 layers (for 300 px) or 7 (for 512 px), "
            f"found {request.config.num_layers}"
        )
    request.refuse_normalization()
    backbone = Vgg16(request.backbone_settings(), in_channels=request.image_channels)
    settings = request.settings_beside(request.default)
    neck = VggExtras(backbone.channels, extras[request.config.num_layers], settings)
    return FeatureExtractor(backbone, neck, neck.channels, VGG_MEAN)


def _timm(request: ExtractionRequest) -> FeatureExtractor:
    if request.image_channels != 3:
        raise ConfigError(f"{request.config.type} takes images in colour; remove convert_to_grayscale")
    request.refuse("use_explicit_padding", "override_base_feature_extractor_hyperparams")
    pyramid = request.config.fpn is not None
    strides = [2**level for level in _fpn_levels(request)] if pyramid else [16, 32]
    backbone = TimmBackbone(request.config.type.removeprefix("timm/"), strides=strides, frozen_norm=request.frozen_norm)
    channels = backbone.channels
    neck = _pyramid(request, channels) if pyramid else _multi_resolution(request, channels)
    scaling = PixelScaling.standardize(backbone.mean, backbone.deviation)
    return FeatureExtractor(backbone, neck, neck.channels, scaling)


_Build = Callable[[ExtractionRequest], FeatureExtractor]
_EXTRACTORS: dict[str, tuple[_Build, ConvSettings]] = {
    "ssd_mobilenet_v1": (_mobilenet_v1, _SLIM),
    "ssd_mobilenet_v1_keras": (_mobilenet_v1, _KERAS),
    "ssd_mobilenet_v1_fpn": (_mobilenet_v1_fpn, _SLIM),
    "ssd_mobilenet_v1_fpn_keras": (_mobilenet_v1_fpn, _KERAS),
    "ssd_mobilenet_v2": (_mobilenet_v2, _SLIM),
    "ssd_mobilenet_v2_keras": (_mobilenet_v2, _KERAS),
    "ssd_mobilenet_v2_fpn": (_mobilenet_v2_fpn, _SLIM),
    "ssd_mobilenet_v2_fpn_keras": (_mobilenet_v2_fpn, _KERAS),
    **{f"ssd_resnet{depth}_v1_fpn": (_resnet_v1_fpn(depth), _SLIM_RESNET) for depth in RESNET_BLOCKS},
    **{f"ssd_resnet{depth}_v1_fpn_keras": (_resnet_v1_fpn(depth), _RESNET) for depth in RESNET_BLOCKS},
    **{f"ssd_efficientnet-{name}_bifpn_keras": (_efficientnet_bifpn(name), _EFFICIENTNET) for name in EFFICIENTNETS},
    "ssd_vgg16": (_vgg16, _VGG),
}
