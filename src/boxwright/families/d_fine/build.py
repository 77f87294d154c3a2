"""`DFine`: the whole detector. Sizes are the authors'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from boxwright.families.d_fine.criterion import (
    ClassificationLoss,
    DFineCriterion,
    LossWeights,
    MatchabilityAware,
    Varifocal,
)
from boxwright.families.d_fine.decoder import DecoderLayout, DistributionDecoder
from boxwright.families.d_fine.denoising import ObjectNoise
from boxwright.families.d_fine.encoder import EncoderLayout, HybridEncoder
from boxwright.families.d_fine.matching import MatchingCosts
from boxwright.families.d_fine.message import (
    DFine as DFineMessage,
)
from boxwright.families.d_fine.message import (
    DFineBox,
    DFineDecoder,
    DFineDenoising,
    DFineEncoder,
    DFineFeatureExtractor,
    DFineLoss,
    DFineMatcher,
    DFinePostProcessing,
    HgNetV2Layout,
)
from boxwright.families.d_fine.network import DFine
from boxwright.families.d_fine.postprocessor import QueryPostprocessor
from boxwright.families.d_fine.query_selection import QuerySelection
from boxwright.families.shared.choice import require
from boxwright.families.shared.classes import check_classes
from boxwright.families.shared.family import Family
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.families.shared.post_processing import build_nms
from boxwright.nn.backbones.backbone import Backbone
from boxwright.nn.backbones.hgnetv2 import HGNETS, HgNetLayout, HgNetV2
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.batch_norm import synchronize
from boxwright.nn.criteria.target_assigner import ClassColumns
from boxwright.nn.detector import Detector
from boxwright.nn.preprocessing.preprocessor import ZERO_TO_ONE, Preprocessor
from boxwright.types import Categories


@dataclass(frozen=True)
class Size:
    """A published size.

    Attributes:
        encoder: Its depth and feed-forward width, the blocks' expansion and how often they repeat.
        decoder: Its depth, feed-forward width and number of layers.
    """

    backbone: str
    strides: tuple[int, ...]
    encoder: tuple[int, int, float, int]
    decoder: tuple[int, int, int]
    taps: tuple[int, ...]
    reg_scale: float


_FINE, _TAPS = (8, 16, 32), (3, 6, 3)
SIZES = {
    "N": Size("hgnetv2_b0", (16, 32), (128, 512, 0.34, 2), (128, 512, 3), (6, 6), 4.0),
    "S": Size("hgnetv2_b0", _FINE, (256, 1024, 0.5, 1), (256, 1024, 3), _TAPS, 4.0),
    "M": Size("hgnetv2_b2", _FINE, (256, 1024, 1.0, 2), (256, 1024, 4), _TAPS, 4.0),
    "L": Size("hgnetv2_b4", _FINE, (256, 1024, 1.0, 3), (256, 1024, 6), _TAPS, 4.0),
    "X": Size("hgnetv2_b5", _FINE, (384, 2048, 1.0, 3), (256, 1024, 6), _TAPS, 8.0),
}
_ACTIVATIONS: dict[str, type[nn.Module]] = {"RELU": nn.ReLU, "SILU": nn.SiLU}


def build_d_fine(config: DFineMessage, categories: Categories | None, image_channels: int = 3) -> Detector:
    """Build a D-FINE, with fresh weights."""
    columns = ClassColumns(config.num_classes, background=0)
    check_classes(config, config.num_classes, columns, categories)
    resizer = build_image_resizer(require(config.image_resizer, config, "image_resizer"), image_channels)
    network = _network(config, resizer.channels)
    if config.sync_batch_norm:
        synchronize(network)
    extractor = config.feature_extractor or DFineFeatureExtractor()
    network.frozen_statistics = ("backbone",) if extractor.freeze_batchnorm else ()
    return Detector(
        Preprocessor(resizer, ZERO_TO_ONE, scale_padding=True),
        network,
        _criterion(config),
        _postprocessor(config.post_processing or DFinePostProcessing()),
        num_classes=config.num_classes,
        categories=categories,
    )


@dataclass(frozen=True)
class Layouts:
    """The shape of a whole network.

    Attributes:
        backbone: None for one of timm's.
        strides: Of its maps.
    """

    backbone: HgNetLayout | None
    strides: tuple[int, ...]
    encoder: EncoderLayout
    decoder: DecoderLayout


def layouts_of(config: DFineMessage) -> Layouts:
    """Return the shape of the network that a configuration describes."""
    size, extractor = SIZES[config.size.name], config.feature_extractor or DFineFeatureExtractor()
    name = extractor.type or size.backbone
    strides = tuple(extractor.strides) or size.strides
    own = HGNETS.get(name) if extractor.layout is None else _layout(extractor.layout)
    return Layouts(own, strides, _encoder(config, size), _decoder(config, size))


def _network(config: DFineMessage, channels: int) -> DFine:
    denoising, layouts = config.denoising or DFineDenoising(), layouts_of(config)
    backbone, encoder, decoder = _backbone(config, layouts, channels), layouts.encoder, layouts.decoder
    num_queries = (config.decoder or DFineDecoder()).num_queries
    noise = ObjectNoise(config.num_classes, denoising.num_queries, denoising.label_noise, denoising.box_noise)
    return DFine(
        backbone,
        HybridEncoder(backbone.channels, encoder),
        QuerySelection(encoder.depth, decoder, config.num_classes, num_queries),
        DistributionDecoder(decoder, config.num_classes),
        noise if denoising.num_queries else None,
    )


def _backbone(config: DFineMessage, layouts: Layouts, channels: int) -> Backbone:
    if layouts.backbone is not None:
        return HgNetV2(layouts.backbone, layouts.strides, channels)
    extractor = config.feature_extractor or DFineFeatureExtractor()
    return TimmBackbone(extractor.type.removeprefix("timm/"), strides=layouts.strides)


def _layout(config: HgNetV2Layout) -> HgNetLayout:
    inner, outer = config.stem
    middle, out, blocks = tuple(config.middle), tuple(config.out), tuple(config.blocks)
    return HgNetLayout((inner, outer), middle, out, blocks, config.layers, affine=config.affine)


def _encoder(config: DFineMessage, size: Size) -> EncoderLayout:
    encoder = config.encoder or DFineEncoder()
    depth, feedforward, expansion, repeats = size.encoder
    return EncoderLayout(
        depth=encoder.depth or depth,
        expansion=encoder.expansion or expansion,
        repeats=encoder.block_repeat or repeats,
        feedforward=encoder.feedforward or feedforward,
        heads=encoder.num_heads,
    )


def _decoder(config: DFineMessage, size: Size) -> DecoderLayout:
    decoder, box = config.decoder or DFineDecoder(), config.box or DFineBox()
    depth, feedforward, layers = size.decoder
    return DecoderLayout(
        depth=decoder.depth or depth,
        num_layers=decoder.num_layers or layers,
        taps=tuple(decoder.taps) or size.taps,
        feedforward=decoder.feedforward or feedforward,
        activation=_ACTIVATIONS[decoder.activation.name],
        heads=decoder.num_heads,
        bins=box.bins,
        scale=box.reg_scale or size.reg_scale,
        up=box.up,
    )


def _varifocal(config: DFineLoss) -> ClassificationLoss:
    return Varifocal(config.alpha, config.gamma or 2.0)


def _matchability_aware(config: DFineLoss) -> ClassificationLoss:
    return MatchabilityAware(config.gamma or 1.5)


_CLASSIFICATION: dict[str, Callable[[DFineLoss], ClassificationLoss]] = {
    "VARIFOCAL": _varifocal,
    "MATCHABILITY_AWARE": _matchability_aware,
}


def _criterion(config: DFineMessage) -> DFineCriterion:
    costs, loss = config.matcher or DFineMatcher(), config.loss or DFineLoss()
    return DFineCriterion(
        MatchingCosts(costs.class_cost, costs.l1_cost, costs.giou_cost),
        _CLASSIFICATION[loss.classification.name](loss),
        LossWeights(loss.classification_weight, loss.l1_weight, loss.giou_weight, loss.fgl_weight, loss.ddf_weight),
        union=loss.union_matching,
    )


def _postprocessor(config: DFinePostProcessing) -> QueryPostprocessor:
    nms = config.batch_non_max_suppression
    return QueryPostprocessor(
        config.max_total_detections, config.score_threshold, None if nms is None else build_nms(nms)
    )


FAMILY = Family(DFine, build_d_fine)
