from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from boxwright.evaluation.coco_metrics import CocoMetrics
from boxwright.types import Categories, Category, Detections, Sample
from tests.conftest import GOLDEN, xyxy

EXPECTED = json.loads((GOLDEN / "metrics" / "expected.json").read_text())
CATEGORIES = Categories(tuple(Category(c["id"] - 1, c["id"], c["name"]) for c in EXPECTED["categories"]))


def recorded() -> CocoMetrics:
    arrays = np.load(GOLDEN / "metrics" / "inputs.npz")
    images = sorted({int(name.split("/")[0]) for name in arrays.files})
    assert len(images) == 24
    metrics = CocoMetrics(CATEGORIES)
    for image in images:

        def read(name: str, image: int = image) -> np.ndarray:
            return arrays[f"{image}/{name}"]

        sample = Sample(
            np.zeros((1, 1, 3), np.uint8),
            xyxy(read("groundtruth_boxes")).numpy(),
            read("groundtruth_classes") - 1,
            is_crowd=read("groundtruth_is_crowd").astype(bool),
        )
        found = Detections(
            xyxy(read("detection_boxes")),
            torch.from_numpy(read("detection_scores")),
            torch.from_numpy(read("detection_classes")) - 1,
            (1, 1),
        )
        metrics.add(sample, found)
    return metrics


def test_recorded_metrics() -> None:
    found = recorded().compute()
    expected = EXPECTED["metrics"]["coco_detection_metrics"]
    assert set(found) == set(expected)
    assert len(found) == 12
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-9), name


def test_categories_average_to_the_whole() -> None:
    found = recorded().compute(per_category=True)
    each = [value for name, value in found.items() if "PerformanceByCategory" in name]
    assert len(each) == 4
    known = [value for value in each if value >= 0]
    assert np.mean(known) == pytest.approx(found["DetectionBoxes_Precision/mAP"], abs=1e-9)


def one(boxes: list[list[float]], scores: list[float], label: int = 0) -> Detections:
    labels = torch.full((len(boxes),), label, dtype=torch.int64)
    return Detections(torch.tensor(boxes).reshape(-1, 4), torch.tensor(scores), labels, (50, 50))


TRUTH = Sample(np.zeros((50, 50, 3), np.uint8), np.array([[0, 0, 20, 20]]), np.array([0]))


def test_perfect_and_why_not() -> None:
    metrics = CocoMetrics(CATEGORIES)
    metrics.add(TRUTH, one([[0, 0, 20, 20]], [0.9]))
    values = metrics.compute()
    assert values["DetectionBoxes_Precision/mAP"] == pytest.approx(1)
    assert values["DetectionBoxes_Precision/mAP (large)"] == -1
    assert metrics.explain(values) == []


@pytest.mark.parametrize(
    ("sample", "found", "value", "wanted"),
    [
        (
            Sample(np.zeros((9, 9, 3), np.uint8), np.zeros((0, 4)), np.zeros(0)),
            one([[0, 0, 5, 5]], [0.9]),
            -1,
            "none of the 1 images",
        ),
        (TRUTH, one([], []), 0, "no detection scored above"),
        (TRUTH, one([[30, 30, 40, 40]], [0.9]), 0, "overlaps an object of its class"),
        (TRUTH, one([[0, 0, 20, 20]], [0.9], label=1), 0, "overlaps an object of its class"),
    ],
)
def test_zero_and_minus_one_are_explained(sample: Sample, found: Detections, value: float, wanted: str) -> None:
    metrics = CocoMetrics(CATEGORIES)
    metrics.add(sample, found)
    values = metrics.compute()
    assert values["DetectionBoxes_Precision/mAP"] == value
    (line,) = metrics.explain(values)
    assert wanted in line
