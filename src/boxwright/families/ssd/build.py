"""`Ssd`: backbone, neck, head, criterion and postprocessor of a one-stage detector."""

from __future__ import annotations

from boxwright.config.messages.ssd_feature_extractor import extractor_version
from boxwright.families.shared.anchor_generator import build_anchor_generator
from boxwright.families.shared.choice import require
from boxwright.families.shared.classes import check_classes
from boxwright.families.shared.family import Family
from boxwright.families.shared.feature_extractor import build_feature_extractor
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.families.shared.losses import build_criterion
from boxwright.families.shared.post_processing import build_postprocessor
from boxwright.families.shared.target_assigner import build_box_coder, build_matcher, build_similarity
from boxwright.families.ssd.build_box_predictor import build_box_predictor
from boxwright.families.ssd.message import Ssd
from boxwright.nn.criteria.class_index_losses import NO_COLUMN
from boxwright.nn.criteria.target_assigner import Assigner, ClassColumns, ConfidenceTargetAssigner, TargetAssigner
from boxwright.nn.detector import Detector
from boxwright.nn.preprocessing.preprocessor import Preprocessor
from boxwright.nn.ssd import SSD
from boxwright.nn.tensorflow_names import tf1, tf2
from boxwright.types import Categories


def build_ssd(config: Ssd, categories: Categories | None, image_channels: int = 3) -> Detector:
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


def _columns(config: Ssd) -> ClassColumns:
    background = int(config.add_background_class or config.explicit_background_class)
    # An explicit background is included in the number of classes.
    foreground = config.num_classes - int(config.explicit_background_class)
    return ClassColumns(foreground, background, NO_COLUMN if config.encode_background_as_zeros else 0)


def build_target_assigner(config: Ssd, columns: ClassColumns) -> Assigner:
    """Build the assigner of targets to anchors."""
    assigner = TargetAssigner(
        columns=columns,
        matcher=build_matcher(require(config.matcher, config, "matcher")),
        box_coder=build_box_coder(require(config.box_coder, config, "box_coder")),
        similarity=build_similarity(require(config.similarity_calculator, config, "similarity_calculator")),
        negative_class_weight=config.negative_class_weight,
    )
    if config.use_confidences_as_targets:
        return ConfidenceTargetAssigner(assigner, config.implicit_example_weight)
    return assigner


FAMILY = Family(SSD, build_ssd, tf1=tf1.SSD_PARTS, tf2=tf2.SSD_PARTS)
