"""`Ssd`: backbone, neck, head, criterion and postprocessor of a one-stage detector."""

from __future__ import annotations

from boxwright.builders.anchor_generator import build_anchor_generator
from boxwright.builders.choice import require
from boxwright.builders.classes import check_classes
from boxwright.builders.image_resizer import build_image_resizer
from boxwright.builders.losses import build_criterion
from boxwright.builders.post_processing import build_postprocessor
from boxwright.builders.ssd.box_predictor import build_box_predictor
from boxwright.builders.ssd.feature_extractor import build_feature_extractor
from boxwright.builders.ssd.target_assigner import build_target_assigner
from boxwright.config import messages as m
from boxwright.config.messages.ssd import extractor_version
from boxwright.criteria.class_index_losses import NO_COLUMN
from boxwright.criteria.target_assigner import ClassColumns
from boxwright.models.detector import Detector
from boxwright.models.ssd import SSD
from boxwright.preprocessing.preprocessor import Preprocessor
from boxwright.types import Categories


def build_ssd(config: m.Ssd, categories: Categories | None, image_channels: int = 3) -> Detector:
    """Build an SSD."""
    columns = _columns(config)
    check_classes(config, config.num_classes, columns, categories)
    resizer = build_image_resizer(require(config.image_resizer, config, "image_resizer"), image_channels)
    extraction = require(config.feature_extractor, config, "feature_extractor")
    extractor = build_feature_extractor(extraction, image_channels=resizer.channels)
    anchors = build_anchor_generator(require(config.anchor_generator, config, "anchor_generator"))
    head = build_box_predictor(
        require(config.box_predictor, config, "box_predictor"),
        extractor.neck.channels,
        anchors.anchors_per_location,
        columns.count,
        extractor_version(extraction),
    )
    assigner = build_target_assigner(config, columns)
    post_processing = require(config.post_processing, config, "post_processing")
    network = SSD(
        extractor.backbone.module,
        extractor.neck.module,
        head,
        anchors,
        pad_to_multiple=extraction.pad_to_multiple,
    )
    network.frozen_statistics = ("",) if config.freeze_batchnorm else ()
    return Detector(
        Preprocessor(resizer, extractor.backbone.scaling),
        network,
        build_criterion(
            require(config.loss, config, "loss"),
            assigner,
            by_num_matches=config.normalize_loss_by_num_matches,
            by_code_size=config.normalize_loc_loss_by_codesize,
        ),
        build_postprocessor(post_processing, assigner.box_coder, columns.background),
        num_classes=columns.num_classes,
        categories=categories,
    )


def _columns(config: m.Ssd) -> ClassColumns:
    background = int(config.add_background_class or config.explicit_background_class)
    # An explicit background is included in the number of classes.
    foreground = config.num_classes - int(config.explicit_background_class)
    return ClassColumns(foreground, background, NO_COLUMN if config.encode_background_as_zeros else 0)
