"""`DFine`: the whole detector. Sizes are the authors'."""

from __future__ import annotations

from collections.abc import Callable

from boxwright.config.build import require
from boxwright.config.messages import QueryMatcher, QueryPostProcessing
from boxwright.families.d_fine.criterion import (
    ClassificationLoss,
    DFineCriterion,
    LossWeights,
    MatchabilityAware,
    Varifocal,
)
from boxwright.families.d_fine.decoder import DistributionDecoder
from boxwright.families.d_fine.distillation import Distiller, Teacher, WeightSchedule
from boxwright.families.d_fine.export_transformers import write_transformers
from boxwright.families.d_fine.layouts import Layouts, read_layouts
from boxwright.families.d_fine.message import (
    DFine as DFineMessage,
)
from boxwright.families.d_fine.message import (
    DFineDecoder,
    DFineDenoising,
    DFineDistillation,
    DFineFeatureExtractor,
    DFineLoss,
    DistillationInOneProcess,
)
from boxwright.families.d_fine.network import DFine, HybridEncoder, ObjectNoise, QuerySelection
from boxwright.families.d_fine.weights import describe_weights, foreign_weights
from boxwright.families.shared.family import Family, check_classes
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.families.shared.post_processing import build_query_postprocessor
from boxwright.nn.backbones.hgnetv2 import HgNetV2
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.batch_norm import synchronize
from boxwright.nn.criteria.set_matching import MatchingCosts
from boxwright.nn.criteria.target_assigner import ClassColumns
from boxwright.nn.detector import Detector
from boxwright.nn.network import Backbone
from boxwright.nn.preprocessing import ZERO_TO_ONE, Preprocessor
from boxwright.types import Categories

_COLORS = 3


def build_d_fine(config: DFineMessage, categories: Categories | None, image_channels: int = 3) -> Detector:
    """Build a D-FINE, with fresh weights."""
    columns = ClassColumns(config.num_classes, background=0)
    check_classes(config, config.num_classes, columns, categories)
    resizer = build_image_resizer(require(config.image_resizer, config, "image_resizer"), image_channels)
    if config.distillation is not None and resizer.channels != _COLORS:
        raise config.refusal("distillation", f"the teacher takes color images, found {resizer.channels} channels")
    network = _network(config, resizer.channels)
    if config.sync_batch_norm:
        synchronize(network)
    extractor = config.feature_extractor or DFineFeatureExtractor()
    network.frozen_statistics = ("backbone",) if extractor.freeze_batchnorm else ()
    return Detector(
        Preprocessor(resizer, ZERO_TO_ONE, scale_padding=True),
        network,
        _criterion(config),
        build_query_postprocessor(config.post_processing or QueryPostProcessing(), background=0),
        num_classes=config.num_classes,
        categories=categories,
    )


def _network(config: DFineMessage, channels: int) -> DFine:
    denoising, layouts = config.denoising or DFineDenoising(), read_layouts(config)
    backbone, encoder, decoder = _backbone(config, layouts, channels), layouts.encoder, layouts.decoder
    num_queries = (config.decoder or DFineDecoder()).num_queries
    noise = ObjectNoise(config.num_classes, denoising.num_queries, denoising.label_noise, denoising.box_noise)
    return DFine(
        backbone,
        HybridEncoder(backbone.channels, encoder),
        QuerySelection(encoder.depth, decoder, config.num_classes, num_queries),
        DistributionDecoder(decoder, config.num_classes),
        noise if denoising.num_queries else None,
        None if config.distillation is None else _distiller(config.distillation, encoder.depth),
    )


def _distiller(config: DFineDistillation, depth: int) -> Distiller:
    teacher = Teacher(config.teacher.removeprefix("timm/"), config.teacher_checkpoint, config.pooling)
    schedule = WeightSchedule(
        start=config.weight,
        default=config.default_weight,
        target=config.target_share,
        tolerance=config.share_tolerance,
        every=config.adapt_every,
        default_from=config.default_weight_from,
        measures_alone=config.in_one_process is DistillationInOneProcess.MEASURED,
    )
    return Distiller(depth, teacher, schedule)


def _backbone(config: DFineMessage, layouts: Layouts, channels: int) -> Backbone:
    if layouts.backbone is not None:
        return HgNetV2(layouts.backbone, layouts.strides, channels)
    extractor = config.feature_extractor or DFineFeatureExtractor()
    return TimmBackbone(extractor.type.removeprefix("timm/"), strides=layouts.strides)


_CLASSIFICATION: dict[str, Callable[[DFineLoss], ClassificationLoss]] = {
    "VARIFOCAL": lambda config: Varifocal(config.alpha, config.gamma or 2.0),
    "MATCHABILITY_AWARE": lambda config: MatchabilityAware(config.gamma or 1.5),
}


def _criterion(config: DFineMessage) -> DFineCriterion:
    costs, loss = config.matcher or QueryMatcher(), config.loss or DFineLoss()
    return DFineCriterion(
        MatchingCosts(costs.class_cost, costs.l1_cost, costs.giou_cost),
        _CLASSIFICATION[loss.classification.name](loss),
        LossWeights(loss.classification_weight, loss.l1_weight, loss.giou_weight, loss.fgl_weight, loss.ddf_weight),
        union=loss.union_matching,
    )


FAMILY = Family(
    DFine,
    build_d_fine,
    foreign_weights=foreign_weights,
    describe_weights=describe_weights,
    write_transformers=write_transformers,
)
