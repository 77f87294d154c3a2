"""`PostProcessing`: score conversion and suppression."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from boxwright.config import messages as m
from boxwright.config.build import build_chosen, require
from boxwright.config.message import Message
from boxwright.config.support import refuse_contradictions
from boxwright.nn.ops.boxes import BoxCoder
from boxwright.nn.postprocessing.anchor import (
    AnchorPostprocessor,
    ByColumn,
    Calibration,
    PiecewiseLinear,
    ScoreConverter,
    SigmoidCurve,
    identity,
    softmax,
)
from boxwright.nn.postprocessing.nms import ClassAgnostic, Nms, PerClass, SoftPerClass, Suppression
from boxwright.nn.postprocessing.queries import QueryPostprocessor

_CONVERTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "IDENTITY": identity,
    "SIGMOID": torch.sigmoid,
    "SOFTMAX": softmax,
}


def build_postprocessor(config: m.PostProcessing, box_coder: BoxCoder, background: int) -> AnchorPostprocessor:
    """Build a postprocessor."""
    nms = require(config.batch_non_max_suppression, config, "batch_non_max_suppression")
    return AnchorPostprocessor(box_coder, build_score_converter(config), build_nms(nms), background)


def build_score_converter(config: m.PostProcessing) -> ScoreConverter:
    """Build a score converter."""
    refuse_contradictions(config)
    convert = _CONVERTERS[config.score_converter.name]
    calibration = config.calibration_config
    if calibration is None:
        return ScoreConverter(convert, config.logit_scale)
    if calibration.temperature_scaling_calibration is not None:
        # The only calibration before the conversion.
        temperature = calibration.temperature_scaling_calibration
        scaler = temperature.scaler
        return ScoreConverter(convert, config.logit_scale * scaler)
    return ScoreConverter(convert, config.logit_scale, build_chosen(calibration, "calibrator", _CALIBRATIONS))


def _curve(config: m.XYPairs | None, calibration: Message) -> PiecewiseLinear:
    points = [] if config is None else [(pair.x, pair.y) for pair in config.x_y_pair]
    x, y = zip(*points, strict=True)
    return PiecewiseLinear(x, y)


def _sigmoid(config: m.SigmoidParameters | None) -> SigmoidCurve:
    return SigmoidCurve() if config is None else SigmoidCurve(config.a, config.b)


_CALIBRATIONS: dict[str, Callable[..., Calibration]] = {
    "function_approximation": lambda config: _curve(config.x_y_pairs, config),
    "class_id_function_approximations": lambda config: ByColumn(
        {key: _curve(value, config) for key, value in config.mapping("class_id_xy_pairs_map").items()}
    ),
    "sigmoid_calibration": lambda config: _sigmoid(config.sigmoid_parameters),
    "class_id_sigmoid_calibrations": lambda config: ByColumn(
        {key: _sigmoid(value) for key, value in config.mapping("class_id_sigmoid_parameters_map").items()}
    ),
}


def build_nms(config: m.BatchNonMaxSuppression) -> Nms:
    """Build batch NMS."""
    refuse_contradictions(config)
    # TF's suppression with static shapes also drops boxes that overlap by exactly the threshold.
    threshold = math.nextafter(config.iou_threshold, 0.0) if config.use_static_shapes else config.iou_threshold
    suppression: Suppression = PerClass(threshold, config.max_detections_per_class)
    if config.use_class_agnostic_nms:
        suppression = ClassAgnostic(config.iou_threshold)
    elif config.soft_nms_sigma > 0:
        suppression = SoftPerClass(config.soft_nms_sigma, config.max_detections_per_class)
    outside: Literal["drop", "keep"] = "keep" if config.use_combined_nms else "drop"
    return Nms(suppression, config.score_threshold, config.max_total_detections, outside=outside)


def build_query_postprocessor(config: m.QueryPostProcessing, background: int) -> QueryPostprocessor:
    """Build a postprocessor of queries, whose class columns begin with so many of the background."""
    nms = config.batch_non_max_suppression
    return QueryPostprocessor(
        config.max_total_detections,
        config.score_threshold,
        None if nms is None else build_nms(nms),
        background=background,
    )
