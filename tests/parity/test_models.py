"""Whole detectors against TensorFlow: the same weights, the same numbers at every stage."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.nn.criteria.anchor import AnchorCriterion
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.losses import as_rows
from boxwright.nn.detector import Detector
from boxwright.nn.ops.boxes import pairwise_iou
from boxwright.nn.postprocessing.anchor import AnchorPostprocessor
from boxwright.nn.postprocessing.nms import PerClass
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.types import AnchorPredictions, Targets
from boxwright.weights.load_weights import load_weights
from tests.conftest import GOLDEN, assert_close, xyxy, yxyx
from tests.golden.weights import weight
from tests.parity.recordings import (
    FOLDER,
    OUTPUTS,
    compare,
    compare_outputs,
    detections_as_tied,
    is_beyond_last_tap,
    model_names,
    penalty_beyond_last_tap,
    unsupported,
)

WEIGHTS_ARE_LOADED = True


def test_the_shipped_folder_is_whole() -> None:
    if FOLDER == GOLDEN:
        assert len(model_names()) == 5


@dataclass
class Recorded:
    """A recorded detector, rebuilt."""

    detector: Detector
    weights: dict[str, Any]
    arrays: Any
    inputs: torch.Tensor
    sizes: torch.Tensor
    predictions: AnchorPredictions

    @property
    def scale(self) -> Any:
        height, width = self.inputs.shape[-2:]
        return np.array([height, width, height, width], np.float32)

    def compare(self, name: str, actual: Any, absolute: float = 1e-4, relative: float = 1e-3) -> None:
        compare(self.arrays, name, actual, absolute, relative)

    def has(self, name: str) -> bool:
        return name in self.arrays.files or f"{name}@value" in self.arrays.files

    def targets(self) -> Targets:
        boxes = xyxy(self.arrays["groundtruth_boxes"] * self.scale)[None]
        labels = torch.from_numpy(self.arrays["groundtruth_classes"].argmax(-1))[None]
        return Targets(boxes, labels, torch.ones(labels.shape), torch.ones(labels.shape) > 0)


# The large ones: ResNet's pyramid is in test_two_stage.py, and MobileNet's is that of ssd_mobilenet_v2_fpnlite_320x320.
pytestmark = pytest.mark.slow_cases(
    "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8", "ssd_mobilenet_v1_fpn_640x640_coco17_tpu-8"
)


@pytest.fixture(scope="module", params=model_names())
def recorded(request: pytest.FixtureRequest) -> Recorded:
    path = FOLDER / "models" / request.param
    description = json.loads(path.with_name(f"{path.name}.json").read_text())
    try:
        detector = build_detector(parse_message(description["model_text"], m.DetectionModel))
    except ConfigError as error:
        unsupported(request.param, error)
    weights = {key: weight(key, tuple(shape), description["gain"]) for key, shape in description["variables"]}
    load_weights(detector, weights)
    arrays = np.load(path.with_name(f"{path.name}.npz"))
    inputs, sizes = detector.preprocess(torch.from_numpy(arrays["image"])[None])
    with torch.no_grad():
        return Recorded(detector, weights, arrays, inputs, sizes, detector.predict(inputs))


def test_preprocess(recorded: Recorded) -> None:
    recorded.compare("preprocessed", recorded.inputs.permute(0, 2, 3, 1))
    assert recorded.sizes.tolist() == recorded.arrays["true_image_shapes"][:, :2].tolist()


def test_predict(recorded: Recorded) -> None:
    predictions = recorded.predictions
    assert predictions.feature_maps
    for level, features in enumerate(predictions.feature_maps):
        recorded.compare(f"predict/feature_maps/{level}", features.permute(0, 2, 3, 1))
    recorded.compare("predict/anchors", yxyx(predictions.anchors) / recorded.scale, 1e-5, 1e-4)
    recorded.compare("predict/final_anchors", yxyx(predictions.final_anchors) / recorded.scale, 1e-5, 1e-4)
    recorded.compare("predict/box_encodings", predictions.box_codes)
    recorded.compare("predict/class_predictions_with_background", predictions.class_logits)


def test_assignment(recorded: Recorded) -> None:
    criterion = recorded.detector.criterion
    assert isinstance(criterion, AnchorCriterion)
    assert criterion.assigner.unit_free
    assigned = criterion.assigner(recorded.predictions.anchors, recorded.targets())
    assert assigned.match.tolist() == recorded.arrays["assign/match"].tolist()
    recorded.compare("assign/reg_targets", assigned.box_codes)
    recorded.compare("assign/reg_weights", assigned.box_weights)
    classes = as_rows(assigned.classes, criterion.assigner.columns.count)
    recorded.compare("assign/cls_targets", classes)
    weights = assigned.class_weights.expand_as(classes)
    recorded.compare("assign/cls_weights", weights)


def test_losses(recorded: Recorded) -> None:
    losses = LossTerm.values(recorded.detector.criterion(recorded.predictions, recorded.targets()))
    assert set(losses) == {"Loss/localization_loss", "Loss/classification_loss"}
    for name, value in losses.items():
        assert_close(value, recorded.arrays[name.replace("Loss/", "loss/")], 1e-4, 1e-4)


def test_regularization(recorded: Recorded) -> None:
    """TF also penalizes what its EfficientNet has beyond the last tap, which no loss ever changes."""
    beyond = {key: array for key, array in recorded.weights.items() if is_beyond_last_tap(key, recorded.weights)}
    expected = recorded.detector.regularization().item() + penalty_beyond_last_tap(beyond)
    assert_close(expected, recorded.arrays["loss/regularization"])


def test_detections(recorded: Recorded) -> None:
    post = recorded.detector.postprocessor
    assert isinstance(post, AnchorPostprocessor)
    found = detections_as_tied(recorded.arrays, "detect/", post, recorded.predictions, recorded.sizes)
    assert compare_outputs(recorded.arrays, "detect/", found) == len(OUTPUTS)


def test_detections_without_help(recorded: Recorded) -> None:
    """Untouched, scores agree in order but for what ties decide, and boxes of one class keep apart."""
    (found,) = recorded.detector.postprocess(recorded.predictions, recorded.sizes)
    assert_close(found.scores, recorded.arrays["detect/detection_scores"][0], 1e-3, 1e-3)
    for name in ("raw_detection_boxes", "raw_detection_scores"):
        recorded.compare(f"detect/{name}", found.to_tf()[name][None])
    post = recorded.detector.postprocessor
    assert isinstance(post, AnchorPostprocessor)
    assert isinstance(post.nms.suppression, PerClass)
    raw = post.decode(recorded.predictions)
    assert found.anchor_indices is not None
    unclipped = raw.boxes[0, found.anchor_indices]
    same = (found.labels[:, None] == found.labels) & ~torch.eye(len(found)).bool()
    assert (pairwise_iou(unclipped, unclipped)[same] <= post.nms.suppression.iou_threshold + 1e-6).all()


def test_detect_gives_pixels_of_the_original(recorded: Recorded) -> None:
    (found,) = recorded.detector.detect([recorded.arrays["image"]])
    exported = found.to_tf()
    assert found.image_size == recorded.arrays["image"].shape[:2]
    assert_close(exported["detection_scores"], recorded.arrays["detect/detection_scores"][0], 1e-3, 1e-3)
    assert exported["num_detections"] == recorded.arrays["detect/num_detections"][0]
    assert "raw_detection_boxes" not in exported, "megabytes an image, which nobody asked for"
