"""`RefineDet`: a two-step detector, and the names of its public port's weights. Defaults are the authors'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from boxwright.config import messages as m
from boxwright.config.build import require
from boxwright.families.refinedet.message import RefineDet as RefineDetMessage
from boxwright.families.refinedet.message import RefineDetFeatureExtractor
from boxwright.families.refinedet.message import TransferConnection as TransferConnectionMessage
from boxwright.families.refinedet.network import RefineDet, ResidualLevel, TransferConnection
from boxwright.families.shared.anchor_generator import build_anchor_generator
from boxwright.families.shared.backbones import BackboneRequest, build_backbone
from boxwright.families.shared.criterion import build_coder, build_step, level_numbers, logits_to_scores, settings_or
from boxwright.families.shared.family import Family, check_classes
from boxwright.families.shared.feature_extractor import (
    COARSEST_OF_BACKBONE,
    BuiltNeck,
    FeatureExtractor,
    build_extra_maps,
)
from boxwright.families.shared.hyperparams import build_regularizer, caffe_xavier
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.families.shared.post_processing import build_postprocessor
from boxwright.families.shared.source_weights import (
    FileFacts,
    Names,
    SourceWeights,
    both,
    map_names,
    reduced_vgg,
    unchanged,
    vertical_first,
)
from boxwright.nn.anchor_grids import AnchorGenerator, MultiscaleAnchorGenerator
from boxwright.nn.backbones.resnet_v1 import Bottleneck
from boxwright.nn.backbones.vgg16 import Vgg16
from boxwright.nn.batch_norm import BatchNormSettings
from boxwright.nn.criteria.anchor import CascadeCriterion, Step, as_objects
from boxwright.nn.criteria.criterion import Criterion
from boxwright.nn.criteria.target_assigner import BipartiteArgmaxMatcher, ClassColumns
from boxwright.nn.detector import Detector
from boxwright.nn.heads.aligned import AlignmentConvHead
from boxwright.nn.heads.convolutional import AnchorHead, ConvolutionalHead, HeadOutput, HeadShape
from boxwright.nn.layers import ConvSettings, KernelRule, conv_norm_act
from boxwright.nn.necks.multi_resolution import ExtraMap, VggExtras
from boxwright.nn.network import Network
from boxwright.nn.ops.boxes import (
    AnchorFilter,
    BoxCoder,
    FasterRcnnBoxCoder,
    RefinedStart,
    SecondStep,
    StartRule,
    TiledStart,
)
from boxwright.nn.postprocessing.anchor import AnchorPostprocessor, CascadePostprocessor
from boxwright.nn.postprocessing.nms import BestOfClass, BestOfImage, LinearLowering, Nms, PerClass
from boxwright.nn.postprocessing.postprocessor import Postprocessor
from boxwright.nn.preprocessing import CAFFE_MEAN, Preprocessor
from boxwright.nn.regularization import Regularizer, penalize_all
from boxwright.nn.ssd import SSD
from boxwright.nn.tensorflow_names.tf1 import REFINEDET_PARTS
from boxwright.types import Categories

_LEVELS = 4


def foreign_weights(
    network: RefineDet, state: Mapping[str, Tensor], path: Path, facts: FileFacts
) -> SourceWeights | None:
    """Return a network's weights from the port's names; None for other names, or another backbone than VGG-16."""
    del facts
    if "arm_loc.0.weight" not in state or not isinstance(network.backbone, Vgg16):
        return None
    return map_names(network, _port_names(), state, path)


def _port_names() -> Names:
    """Name the layers of the public port (luuuyi's RefineDet.PyTorch)."""
    yield from reduced_vgg("vgg.")
    for number, name in enumerate(("conv4_3", "conv5_3")):
        yield f"backbone.norms.{number}.scale", f"{name}_L2Norm.weight", unchanged
    for number in range(2):
        yield from both(f"neck.extra.0.{2 * number}", f"extras.{number}")
    for level in range(_LEVELS):
        for part, head in (("arm", "refinement"), ("odm", "head")):
            yield from both(f"{head}.boxes.{level}.0", f"{part}_loc.{level}", vertical_first)
            yield from both(f"{head}.classes.{level}.0", f"{part}_conf.{level}")
        # Lists of convolution, activation, convolution; of deconvolutions; of activation, convolution, activation.
        yield from both(f"transfer.lateral.{level}.0", f"tcb0.{3 * level}")
        yield from both(f"transfer.linear.{level}.0", f"tcb0.{3 * level + 2}")
        yield from both(f"transfer.smooth.{level}.0", f"tcb2.{3 * level + 1}")
        if level < _LEVELS - 1:
            yield from both(f"transfer.enlarge.{level}.0", f"tcb1.{level}")


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
        problem = f"{config.type} has {' or '.join(map(str, counts))} maps, of stride {2**config.min_level} and up"
        raise config.refusal("type", f"{problem}; the anchors are for {levels}")
    return build(BackboneRequest(config, default, image_channels), range(config.min_level, config.min_level + levels))


def _backbone_levels(levels: range) -> range:
    """Return the levels that are the backbone's own; coarser ones are added to it."""
    return range(levels.start, COARSEST_OF_BACKBONE + 1)


def _beside(request: BackboneRequest, settings: ConvSettings) -> ConvSettings:
    """Return the neck's convolutions: the configuration's, else the backbone's."""
    return settings if request.config.conv_hyperparams is None else request.neck_settings()


def _vgg16(request: BackboneRequest, levels: range) -> FeatureExtractor:
    own = _backbone_levels(levels)
    backbone = build_backbone("vgg16_refinedet", own, request)
    extras = [ExtraMap(*_EXTRA)] * (len(levels) - len(own))
    neck = VggExtras(backbone.module.channels, extras, _beside(request, request.default))
    return FeatureExtractor(backbone, BuiltNeck(neck, neck.channels))


def _resnet101(request: BackboneRequest, levels: range) -> FeatureExtractor:
    # The paper starts from Caffe's weights, trained with other means than TF's.
    backbone = replace(build_backbone("resnet101_v1", _backbone_levels(levels), request), scaling=CAFFE_MEAN)
    neck = ResidualLevel(backbone.module.channels, 128, 512, _beside(request, request.settings()))
    return FeatureExtractor(backbone, BuiltNeck(neck, neck.channels))


def _with_extra_maps(name: str) -> _Build:
    def build(request: BackboneRequest, levels: range) -> FeatureExtractor:
        own = _backbone_levels(levels)
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


_Head = Callable[[Sequence[int], int], AnchorHead]

_OBJECT = ClassColumns(num_classes=1)
# Caffe's "xavier" uses only the fan-in.
_PLAIN = ConvSettings(
    kernel=KernelRule(caffe_xavier, Regularizer(l2=5e-4)),
    norm=None,
    activation="RELU",
)
_CAFFE = Nms(PerClass(0.45, 500), 0.01, 500, BestOfClass(1000))
_PRESETS: dict[str, Nms] = {
    "CAFFE": _CAFFE,
    "PAPER": Nms(PerClass(0.45, 200), 0.01, 200, BestOfImage(400)),
    # The authors' score threshold after soft suppression is not published: ours is the first threshold.
    "CAFFE_COCO": replace(_CAFFE, lowering=LinearLowering(0.3, 0.01)),
}


def build_refinedet(config: RefineDetMessage, categories: Categories | None, image_channels: int = 3) -> Detector:
    """Build a RefineDet, possibly without some of its parts."""
    columns = ClassColumns(config.num_classes)
    check_classes(config, config.num_classes, columns, categories)
    anchors = _anchors(config)
    levels = len(anchors.anchors_per_location)
    resizing = require(config.image_resizer, config, "image_resizer")
    _check_size(resizing, 2 ** (_finest_level(config) + levels - 1))
    resizer = build_image_resizer(resizing, image_channels)
    extractor = build_refinedet_extractor(_extraction(config), levels, image_channels=resizer.channels)
    coder = build_coder(config.box_coder, FasterRcnnBoxCoder())
    network = _network(config, extractor, anchors, columns, coder)
    network.frozen_statistics = ("",) if config.freeze_batchnorm else ()
    if config.regularizer is not None:
        penalize_all(network, build_regularizer(config.regularizer))
    return Detector(
        Preprocessor(resizer, extractor.backbone.scaling),
        network,
        _criterion(config, coder, columns),
        _postprocessor(config, coder),
        num_classes=columns.num_classes,
        categories=categories,
    )


def _extraction(config: RefineDetMessage) -> RefineDetFeatureExtractor:
    return require(config.feature_extractor, config, "feature_extractor")


def _finest_level(config: RefineDetMessage) -> int:
    return _extraction(config).min_level


def _anchors(config: RefineDetMessage) -> AnchorGenerator:
    if config.anchor_generator is not None:
        return build_anchor_generator(config.anchor_generator)
    return MultiscaleAnchorGenerator(_finest_level(config), 6, 4.0, (1.0, 2.0, 0.5), 1)


def _check_size(resizer: m.ImageResizer, stride: int) -> None:
    """Raise for a fixed size that does not halve evenly; other sizes are known only with images."""
    fixed = resizer.fixed_shape_resizer
    if fixed is not None and (fixed.height % stride or fixed.width % stride):
        raise fixed.refusal(
            "", f"sides must be multiples of {stride}, the coarsest level's stride; found {fixed.height}×{fixed.width}"
        )


def _network(
    config: RefineDetMessage,
    extractor: FeatureExtractor,
    anchors: AnchorGenerator,
    columns: ClassColumns,
    coder: BoxCoder,
) -> Network:
    settings = settings_or(config.conv_hyperparams, _PLAIN)
    per_location, channels = anchors.anchors_per_location, extractor.neck.channels

    def head(in_channels: Sequence[int], count: int) -> AnchorHead:
        # A rule of the message says that the predictors' normalization is batch_norm.
        norm = settings.norm if isinstance(settings.norm, BatchNormSettings) else None
        shape = HeadShape(kernel_size=3, norm=norm if config.normalize_predictors else None)
        bodies, widths = _bodies(config, in_channels, settings)
        return ConvolutionalHead(widths, per_location, HeadOutput(count), shape, settings, bodies=bodies)

    transfer = _transfer(config.transfer_connection, channels, settings)
    head_channels = channels if transfer is None else transfer.channels
    if config.anchor_refinement is None:
        neck = extractor.neck.module if transfer is None else nn.Sequential(extractor.neck.module, transfer)
        return SSD(extractor.backbone.module, neck, head(head_channels, columns.count), anchors)
    refinement = head(channels, _OBJECT.count)
    detection = _second_head(config, head_channels, per_location, columns, head)
    return RefineDet(
        extractor.backbone.module,
        extractor.neck.module,
        refinement,
        transfer or nn.Identity(),
        detection,
        anchors,
        _second_step(config, coder),
    )


def _bodies(
    config: RefineDetMessage, in_channels: Sequence[int], settings: ConvSettings
) -> tuple[list[nn.Module] | None, list[int]]:
    """Return each level's layers before its predictors, or None, and the channels that predictors see."""
    levels = len(in_channels)
    if (residual := config.residual_body) is not None:
        own = settings_or(residual.conv_hyperparams, settings)
        return (
            [Bottleneck(width, residual.width, residual.depth, 1, own, project=True) for width in in_channels],
            [residual.depth] * levels,
        )
    if (plain := config.convolutional_body) is not None:
        own = settings_or(plain.conv_hyperparams, settings)
        depths = [plain.depth] * plain.num_layers
        return (
            [nn.Sequential(*(conv_norm_act(a, b, 3, own) for a, b in pairwise([w, *depths]))) for w in in_channels],
            [plain.depth] * levels,
        )
    return None, list(in_channels)


def _second_head(
    config: RefineDetMessage, channels: Sequence[int], per_location: Sequence[int], columns: ClassColumns, plain: _Head
) -> AnchorHead | AlignmentConvHead:
    if not config.align_second_step:
        return plain(channels, columns.count)
    strides = [float(2 ** (_finest_level(config) + number)) for number in range(len(per_location))]
    settings = settings_or(config.conv_hyperparams, _PLAIN)
    return AlignmentConvHead(channels, per_location, strides, HeadOutput(columns.count), settings)


def _transfer(
    config: TransferConnectionMessage | None, channels: Sequence[int], settings: ConvSettings
) -> TransferConnection | None:
    if config is None:
        return None
    kernel_size = config.deconvolution_kernel_size
    own = settings_or(config.conv_hyperparams, settings)
    return TransferConnection(channels, config.depth, own, deconvolution_kernel_size=kernel_size)


def _criterion(config: RefineDetMessage, coder: BoxCoder, columns: ClassColumns) -> Criterion[Any]:
    default = BipartiteArgmaxMatcher()
    detection = build_step(config.matcher, config.loss, default, coder, columns)
    if config.anchor_refinement is None:
        return detection
    first = config.anchor_refinement
    refinement = build_step(first.matcher, first.loss, default, coder, _OBJECT)
    learns = Step(
        refinement,
        "refinement",
        "objectness_loss",
        as_objects,
        class_levels=_levels(config, "filter_levels"),
        box_levels=_levels(config, "refine_levels"),
    )
    return CascadeCriterion((learns, Step(detection)))


def _second_step(config: RefineDetMessage, coder: BoxCoder) -> SecondStep:
    first = require(config.anchor_refinement, config, "anchor_refinement")
    moved, filtered = _levels(config, "refine_levels"), _levels(config, "filter_levels")
    starts: dict[str, Callable[[], StartRule]] = {"REFINED": lambda: RefinedStart(coder, moved), "TILED": TiledStart}
    to_scores = logits_to_scores(first.loss)
    return SecondStep(
        starts[first.object_anchors.name](), AnchorFilter(first.objectness_threshold, to_scores, levels=filtered)
    )


def _levels(config: RefineDetMessage, field: str) -> tuple[int, ...] | None:
    first = require(config.anchor_refinement, config, "anchor_refinement")
    count = len(_anchors(config).anchors_per_location)
    finest = _finest_level(config)
    return level_numbers(first, field, range(finest, finest + count))


def _postprocessor(config: RefineDetMessage, coder: BoxCoder) -> Postprocessor[Any]:
    if config.post_processing is not None:
        detection = build_postprocessor(config.post_processing, coder, _OBJECT.background)
    else:
        nms = _PRESETS[config.inference_preset.name]
        detection = AnchorPostprocessor(coder, logits_to_scores(config.loss), nms, _OBJECT.background)
    if config.anchor_refinement is None:
        return detection
    return CascadePostprocessor(detection)


FAMILY = Family(
    RefineDet, build_refinedet, tf1=REFINEDET_PARTS, foreign_weights=foreign_weights, learns_in_bfloat16=True
)
