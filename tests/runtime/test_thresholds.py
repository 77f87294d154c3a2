"""Thresholds of each class, for one model: applied to what predict and serve find, refused for another model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError, DataError
from boxwright.inference.detect_functions import ModelSource, apply_settings
from boxwright.inference.serving.model import ServedModel
from boxwright.inference.serving.settings import ServerSettings
from boxwright.inference.settings import PredictionSettings
from boxwright.runtime.thresholds import (
    Thresholds,
    above_thresholds,
    outputs_above,
    read_thresholds,
    require_same_model,
)
from boxwright.types import Categories, Category, Detections
from boxwright.weights import exports
from tests.exporters.tiny_exports import ABOUT, copied_export

CLASSES = Categories((Category(0, 1, "cat"), Category(2, 3, "dog")))
GIVEN = Thresholds("a" * 64, 0.5, {"dog": 0.25}, ("cat", "dog"))


def written(path: Path, **changes: Any) -> Path:
    content = json.loads(GIVEN.to_json()) | changes
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    return path


def test_a_file_returns_and_applies_to_each_class(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.json"
    path.write_text(GIVEN.to_json(chosen_by="F1"))
    assert read_thresholds(path) == GIVEN
    limits = require_same_model(GIVEN, path, "a" * 64, CLASSES)
    np.testing.assert_array_equal(limits, [0.5, 0.5, 0.25])
    scores = np.array([0.6, 0.5, 0.4, 0.3], np.float32)
    found = Detections(np.zeros((4, 4), np.float32), scores, np.array([2, 0, 0, 2]), (9, 9))
    assert above_thresholds(found, limits).scores.tolist() == pytest.approx([0.6, 0.5, 0.3])


def test_outputs_keep_their_shape_and_close_up() -> None:
    """Of the third row, which is padding, nothing is kept, whatever it holds."""
    outputs: dict[str, NDArray[np.float32]] = {
        "num_detections": np.array([3.0, 1.0], np.float32),
        "detection_scores": np.array([[0.6, 0.4, 0.3, 0.9], [0.2, 0.9, 0.9, 0.9]], np.float32),
        "detection_classes": np.array([[1, 1, 3, 1], [3, 1, 1, 1]], np.float32),
        "detection_boxes": np.arange(32, dtype=np.float32).reshape(2, 4, 4),
        "raw_detection_scores": np.ones((2, 4, 4), np.float32),
    }
    kept = outputs_above(outputs, np.array([0.5, 0.5, 0.25]))
    assert kept["num_detections"].tolist() == [2, 0]
    np.testing.assert_allclose(kept["detection_scores"], [[0.6, 0.3, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(kept["detection_boxes"][0, 1], outputs["detection_boxes"][0, 2])
    assert not kept["detection_boxes"][1].any()
    assert kept["raw_detection_scores"].all()
    assert all(kept[name].dtype == np.float32 and kept[name].shape == outputs[name].shape for name in outputs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 9}, "expected the thresholds.json"),
        ({"classes": None}, "expected by_class, names to numbers, and a list of classes"),
        ({"threshold": 1.5}, "threshold: expected a number from 0 to 1, found 1.5"),
        ({"by_class": {"cat": "high"}}, "cat: expected a number from 0 to 1, found high"),
    ],
)
def test_a_malformed_file(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_thresholds(written(tmp_path / "t.json", **changes))
    (tmp_path / "t.json").write_text("[")
    with pytest.raises(DataError, match="not JSON"):
        read_thresholds(tmp_path / "t.json")


@pytest.mark.parametrize(
    ("digest", "classes", "message"),
    [
        ("b" * 64, CLASSES, "a model of other weights"),
        ("a" * 64, Categories((Category(0, 1, "cat"),)), "a model of other classes"),
        ("a" * 64, None, "a model of other classes"),
    ],
)
def test_another_model(digest: str, classes: Categories | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        require_same_model(GIVEN, "t.json", digest, classes)
    with pytest.raises(DataError, match="of an unknown model"):
        require_same_model(Thresholds("", 0.5, {}, ("cat", "dog")), "t.json", digest, classes)


def test_predict_and_serve(tmp_path: Path) -> None:
    """The model finds two circles, at the mean of red and of green; a threshold between keeps the better one."""
    path = copied_export(".onnx", tmp_path)
    picture = np.full((8, 6, 3), (200, 100, 0), np.uint8)
    plain = ModelSource(path, PredictionSettings(min_score=0)).open().detect([picture])[0]
    high, low = sorted(plain.scores.tolist(), reverse=True)
    assert high > low
    between = (high + low) / 2
    names = [category["name"] for category in ABOUT.categories]
    file = written(
        tmp_path / "t.json", weights_sha256=ABOUT.weights_sha256, classes=names, by_class={"circle": between}
    )
    settings = PredictionSettings(thresholds=str(file))
    found = apply_settings(ModelSource(path, settings).open().detect, settings)([picture])[0]
    assert found.scores.tolist() == pytest.approx([high])

    model = ServedModel(path, "d", ServerSettings(batch_wait_ms=0, thresholds=str(file)), opener=exports.__name__)
    try:
        (answer,) = model.current.batcher.submit([picture], 60)
        assert float(answer.result(60)["num_detections"]) == 1
    finally:
        model.close()

    other = written(tmp_path / "o.json", classes=names)
    with pytest.raises(DataError, match="other weights"):
        ModelSource(path, PredictionSettings(thresholds=str(other))).open()
    with pytest.raises(DataError, match="other weights"):
        ServedModel(path, "d", ServerSettings(thresholds=str(other)), opener=exports.__name__)
    with pytest.raises(ConfigError, match="--track takes --min_score"):
        PredictionSettings(thresholds=str(file), track=True)
