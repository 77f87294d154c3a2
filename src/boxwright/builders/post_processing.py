"""`PostProcessing`: score conversion and suppression."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from boxwright.builders.choice import require
from boxwright.config import messages as m
from boxwright.errors import ConfigError
from boxwright.ops.box_coder import FasterRcnnBoxCoder
from boxwright.postprocessing.batch_nms import BatchNms
from boxwright.postprocessing.score_converters import ScoreConverter, identity, softmax
from boxwright.postprocessing.ssd import SSDPostprocessor

__all__ = ["build_nms", "build_postprocessor", "build_score_converter"]

_CONVERTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "IDENTITY": identity,
    "SIGMOID": torch.sigmoid,
    "SOFTMAX": softmax,
}


def build_postprocessor(config: m.PostProcessing, box_coder: FasterRcnnBoxCoder, background: int) -> SSDPostprocessor:
    """Build a postprocessor.

    Args:
        config: The message.
        box_coder: Decodes box codes.
        background: Columns before the foreground.

    Returns:
        The postprocessor.
    """
    nms = require(config.batch_non_max_suppression, "model.ssd.post_processing.batch_non_max_suppression")
    return SSDPostprocessor(box_coder, build_score_converter(config), build_nms(nms), background)


def build_score_converter(config: m.PostProcessing) -> ScoreConverter:
    """Build a score converter.

    Args:
        config: The message.

    Returns:
        The converter.

    Raises:
        ConfigError: For a logit scale of 0.
    """
    if config.logit_scale == 0:
        raise ConfigError("post_processing.logit_scale divides the logits; it cannot be 0")
    return ScoreConverter(_CONVERTERS[config.score_converter.name], config.logit_scale)


def build_nms(config: m.BatchNonMaxSuppression) -> BatchNms:
    """Build batch NMS.

    Args:
        config: The message.

    Returns:
        The suppression.

    Raises:
        ConfigError: Where an image could keep fewer detections than a class.
    """
    if config.max_detections_per_class > config.max_total_detections:
        raise ConfigError(
            f"batch_non_max_suppression: max_detections_per_class {config.max_detections_per_class} is over "
            f"max_total_detections {config.max_total_detections}"
        )
    return BatchNms(
        config.score_threshold, config.iou_threshold, config.max_detections_per_class, config.max_total_detections
    )
