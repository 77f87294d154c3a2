"""The recorded TF2 checkpoint on disk: read without TensorFlow, run, written, read again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from boxwright.config.load import parse_message
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.weights.export_weights import write_tensorflow_checkpoint
from boxwright.weights.load_weights import load_weights
from boxwright.weights.tensorflow.bundle import Bundle
from tests.conftest import assert_close, yxyx
from tests.golden.weights import weight
from tests.parity.recordings import FOLDER, unsupported

RECORDED = FOLDER / "checkpoint"


@pytest.fixture(scope="module")
def description() -> dict[str, object]:
    if not (RECORDED / "model.json").is_file():
        unsupported("checkpoint", "the folder holds no recorded checkpoint")
    return dict(json.loads((RECORDED / "model.json").read_text()))


@pytest.fixture
def detector(description: dict[str, object]) -> Detector:
    return build_detector(parse_message(str(description["model_text"]), m.DetectionModel))


def test_every_variable(description: dict[str, object]) -> None:
    bundle = Bundle(RECORDED / "tf2_checkpoint")
    assert bundle.verify() == []
    variables = description["variables"]
    assert isinstance(variables, list)
    assert len(variables) > 300
    for key, shape in variables:
        assert np.array_equal(bundle[key], weight(key, tuple(shape), float(str(description["gain"])))), key
    assert bundle["step/.ATTRIBUTES/VARIABLE_VALUE"] == 4200


def test_it_detects_the_same(detector: Detector, tmp_path: Path) -> None:
    report = load_weights(detector, RECORDED / "tf2_checkpoint")
    assert not report.kept
    assert set(report.unused.values()) == {
        "state of the optimizer",
        "a counter",
        "of the image classifier, beyond what the detector computes",
    } & set(report.unused.values())
    check_outputs(detector)
    write_tensorflow_checkpoint(detector, tmp_path / "ckpt-1", step=4200)
    again = Bundle(tmp_path)
    original = Bundle(RECORDED / "tf2_checkpoint")
    assert again.verify() == []
    for key in report.restored.values():
        assert np.array_equal(again[key], original[key])


@torch.no_grad()
def check_outputs(detector: Detector) -> None:
    arrays = np.load(RECORDED / "expected.npz")
    inputs, sizes = detector.preprocess(torch.from_numpy(arrays["image"])[None])
    assert_close(inputs.permute(0, 2, 3, 1), arrays["preprocessed"], 1e-4, 1e-3)
    predictions = detector.predict(inputs)
    assert_close(predictions.box_codes, arrays["box_encodings"], 1e-4, 1e-3)
    assert_close(predictions.class_logits, arrays["class_predictions_with_background"], 1e-4, 1e-3)
    height, width = inputs.shape[-2:]
    scale = np.array([height, width, height, width], np.float32)
    assert_close(yxyx(predictions.anchors) / scale, arrays["anchors"])
    (found,) = detector.postprocess(predictions, sizes)
    assert found.anchor_indices is not None
    assert_close(found.scores, arrays["detection_scores"][0])
    assert found.labels.tolist() == arrays["detection_classes"][0].tolist()
    assert found.anchor_indices.tolist() == arrays["detection_anchor_indices"][0].tolist()
    assert_close(yxyx(found.boxes) / scale, arrays["detection_boxes"][0], 1e-4, 1e-3)
    assert_close(found.to_tf()["detection_multiclass_scores"], arrays["detection_multiclass_scores"][0], 1e-4, 1e-3)
