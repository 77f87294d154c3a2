"""`DetectionModel`: a whole detector."""

from __future__ import annotations

from collections.abc import Callable

from boxwright.builders.anchor_generator import build_anchor_generator
from boxwright.builders.box_predictor import build_box_predictor
from boxwright.builders.choice import build_chosen, require
from boxwright.builders.classes import check_classes
from boxwright.builders.feature_extractor import build_feature_extractor
from boxwright.builders.image_resizer import build_image_resizer
from boxwright.builders.losses import build_criterion
from boxwright.builders.post_processing import build_postprocessor
from boxwright.builders.refinedet import build_refinedet
from boxwright.builders.target_assigner import build_target_assigner
from boxwright.config import messages as m
from boxwright.config.support import refuse_unsupported
from boxwright.criteria.target_assigner import ClassColumns
from boxwright.errors import ConfigError
from boxwright.models.detector import Detector
from boxwright.models.ssd import SSD
from boxwright.preprocessing.preprocessor import Preprocessor
from boxwright.types import Categories

__all__ = ["build_detector"]


def build_detector(
    config: m.TrainEvalPipelineConfig | m.DetectionModel, categories: Categories | None = None
) -> Detector:
    """Build the detector that a configuration describes, with fresh weights.

    Args:
        config: The whole configuration, or its `model`.
        categories: The classes, for detections to carry.

    Returns:
        The detector, in evaluation mode, on the CPU.

    Raises:
        ConfigError: Where the configuration is incomplete, contradicts itself, or asks for what is
            not supported; or where the categories do not fit the number of classes.
    """
    model = config.model if isinstance(config, m.TrainEvalPipelineConfig) else config
    model = require(model, "model")
    refuse_unsupported(model, "model")
    try:
        detector: Detector = build_chosen(model, "model", _DETECTORS, categories)
        if (size := detector.preprocessor.resizer.output_size) is not None:
            detector.network.lay_anchors(size, detector.preprocessor.resizer.channels)
        return detector.eval()
    except MemoryError:
        raise ConfigError("model: not enough memory for the network that it describes") from None
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # What no rule above has foreseen, such as sizes that contradict each other, met inside torch or timm.
        reason = (str(error).splitlines() or [""])[0][:300]
        raise ConfigError(
            f"model: the network that it describes cannot be built: {type(error).__name__}: {reason}"
        ) from error


def _ssd(config: m.Ssd, categories: Categories | None) -> Detector:
    columns = _columns(config)
    check_classes("model.ssd", config.num_classes, columns, categories)
    resizer = build_image_resizer(require(config.image_resizer, "model.ssd.image_resizer"))
    extraction = require(config.feature_extractor, "model.ssd.feature_extractor")
    extractor = build_feature_extractor(extraction, image_channels=resizer.channels)
    anchors = build_anchor_generator(require(config.anchor_generator, "model.ssd.anchor_generator"))
    head = build_box_predictor(
        require(config.box_predictor, "model.ssd.box_predictor"),
        extractor.neck.channels,
        anchors.anchors_per_location,
        columns.count,
    )
    assigner = build_target_assigner(config, columns)
    if head.output.code_size != assigner.box_coder.code_size:
        raise ConfigError(
            f"box_predictor: box_code_size is {head.output.code_size}, but the box coder writes "
            f"{assigner.box_coder.code_size} numbers; set it to that"
        )
    post_processing = require(config.post_processing, "model.ssd.post_processing")
    network = SSD(
        extractor.backbone.module,
        extractor.neck.module,
        head,
        anchors,
        pad_to_multiple=extraction.pad_to_multiple,
    )
    network.frozen_statistics = config.freeze_batchnorm
    return Detector(
        Preprocessor(resizer, extractor.backbone.scaling),
        network,
        build_criterion(
            require(config.loss, "model.ssd.loss"),
            assigner,
            by_num_matches=config.normalize_loss_by_num_matches,
            by_code_size=config.normalize_loc_loss_by_codesize,
        ),
        build_postprocessor(post_processing, assigner.box_coder, columns.background),
        num_classes=columns.num_classes,
        categories=categories,
    )


def _columns(config: m.Ssd) -> ClassColumns:
    if config.add_background_class and config.explicit_background_class:
        raise ConfigError("model.ssd: add_background_class and explicit_background_class exclude each other")
    background = int(config.add_background_class or config.explicit_background_class)
    # An explicit background is one of the classes that are counted.
    foreground = config.num_classes - int(config.explicit_background_class)
    return ClassColumns(foreground, background, 0.0 if config.encode_background_as_zeros else 1.0)


_DETECTORS: dict[str, Callable[..., Detector]] = {"ssd": _ssd, "refinedet": build_refinedet}
