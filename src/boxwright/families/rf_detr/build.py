"""`RfDetr`: the whole detector. Sizes are the authors'."""

from __future__ import annotations

from collections.abc import Callable

from boxwright.config.build import require
from boxwright.config.messages import QueryMatcher, QueryPostProcessing
from boxwright.families.rf_detr.backbone import Projector, VitLayout, WindowedVit
from boxwright.families.rf_detr.criterion import (
    ClassificationLoss,
    Focal,
    IouAware,
    LossWeights,
    RfDetrCriterion,
    Varifocal,
)
from boxwright.families.rf_detr.decoder import (
    LOGITS,
    RELATIVE,
    BoxForm,
    DecoderLayout,
    QueryDecoder,
    QuerySelection,
)
from boxwright.families.rf_detr.mask_criterion import MaskCriterion, MaskWeights
from boxwright.families.rf_detr.masks import MaskHead
from boxwright.families.rf_detr.message import (
    SIZES,
    RfDetrClassRows,
    RfDetrDecoder,
    RfDetrFeatureExtractor,
    RfDetrLoss,
    RfDetrMasks,
    RfDetrProjector,
)
from boxwright.families.rf_detr.message import (
    RfDetr as RfDetrMessage,
)
from boxwright.families.rf_detr.network import RfDetr, RfDetrPredictions
from boxwright.families.rf_detr.weights import describe_weights, foreign_weights
from boxwright.families.shared.family import Family, check_classes
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.families.shared.post_processing import build_query_postprocessor
from boxwright.nn.criteria.set_matching import MatchingCosts
from boxwright.nn.criteria.target_assigner import ClassColumns
from boxwright.nn.detector import Detector
from boxwright.nn.postprocessing.postprocessor import Postprocessor
from boxwright.nn.postprocessing.queries import InstancePostprocessor
from boxwright.nn.preprocessing import IMAGENET, Preprocessor
from boxwright.types import Categories

# The head's first column is of no class: in COCO's weights that of id 0, in others the one that is never taught.
_BACKGROUND = 1


def build_rf_detr(config: RfDetrMessage, categories: Categories | None, image_channels: int = 3) -> Detector:
    """Build an RF-DETR, with fresh weights."""
    columns = ClassColumns(config.num_classes, background=_BACKGROUND)
    check_classes(config, config.num_classes, columns, categories)
    resizer = build_image_resizer(require(config.image_resizer, config, "image_resizer"), image_channels)
    vit, decoder = _vit(config), _decoder(config)
    backbone = WindowedVit(vit, resizer.channels)
    levels = (config.projector or RfDetrProjector()).levels
    network = RfDetr(
        backbone,
        Projector(backbone.channels, levels, decoder.depth),
        QuerySelection(decoder),
        QueryDecoder(decoder),
        None if config.masks is None else MaskHead(decoder.depth, decoder.num_layers, config.masks.stride),
    )
    network.keeps_rows_by_position = config.class_rows is RfDetrClassRows.BY_POSITION
    return Detector(
        Preprocessor(resizer, IMAGENET),
        network,
        _criterion(config),
        _postprocessor(config),
        num_classes=config.num_classes,
        categories=categories,
    )


def _postprocessor(config: RfDetrMessage) -> Postprocessor[RfDetrPredictions]:
    queries = build_query_postprocessor(config.post_processing or QueryPostProcessing(), background=_BACKGROUND)
    return queries if config.masks is None else InstancePostprocessor(queries)


def _vit(config: RfDetrMessage) -> VitLayout:
    extractor, size = config.feature_extractor or RfDetrFeatureExtractor(), SIZES[config.size.name]
    return VitLayout(
        width=extractor.width,
        depth=extractor.depth,
        heads=extractor.num_heads,
        patch=extractor.patch or size.patch,
        windows=extractor.windows or size.windows,
        grid=extractor.grid or size.grid,
        taken=tuple(extractor.taken) or size.taken,
        drop_path=extractor.drop_path,
    )


_BOXES: dict[str, BoxForm] = {"RELATIVE": RELATIVE, "LOGITS": LOGITS}


def _decoder(config: RfDetrMessage) -> DecoderLayout:
    decoder = config.decoder or RfDetrDecoder()
    return DecoderLayout(
        depth=decoder.depth,
        num_layers=decoder.num_layers or SIZES[config.size.name].layers,
        feedforward=decoder.feedforward,
        levels=len((config.projector or RfDetrProjector()).levels),
        taps=decoder.taps,
        self_heads=decoder.self_heads,
        cross_heads=decoder.cross_heads,
        queries=decoder.num_queries,
        groups=decoder.num_groups,
        columns=config.num_classes + _BACKGROUND,
        refines=decoder.refine_references,
        form=_BOXES[decoder.boxes.name],
    )


_CLASSIFICATION: dict[str, Callable[[RfDetrLoss], ClassificationLoss]] = {
    "IOU_AWARE": lambda config: IouAware(config.alpha, config.gamma),
    "VARIFOCAL": lambda config: Varifocal(config.alpha, config.gamma),
    "FOCAL": lambda config: Focal(config.alpha, config.gamma),
}


def _criterion(config: RfDetrMessage) -> RfDetrCriterion:
    costs, loss = config.matcher or QueryMatcher(), config.loss or RfDetrLoss()
    return RfDetrCriterion(
        MatchingCosts(costs.class_cost, costs.l1_cost, costs.giou_cost),
        _CLASSIFICATION[loss.classification.name](loss),
        LossWeights(loss.classification_weight, loss.l1_weight, loss.giou_weight),
        background=_BACKGROUND,
        masks=None if config.masks is None else _mask_criterion(config.masks),
    )


def _mask_criterion(config: RfDetrMasks) -> MaskCriterion:
    return MaskCriterion(
        MaskWeights(config.cross_entropy_cost, config.dice_cost),
        MaskWeights(config.cross_entropy_weight, config.dice_weight),
    )


FAMILY = Family(
    RfDetr,
    build_rf_detr,
    foreign_weights=foreign_weights,
    describe_weights=describe_weights,
    learns_in_bfloat16=True,
)
