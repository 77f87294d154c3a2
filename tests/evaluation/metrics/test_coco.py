from __future__ import annotations

import contextlib
import io
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from boxwright.evaluation.metrics.coco import CocoMetrics, PerCategoryMetrics, verified_or_all
from boxwright.evaluation.metrics.coco_matching import are_known
from boxwright.evaluation.metrics.metric import verified_or_present
from boxwright.evaluation.metrics.pascal import PascalMetrics
from boxwright.types import Array, Categories, Category, Detections, Sample
from tests.conftest import found_objects

CATEGORIES = Categories(tuple(Category(n, n + 1, f"class {n}") for n in range(3)))
SIDES = (4, 8, 16, 31, 32, 33, 90, 96, 97, 120)


def random_images(seed: int) -> list[tuple[Sample, Detections[Array]]]:
    """Draw images with crowds, ties of score and overlap, empty images, and boxes at the borders of size."""
    rng = np.random.default_rng(seed)
    images = []
    for _ in range(rng.integers(1, 12)):
        count, found = rng.integers(0, 7), rng.integers(0, 15)
        corners, sides = rng.integers(0, 60, (count, 2)), rng.choice(SIDES, (count, 2))
        truth = np.concatenate([corners, corners + sides], 1).astype(np.float32)
        base = truth[rng.integers(0, count, found)] if count else np.tile(np.float32([0, 0, 9, 9]), (found, 1))
        boxes = base + rng.integers(-3, 4, (found, 4)) * rng.choice([0, 0.5, 1, 2])
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2])
        sample = Sample(
            np.zeros((1, 1, 3), np.uint8),
            truth,
            rng.integers(0, 3, count),
            is_crowd=rng.random(count) < 0.2,
            areas=(sides.prod(1) * rng.choice([1.0, 0.5], count)).astype(np.float32),
        )
        scores = torch.from_numpy(rng.integers(0, 8, found).astype(np.float32) / 8)
        labels = torch.from_numpy(rng.integers(0, 3, found))
        images.append((sample, found_objects(torch.from_numpy(boxes.astype(np.float32)), scores, labels, (1, 1))))
    return images


