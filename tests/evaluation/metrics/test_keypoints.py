"""COCO's keypoint metrics against pycocotools."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from boxwright.base.errors import ConfigError, DataError
from boxwright.evaluation.metrics.keypoints import DEFAULT_SIGMA, CocoKeypointMetrics
from boxwright.types import Array, Categories, Category, Detections, Sample

POINTS = ("nose", "hand", "foot")
SIGMAS = {"nose": 0.1, "foot": 0.3}
# The person's keypoints are the first, third and fourth of all that there are; the dog has the second.
PERSON = Category(1, 2, "person", keypoints=POINTS, keypoint_ids=(0, 2, 3))
CATEGORIES = Categories((Category(0, 1, "dog", keypoints=("tail",), keypoint_ids=(1,)), PERSON))
NAMES = ("Precision/mAP", "Precision/mAP@.50IOU", "Precision/mAP@.75IOU", "Precision/mAP (medium)")
NAMES += ("Precision/mAP (large)", "Recall/AR@1", "Recall/AR@10", "Recall/AR@100")
NAMES += ("Recall/AR@100 (medium)", "Recall/AR@100 (large)")


def random_images(seed: int) -> list[tuple[Sample, Detections[Array]]]:
    rng = np.random.default_rng(seed)
    images = []
    for number in range(int(rng.integers(1, 5))):
        count, found = int(rng.integers(0, 5)), int(rng.integers(0, 26))
        corners = rng.uniform(0, 100, (count, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(5, 150, (count, 2))], 1).astype(np.float32)
        points = np.concatenate(
            [boxes[:, None, :2] + rng.uniform(0, 60, (count, 4, 2)), rng.integers(0, 2, (count, 4, 1))], -1
        )
        points[rng.random(count) < 0.2, :, 2] = 0
        sample = Sample(
            np.zeros((300, 300, 3), np.uint8),
            boxes,
            rng.integers(0, 2, count),
            is_crowd=rng.random(count) < 0.2,
            areas=rng.uniform(100, 20000, count).astype(np.float32),
            keypoints=points.astype(np.float32),
            id=str(number),
        )
        near = np.zeros((found, 4, 2)) + rng.uniform(0, 200, (found, 1, 2)) + rng.uniform(0, 90, (found, 4, 2))
        for row in range(min(found, count)):
            near[row] = sample.keypoints[row, :, :2] + rng.normal(0, 8, (4, 2)) if sample.keypoints is not None else 0
        scores = np.round(rng.random(found), 1).astype(np.float32)
        detections = Detections(
            np.zeros((found, 4), np.float32),
            scores,
            rng.integers(0, 2, found),
            (300, 300),
            keypoints=near.astype(np.float32),
        )
        images.append((sample, detections))
    return images


def by_pycocotools(images: list[tuple[Sample, Detections[Array]]]) -> list[float]:
    truth, results, rows = COCO(), COCO(), []
    truth.dataset = {"images": [], "annotations": [], "categories": [{"id": 1}]}
    chosen = list(PERSON.keypoint_indices)
    for number, (sample, found) in enumerate(images):
        truth.dataset["images"].append({"id": number})
        assert sample.keypoints is not None
        assert found.keypoints is not None
        for row in np.flatnonzero(sample.labels == 1):
            points = sample.keypoints[row, chosen].astype(np.float64)
            points[points[:, 2] == 0] = 0
            box = sample.boxes[row].astype(np.float64)
            truth.dataset["annotations"].append(
                {
                    "id": len(truth.dataset["annotations"]) + 1,
                    "image_id": number,
                    "category_id": 1,
                    "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                    "area": float(sample.areas[row]),
                    "iscrowd": int(sample.is_crowd[row]),
                    "keypoints": points.flatten().tolist(),
                    "num_keypoints": int((points[:, 2] > 0).sum()),
                }
            )
        for row in np.flatnonzero(found.labels == 1):
            points = found.keypoints[row, chosen].astype(np.float64)
            three = np.concatenate([points, np.ones((len(points), 1))], 1).flatten().tolist()
            rows.append({"image_id": number, "category_id": 1, "keypoints": three, "score": float(found.scores[row])})
    if not rows:
        rows.append({"image_id": 0, "category_id": 9, "keypoints": [0.0] * 9, "score": 0.0})
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        results = truth.loadRes(rows)
        evaluator = COCOeval(truth, results, "keypoints")
        evaluator.params.kpt_oks_sigmas = np.array([SIGMAS.get(name, DEFAULT_SIGMA) for name in POINTS])
        evaluator.params.catIds = [1]
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return [float(value) for value in evaluator.stats]


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_equals_pycocotools(seed: int) -> None:
    images = random_images(seed)
    metrics = CocoKeypointMetrics(CATEGORIES, "person", SIGMAS)
    for sample, detections in images:
        metrics.add(sample, detections)
    found = metrics.compute().values
    assert list(found) == [f"Keypoints_{name} ByCategory/person" for name in NAMES]
    assert list(found.values()) == pytest.approx(by_pycocotools(images), abs=1e-9)


def test_similarity_by_hand() -> None:
    """A nose 3 pixels off, in an object of 400 square pixels: exp(-9 / (2 · 0.1)² / 400 / 2) = exp(-0.28125)."""
    points = np.array([[[10, 10, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]], np.float32)
    sample = Sample(np.zeros((50, 50, 3), np.uint8), np.array([[0, 0, 20, 20]]), np.array([1]), keypoints=points)
    moved = points[..., :2] + np.array([3, 0], np.float32)
    found = Detections(np.zeros((1, 4), np.float32), np.ones(1, np.float32), np.array([1]), (50, 50), keypoints=moved)
    metrics = CocoKeypointMetrics(CATEGORIES, "person", SIGMAS)
    metrics.add(sample, found)
    values = metrics.compute().values
    # exp(-0.28125) = 0.7548: right at 0.5, 0.55, … 0.75, which are six of ten thresholds.
    assert values["Keypoints_Precision/mAP ByCategory/person"] == pytest.approx(0.6)
    assert values["Keypoints_Recall/AR@100 ByCategory/person"] == 1
    assert values["Keypoints_Precision/mAP (large) ByCategory/person"] == -1


def test_nothing_is_explained() -> None:
    metrics = CocoKeypointMetrics(CATEGORIES, "person", {})
    result = metrics.compute()
    assert set(result.values.values()) == {-1.0}
    assert result.notes == ["keypoint AP is -1: no person in 0 images has keypoints"]


def test_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match=r"class_label: 'cat' is none of the classes \(dog, person\)"):
        CocoKeypointMetrics(CATEGORIES, "cat", {})
    with pytest.raises(ConfigError, match=r"'tail' is none of the keypoints \(nose, hand, foot\)"):
        CocoKeypointMetrics(CATEGORIES, "person", {"tail": 0.1})
    with pytest.raises(ConfigError, match="lists no keypoints of 'car'"):
        CocoKeypointMetrics(Categories((Category(0, 1, "car"),)), "car", {})
    metrics = CocoKeypointMetrics(CATEGORIES, "person", {})
    sample, found = next(one for one in random_images(2) if (one[0].labels == 1).any() and (one[1].labels == 1).any())
    assert sample.keypoints is not None
    with pytest.raises(DataError, match="objects have 2 keypoints, and 'person' needs 4; set num_keypoints"):
        metrics.add(Sample(sample.image, sample.boxes, sample.labels, keypoints=sample.keypoints[:, :2]), found)
    with pytest.raises(DataError, match="the detector predicts no keypoints"):
        metrics.add(sample, Detections(found.boxes, found.scores, found.labels, found.image_size))


def test_the_class_goes_by_its_display_name_too() -> None:
    """TensorFlow's label map of COCO calls a person /m/01g317, its configurations person."""
    coded = Categories((Category(0, 1, "/m/01g317", "person", keypoints=("nose",)),))
    assert CocoKeypointMetrics(coded, "person", {"nose": 0.026}) is not None
    with pytest.raises(ConfigError, match="is none of the classes"):
        CocoKeypointMetrics(coded, "", {})
