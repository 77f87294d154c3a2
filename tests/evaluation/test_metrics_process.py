"""Metrics of another process: the same numbers, whatever the metric; its errors, and its death."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import boxwright as bw
from boxwright.evaluation import summary
from boxwright.evaluation.build import _METRICS, EvaluationPlan, build_evaluation
from boxwright.evaluation.images import EvaluatedImage
from boxwright.evaluation.metrics.regions import ImageMasks
from boxwright.evaluation.summary import summarize, summarize_in_process
from boxwright.nn.ops.pasted_masks import encode_mask
from boxwright.pipeline import messages as m
from boxwright.types import Categories, Category, Detections, Sample

CATEGORIES = Categories((Category(0, 1, "cat"), Category(1, 2, "dog")))
BOXES = np.array([[2, 2, 10, 12], [20, 4, 30, 18]], np.float32)


def found_all(count: int) -> list[EvaluatedImage]:
    """Images of a cat and a dog, both found where they are; the dog takes itself for a cat in every fourth image."""
    mask = np.zeros((32, 32), np.uint8)
    mask[4:18, 20:30] = 1
    masks = ImageMasks(*([encode_mask(mask.T), encode_mask(mask)],) * 2)
    parts = []
    for index in range(count):
        labels = np.array([0, 1 if index % 4 else 0])
        scores = np.array([0.9, 0.8], np.float32)
        sample = Sample(np.zeros((32, 32, 0), np.uint8), BOXES, np.array([0, 1]), id=str(index))
        found = Detections(BOXES, scores, labels, (32, 32), CATEGORIES)
        picture = np.full((4, 4, 3), index, np.uint8) if index < 2 else None
        parts.append(EvaluatedImage(index, sample, found, {"Loss/total_loss": float(index)}, picture, masks))
    return parts


def with_an_empty_object(part: EvaluatedImage) -> EvaluatedImage:
    """Add an object without any extent, found as such, of which metrics of boxes and of masks think differently."""
    boxes = np.concatenate([BOXES, np.array([[5, 5, 5, 5]], np.float32)])
    sample = Sample(part.sample.image, boxes, np.array([0, 1, 0]), id=part.sample.id)
    scores, labels = np.append(part.detections.scores, np.float32(0.7)), np.append(part.detections.labels, 0)
    found = Detections(boxes, scores, labels, (32, 32), CATEGORIES)
    assert part.masks is not None
    nothing = encode_mask(np.zeros((32, 32), np.uint8))
    masks = ImageMasks([*part.masks.truth, nothing], [*part.masks.detections, nothing])
    return replace(part, sample=sample, detections=found, masks=masks)


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "WORTH_A_PROCESS", 8)


def plan_of(*names: str) -> EvaluationPlan:
    return build_evaluation(m.TrainEvalPipelineConfig(eval_config=m.EvalConfig(metrics_set=list(names))))


@pytest.mark.slow_cases("8")
@pytest.mark.parametrize("count", [7, 8])
def test_numbers(count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Of dogs three in four are found, with nothing wrong among them; the others are wrong cats, the worst of all.

    COCO's average reads precision at 101 recalls: 76 of them (0 to 0.75) are reached by 6 of 8 dogs, or 72 by 5 of 7.
    """
    found = summarize_in_process(found_all(count), plan_of("coco_detection_metrics"), CATEGORIES).result()
    dogs = {7: 72, 8: 76}[count] / 101
    assert found.metrics["DetectionBoxes_Precision/mAP"] == pytest.approx((1 + dogs) / 2)
    assert found.metrics["Loss/total_loss"] == pytest.approx((count - 1) / 2)
    assert {name: picture[0, 0, 0] for name, picture in found.pictures.items()} == {"0": 0, "1": 1}
    assert (found.results, found.notes) == ([], [])
    assert not caplog.records


def test_every_metric_can_be_computed_there(caplog: pytest.LogCaptureFixture) -> None:
    assert len(_METRICS) == 16
    parts, plan = [with_an_empty_object(part) for part in found_all(9)], plan_of(*_METRICS)
    beside, here = summarize_in_process(parts, plan, CATEGORIES).result(), summarize(parts, plan, CATEGORIES)
    assert len(here.metrics) > 40
    np.testing.assert_equal(beside.metrics, here.metrics)
    assert beside.notes == here.notes
    assert not caplog.records


def test_what_lies_in_the_working_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("numpy", "boxwright", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    parts = found_all(8)
    assert summarize_in_process(parts, plan_of("coco_detection_metrics"), CATEGORIES).result().metrics
    assert not caplog.records


@pytest.mark.parametrize("count", [4, 9])
def test_an_error_is_the_callers(count: int) -> None:
    parts = [replace(part, masks=None) for part in found_all(count)]
    with pytest.raises(bw.DataError, match="its objects have no masks"):
        summarize_in_process(parts, plan_of("coco_mask_metrics"), CATEGORIES).result()


@pytest.mark.parametrize(
    ("interpreter", "said"),
    [("/nowhere/python", "No such file"), ("/bin/false", "exit status 1"), ("/bin/true", "Ran out of input")],
)
def test_where_the_other_process_fails(
    interpreter: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", interpreter)
    parts, plan = found_all(8), plan_of("pascal_voc_detection_metrics")
    found = summarize_in_process(parts, plan, CATEGORIES).result()
    assert found.metrics == summarize(parts, plan, CATEGORIES).metrics
    assert said in caplog.text
    assert "computed in this process" in caplog.text