def by_pycocotools(images: list[tuple[Sample, Detections[Array]]]) -> list[float]:
    truth, rows = COCO(), []
    truth.dataset = {"images": [], "annotations": [], "categories": [{"id": c.label} for c in CATEGORIES]}

    def sides(box: np.ndarray) -> list[float]:
        left, top, right, bottom = (float(value) for value in box)
        return [left, top, right - left, bottom - top]

    for number, (sample, found) in enumerate(images):
        truth.dataset["images"].append({"id": number})
        for row, box in enumerate(sample.boxes):
            truth.dataset["annotations"].append(
                {
                    "id": len(truth.dataset["annotations"]) + 1,
                    "image_id": number,
                    "category_id": int(sample.labels[row]),
                    "bbox": sides(box),
                    "area": float(sample.areas[row]),
                    "iscrowd": int(sample.is_crowd[row]),
                }
            )
        for box, score, label in zip(found.boxes, found.scores.tolist(), found.labels.tolist(), strict=True):
            xywh = sides(box)
            row = {"image_id": number, "category_id": label, "bbox": xywh, "score": score, "iscrowd": 0}
            rows.append({**row, "id": len(rows) + 1, "area": xywh[2] * xywh[3]})
    results = COCO()
    results.dataset = {**truth.dataset, "annotations": rows}
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        results.createIndex()
        evaluator = COCOeval(truth, results, "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return [float(value) for value in evaluator.stats]


# Fewer where time is short; `make test-all` sets BOXWRIGHT_DRAWS.
@settings(max_examples=60 if "BOXWRIGHT_DRAWS" in os.environ else 25, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_equals_pycocotools(seed: int) -> None:
    images = random_images(seed)
    metrics = CocoMetrics(CATEGORIES)
    for sample, detections in images:
        metrics.add(sample, detections)
    assert list(metrics.compute().values.values()) == pytest.approx(by_pycocotools(images), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "count", [600, pytest.param(5_000, marks=pytest.mark.slow), pytest.param(20_000, marks=pytest.mark.slow)]
)
def test_equals_pycocotools_on_many_images(count: int) -> None:
    images = [image for seed in range(count) for image in random_images(seed)[:1]]
    metrics = CocoMetrics(CATEGORIES)
    for sample, detections in images:
        metrics.add(sample, detections)
    assert list(metrics.compute().values.values()) == pytest.approx(by_pycocotools(images), abs=1e-9)


def test_curves_stay_when_images_are_added() -> None:
    first, second = random_images(7), random_images(11)
    metrics = CocoMetrics(CATEGORIES)
    for sample, detections in first:
        metrics.add(sample, detections)
    curves = metrics.compute().curves
    before = [(one.category, one.gains.tolist(), one.recall.tolist()) for one in curves]
    for sample, detections in second:
        metrics.add(sample, detections)
    assert [(one.category, one.gains.tolist(), one.recall.tolist()) for one in curves] == before
    assert list(metrics.compute().values.values()) == pytest.approx(by_pycocotools(first + second), abs=1e-9)


def test_categories_average_to_the_whole() -> None:
    metrics = CocoMetrics(CATEGORIES, by_category=PerCategoryMetrics())
    for sample, detections in random_images(7):
        metrics.add(sample, detections)
    found = metrics.compute().values
    each = [value for name, value in found.items() if "PerformanceByCategory" in name]
    assert len(each) == 3
    known = [value for value in each if value >= 0]
    assert np.mean(known) == pytest.approx(found["DetectionBoxes_Precision/mAP"], abs=1e-9)


def test_every_metric_of_each_class_is_that_of_the_class_alone() -> None:
    """pycocotools over the objects and detections of one class, under TF's names."""
    images = random_images(11)
    metrics = CocoMetrics(CATEGORIES, by_category=PerCategoryMetrics(every=True))
    for sample, detections in images:
        metrics.add(sample, detections)
    found = metrics.compute().values
    names = ("Precision mAP", "Precision mAP@.50IOU", "Precision mAP@.75IOU")
    names += tuple(f"Precision mAP ({size})" for size in ("small", "medium", "large"))
    names += ("Recall AR@1", "Recall AR@10", "Recall AR@100")
    names += tuple(f"Recall AR@100 ({size})" for size in ("small", "medium", "large"))
    for category in CATEGORIES:
        alone = [
            (sample.keep(sample.labels == category.label), rows.select(rows.labels == category.label))
            for sample, rows in images
        ]
        expected = by_pycocotools(alone)
        ours = [found[f"DetectionBoxes_{name} ByCategory/{category.name}"] for name in names]
        assert ours == pytest.approx(expected, abs=1e-9)
    assert len(found) == 12 + 3 * 13


def test_which_labels_are_known() -> None:
    known = np.array([1, 4, 5], np.int64)
    labels = np.array([0, 1, 2, 4, 5, 9, 1], np.int64)
    assert are_known(labels, known).tolist() == [False, True, False, True, True, False, True]
    assert are_known(labels, known[:0]).tolist() == [False] * 7
    assert are_known(labels[:0], known).tolist() == []


def test_groups_of_classes_have_the_mean_of_their_known_classes() -> None:
    first, second, third = (category.name for category in CATEGORIES)
    groups = {"two": [first, second], "three": [first, second, third], "unknown": ["nobody"]}
    metrics = CocoMetrics(CATEGORIES, by_category=PerCategoryMetrics(groups=groups))
    for sample, detections in random_images(7):
        metrics.add(sample, detections)
    found = metrics.compute().values
    maps = {name: found[f"DetectionBoxes_PerformanceByCategory/mAP/{name}"] for name in (first, second, third)}
    for group in ("two", "three"):
        known = [maps[name] for name in groups[group] if maps[name] >= 0]
        assert found[f"DetectionBoxes_PerformanceBySuperCategory/{group}"] == pytest.approx(np.mean(known))
    assert found["DetectionBoxes_PerformanceBySuperCategory/unknown"] == -1


@pytest.mark.parametrize(
    ("labeled", "verified", "expected"),
    [
        (None, [], 0.5),
        (verified_or_all, [], 0.5),
        (verified_or_present, [], 1.0),
        (verified_or_all, [2], 1.0),
        (verified_or_all, [1], 0.5),
    ],
)
def test_detections_of_classes_that_were_not_verified(labeled: Any, verified: list[int], expected: float) -> None:
    """The first image has class 1, found with 0.5; the second has class 0 and a detection of class 1 with 0.9.

    Where that counts, precision of class 1 is 1 / 2 at its only recall; class 0 is found in the second.
    """

    def image(label: int, verified: list[int]) -> Sample:
        return replace(TRUTH, labels=np.array([label]), verified_labels=np.array(verified, np.int64))

    metrics = CocoMetrics(CATEGORIES, by_category=PerCategoryMetrics(), labeled=labeled)
    metrics.add(image(1, [1]), one([[0, 0, 20, 20]], [0.5], 1))
    metrics.add(image(0, verified), one([[30, 30, 40, 40]], [0.9], 1))
    name = "DetectionBoxes_PerformanceByCategory/mAP/class 1"
    assert metrics.compute().values[name] == pytest.approx(expected)


def one(boxes: list[list[float]], scores: list[float], label: int = 0) -> Detections[Array]:
    labels = torch.full((len(boxes),), label, dtype=torch.int64)
    return found_objects(torch.tensor(boxes).reshape(-1, 4), torch.tensor(scores), labels, (50, 50))


TRUTH = Sample(np.zeros((50, 50, 3), np.uint8), np.array([[0, 0, 20, 20]]), np.array([0]))


def test_perfect_and_why_not() -> None:
    metrics = CocoMetrics(CATEGORIES)
    metrics.add(TRUTH, one([[0, 0, 20, 20]], [0.9]))
    values = metrics.compute().values
    assert values["DetectionBoxes_Precision/mAP"] == pytest.approx(1)
    assert values["DetectionBoxes_Precision/mAP (large)"] == -1
    assert metrics.compute().notes == []


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
def test_zero_and_minus_one_are_explained(sample: Sample, found: Detections[Array], value: float, wanted: str) -> None:
    metrics = CocoMetrics(CATEGORIES)
    metrics.add(sample, found)
    values = metrics.compute().values
    assert values["DetectionBoxes_Precision/mAP"] == value
    (line,) = metrics.compute().notes
    assert wanted in line


def test_curves_are_what_the_values_are_made_of() -> None:
    """Two objects of one class; the better detection misses, the second finds one: precision 0, then 1/2."""
    boxes = np.array([[0, 0, 40, 40], [50, 50, 90, 90]], np.float32)
    sample = Sample(np.zeros((100, 100, 3), np.uint8), boxes, np.zeros(2, np.int64))
    found = found_objects(
        torch.tensor([[0.0, 60, 30, 90], [50, 50, 90, 90]]),
        torch.tensor([0.9, 0.6]),
        torch.zeros(2, dtype=torch.int64),
        (100, 100),
    )
    categories = Categories((Category(0, 1, "cell"), Category(1, 2, "none")))
    for metrics in (CocoMetrics(categories), PascalMetrics(categories)):
        metrics.add(sample, found)
        result = metrics.compute()
        assert {curve.category for curve in result.curves} == {"cell"}
        curve = next(curve for curve in result.curves if curve.iou_threshold == 0.5)
        assert curve.objects == 2
        assert curve.scores.tolist() == pytest.approx([0.9, 0.6])
        assert curve.gains.tolist() == [0, 1]
        assert curve.precision.tolist() == [0, 0.5]
        assert curve.recall.tolist() == [0, 0.5]
    assert len(CocoMetrics(categories).compute().curves) == 0


@pytest.mark.slow_cases("CocoMetrics")
@pytest.mark.parametrize("make", [CocoMetrics, PascalMetrics])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_matches_lead_back_to_images(make: type[CocoMetrics | PascalMetrics], seed: int) -> None:
    """Each detection of a curve is found in its image; what it found overlaps it, is of its class, and is found once."""
    images = random_images(seed)
    metrics = make(CATEGORIES)
    for sample, found in images:
        metrics.add(sample, found)
    for curve in metrics.compute().curves:
        matches, label = curve.matches, next(c.label for c in CATEGORIES if c.name == curve.category)
        assert len(matches.images) == len(matches.detections) == len(matches.objects) == len(curve.scores)
        seen = set()
        for number, which, what, score, gain in zip(
            matches.images, matches.detections, matches.objects, curve.scores, curve.gains, strict=True
        ):
            sample, found = images[number]
            assert (found.scores[which], found.labels[which]) == (score, label)
            assert (what >= 0) == (gain == 1)
            if gain == 1:
                assert sample.labels[what] == label
                box, truth = found.boxes[which].astype(np.float64), sample.boxes[what].astype(np.float64)
                sides = np.maximum(np.minimum(box[2:], truth[2:]) - np.maximum(box[:2], truth[:2]), 0)
                union = (box[2:] - box[:2]).prod() + (truth[2:] - truth[:2]).prod() - sides.prod()
                assert sides.prod() / union >= curve.iou_threshold - 1e-9
                assert (number, what) not in seen
                seen.add((number, what))


def test_matches_by_hand() -> None:
    """Second image: detection 1 finds object 2, detection 0 finds nothing; detection 2 is of another class."""
    categories = Categories((Category(0, 1, "cell"), Category(1, 2, "rod")))
    far, near, other = [50.0, 50, 90, 90], [0.0, 0, 40, 40], [0.0, 50, 40, 90]
    empty = Sample(np.zeros((9, 9, 3), np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    sample = Sample(
        np.zeros((100, 100, 3), np.uint8), np.array([other, near, far], np.float32), np.array([1, 0, 0], np.int64)
    )
    boxes = torch.tensor([[60.0, 0, 90, 30], far, other])
    found = found_objects(boxes, torch.tensor([0.3, 0.6, 0.9]), torch.tensor([0, 0, 1]), (100, 100))
    nothing = found_objects(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64), (9, 9))
    for metrics in (CocoMetrics(categories), PascalMetrics(categories)):
        metrics.add(empty, nothing)
        metrics.add(sample, found)
        cell, rod = (c for c in metrics.compute().curves if c.iou_threshold == 0.5)
        assert cell.matches.images.tolist() == [1, 1]
        assert cell.matches.detections.tolist() == [1, 0]
        assert cell.matches.objects.tolist() == [2, -1]
        assert (rod.matches.detections.tolist(), rod.matches.objects.tolist()) == ([2], [0])
