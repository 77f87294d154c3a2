"""`benchmarks/small_data.py` on data that are made up, and its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import small_data, small_data_models
from benchmarks.small_data_models import CONTENDERS, Ours, Samples
from benchmarks.small_data_table import table

from boxwright.data.shapes import ShapesDataset
from boxwright.types import Array, Detections, Sample


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> Samples:
    monkeypatch.setattr(small_data_models, "SIDE", 96)
    made = ShapesDataset(9, seed=1, size=(96, 128))
    return Samples("shapes", made.categories, [made[number] for number in range(9)])


def perfect(sample: Sample, data: Samples) -> Detections[Array]:
    count = len(sample.labels)
    return Detections(
        boxes=sample.boxes,
        scores=np.linspace(1, 0.5, count, dtype=np.float32),
        labels=sample.labels,
        image_size=sample.image.shape[:2],
        categories=data.categories,
    )


def test_perfect_detections(shapes: Samples) -> None:
    judged = small_data.judge([perfect(sample, shapes) for sample in shapes.samples], shapes)
    assert judged == {"AP": 1.0, "AP interval": [1.0, 1.0], "AP50": 1.0}


def test_half_of_the_images(shapes: Samples) -> None:
    """The interval holds AP, which both metrics compute alike."""
    found = [perfect(sample, shapes) for sample in shapes.samples]
    found[::2] = [one.first(0) for one in found[::2]]
    judged = small_data.judge(found, shapes)
    low, high = judged["AP interval"]
    assert 0 < low < judged["AP"] < high < 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FPNLite", "RefineDet", "D-FINE-N", "torchvision SSDLite"])
def test_two_steps(name: str, shapes: Samples, tmp_path: Path) -> None:
    row = small_data.train(name, (shapes, shapes), 2, 0, tmp_path / "weights.pt")
    assert row["steps"] == 2
    assert row["processor seconds"] > 0
    assert 0 <= row["AP"] <= row["AP50"] <= 1
    assert ("AP, constant decay of 0.9999" in row) == (name == "D-FINE-N")
    (costs,) = small_data.sizes_and_speeds([name], shapes, 1, None)
    assert costs["ONNX MB"] == pytest.approx(4e-6 * costs["parameters"], rel=0.25)
    assert 0 < costs["exported ms"]["least"] <= costs["exported ms"]["median"]


@pytest.mark.slow
def test_the_constant_average(shapes: Samples) -> None:
    """By hand: after one step it is 0.9999 times the first weights and 0.0001 times the second."""
    training = CONTENDERS["D-FINE-N"](shapes, 2, 0)
    assert isinstance(training, Ours)
    name, weight = next(iter(training.learner.detector.network.named_parameters()))
    first = weight.detach().clone()
    training.step()
    average = training.detectors()["constant decay of 0.9999"].get_parameter(f"network.{name}")
    torch.testing.assert_close(average.detach(), 0.9999 * first + 0.0001 * weight.detach(), rtol=1e-6, atol=1e-7)


def row(contender: str, seed: int, ap: float) -> dict[str, Any]:
    return {
        "data": "bccd",
        "contender": contender,
        "seed": seed,
        "steps": 7,
        "processor seconds": 90.0,
        "AP": ap,
        "AP interval": [ap - 0.1, ap + 0.1],
        "AP50": ap,
    }


def test_the_table() -> None:
    speed = {
        "contender": "b",
        "eager ms": {"least": 1.0, "median": 2.0},
        "exported ms": {"least": 0.5, "median": 0.75},
        "peak MiB of a step": 99.6,
        "weights MB": 3.0,
        "ONNX MB": 3.1,
    }
    rows = [row("a", 0, 0.2), row("b", 0, 0.3), row("b", 1, 0.5)]
    assert table({"training": rows, "speed": [speed]})[2:] == [
        "| blood cells | b | 1.5 | 7 | 0.400 (0.300 to 0.500, 2 seeds) | 0.200 to 0.600 | 0.400 (0.300 to 0.500, 2 seeds) "
        "| 1.0, 2.0 | 0.5, 0.8 | 100 | 3.0 | 3.1 |",
        "| blood cells | a | 1.5 | 7 | 0.200 | 0.100 to 0.300 | 0.200 |  |  |  |  |  |",
    ]
