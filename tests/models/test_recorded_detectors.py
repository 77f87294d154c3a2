"""Whole detectors against TensorFlow: the same weights, the same numbers at every stage."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from boxwright.builders.detector import build_detector
from boxwright.checkpoints.load_weights import load_weights
from boxwright.config import messages as m
from boxwright.config import parse_message
from boxwright.models.detector import Detector
from boxwright.types import Targets
from tests.conftest import GOLDEN, assert_close, xyxy, yxyx
from tests.golden.weights import weight

NAMES = sorted(path.stem for path in (GOLDEN / "models").glob("*.json"))


def test_there_are_two() -> None:
    assert len(NAMES) == 2


@pytest.fixture(scope="module", params=NAMES)
def recorded(request: pytest.FixtureRequest) -> tuple[Detector, Any]:
    description = json.loads((GOLDEN / "models" / f"{request.param}.json").read_text())
    detector = build_detector(parse_message(description["model_text"], m.DetectionModel))
    variables = {key: weight(key, tuple(shape), description["gain"]) for key, shape in description["variables"]}
    report = load_weights(detector, variables)
    assert len(report.restored) == len(variables)
    assert not report.kept
    assert not report.unused
    return detector, np.load(GOLDEN / "models" / f"{request.param}.npz")


def compare(arrays: Any, name: str, actual: Any) -> None:
    """Compare with a recording, which is sampled where it is large."""
    actual = np.ascontiguousarray(actual)
    if name in arrays.files:
        assert_close(actual, arrays[name], 1e-4, 1e-3)
    else:
        assert actual.shape == tuple(arrays[f"{name}@shape"])
        assert_close(actual.reshape(-1)[arrays[f"{name}@index"]], arrays[f"{name}@value"], 1e-4, 1e-3)


@torch.no_grad()
def test_every_stage(recorded: tuple[Detector, Any]) -> None:
    detector, arrays = recorded
    inputs, sizes = detector.preprocess(torch.from_numpy(arrays["image"])[None])
    compare(arrays, "preprocessed", inputs.permute(0, 2, 3, 1))
    assert sizes.tolist() == arrays["true_image_shapes"][:, :2].tolist()
    predictions = detector.predict(inputs)
    for level, features in enumerate(predictions.feature_maps):
        compare(arrays, f"predict/feature_maps/{level}", features.permute(0, 2, 3, 1))
    height, width = inputs.shape[-2:]
    scale = np.array([height, width, height, width], np.float32)
    compare(arrays, "predict/anchors", yxyx(predictions.anchors) / scale)
    compare(arrays, "predict/box_encodings", predictions.box_codes)
    compare(arrays, "predict/class_predictions_with_background", predictions.class_logits)

    boxes = xyxy(arrays["groundtruth_boxes"] * scale)[None]
    labels = torch.from_numpy(arrays["groundtruth_classes"].argmax(-1))[None]
    targets = Targets(boxes, labels, torch.ones(labels.shape), torch.ones(labels.shape) > 0)
    assigned = detector.criterion.assigner(predictions.anchors, targets)  # type: ignore[attr-defined]  # an SSDCriterion
    assert assigned.match.tolist() == arrays["assign/match"].tolist()
    compare(arrays, "assign/reg_targets", assigned.box_codes)
    compare(arrays, "assign/reg_weights", assigned.box_weights)
    compare(arrays, "assign/cls_targets", assigned.classes)
    for name, value in detector.criterion(predictions, targets).items():
        assert_close(value, arrays[name.replace("Loss/", "loss/")], 1e-4, 1e-4)
    assert_close(detector.regularization(), arrays["loss/regularization"])

    (found,) = detector.postprocess(predictions, sizes)
    assert_close(found.scores, arrays["detect/detection_scores"][0])
    assert found.labels.tolist() == arrays["detect/detection_classes"][0].tolist()
    assert found.anchor_indices is not None
    assert found.anchor_indices.tolist() == arrays["detect/detection_anchor_indices"][0].tolist()
    assert_close(yxyx(found.boxes) / scale, arrays["detect/detection_boxes"][0])
    assert_close(found.multiclass_scores, arrays["detect/detection_multiclass_scores"][0])


def test_detect_gives_pixels_of_the_original(recorded: tuple[Detector, Any]) -> None:
    detector, arrays = recorded
    (found,) = detector.detect([arrays["image"]])
    exported = found.to_tf()
    assert found.image_size == arrays["image"].shape[:2]
    assert_close(exported["detection_scores"], arrays["detect/detection_scores"][0])
    assert_close(exported["detection_boxes"], arrays["detect/detection_boxes"][0])
    assert_close(exported["detection_classes"], arrays["detect/detection_classes"][0] + 1)
    assert exported["num_detections"] == 100
