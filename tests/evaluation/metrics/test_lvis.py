"""LVIS's metrics against its own package, and worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from boxwright.evaluation.metrics.lvis import LvisMetrics
from boxwright.evaluation.metrics.regions import BOXES, MASKS, ImageMasks, RegionKind
from boxwright.nn.ops.pasted_masks import encode_mask
from boxwright.types import Array, Categories, Category, Detections, Sample

CLASSES = 12
CATEGORIES = Categories(tuple(Category(n, 10 * n + 3, f"class {n}", frequency="rcf"[n % 3]) for n in range(CLASSES)))
SIDE = 160
NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf", "AR@300", "ARs@300", "ARm@300", "ARl@300")
# The package's own.
LOGS = pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated")
Images = list[tuple[Sample, Detections[Array], ImageMasks]]


def filled(boxes: np.ndarray) -> list[Any]:
    """The mask of each box, without a corner."""
    codes = []
    for x0, y0, x1, y1 in np.clip(np.rint(boxes), 0, SIDE).astype(int):
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[y0:y1, x0:x1] = 1
        mask[y0 : (y0 + y1) // 2, x0 : (x0 + x1) // 2] = 0
        codes.append(encode_mask(mask))
    return codes


def made_up(seed: int, most: int = 30) -> Images:
    """Images that list absent and not exhaustively annotated classes; ties of score, and borders of size."""
    random = np.random.default_rng(seed)
    images = []
    for number in range(int(random.integers(4, 16))):
        count, found = int(random.integers(0, 8)), int(random.integers(0, most))
        sides = random.choice((6, 16, 31, 32, 33, 60, 96, 97), (count, 2))
        corners = random.integers(0, 60, (count, 2))
        truth = np.concatenate([corners, corners + sides], 1).astype(np.float32)
        labels = random.integers(0, 5 + number % 7, count)
        near = random.integers(0, max(count, 1), found)
        base = truth[near] if count else np.tile(np.float32([4, 4, 30, 30]), (found, 1))
        boxes = (base + random.integers(-4, 5, (found, 4))).astype(np.float32)
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
        own = labels[near] if count else np.zeros(found, np.int64)
        seen = np.where(random.random(found) < 0.6, own, random.integers(0, CLASSES, found))
        absent = np.setdiff1d(random.choice(CLASSES, 4, replace=False), labels)
        sample = Sample(
            np.zeros((SIDE, SIDE, 0), np.uint8),
            truth,
            labels,
            areas=(sides.prod(1) * random.choice([1.0, 0.75], count)).astype(np.float32),
            negative_labels=absent,
            not_exhaustive_labels=np.unique(random.choice(labels, 2)) if count else np.zeros(0, np.int64),
            id=str(number),
        )
        scores = (random.integers(1, 40, found) / 40).astype(np.float32)
        images.append((sample, Detections(boxes, scores, seen, (SIDE, SIDE)), ImageMasks(filled(truth), filled(boxes))))
    return images


def by_lvis(images: Images, kind: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    # NumPy's alias, which the package still uses.
    monkeypatch.setattr(np, "float", float, raising=False)
    from lvis import LVIS, LVISEval, LVISResults

    ids = [category.id for category in CATEGORIES]
    truth: Any = LVIS.__new__(LVIS)
    annotations: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    heads = []
    for number, (sample, found, masks) in enumerate(images):
        heads.append(
            {
                "id": number,
                "height": SIDE,
                "width": SIDE,
                "neg_category_ids": [ids[label] for label in sample.negative_labels],
                "not_exhaustive_category_ids": [ids[label] for label in sample.not_exhaustive_labels],
            }
        )
        for row, (box, label) in enumerate(zip(sample.boxes.astype(float), sample.labels, strict=True)):
            area = float(sample.areas[row])
            annotation = {"image_id": number, "category_id": ids[label], "area": area, "bbox": xywh(box)}
            annotations.append({**annotation, "id": len(annotations) + 1, "segmentation": masks.truth[row]})
        for row, (box, label) in enumerate(zip(found.boxes.astype(float), found.labels, strict=True)):
            result = {"image_id": number, "category_id": ids[label], "score": float(found.scores[row])}
            rows.append(
                {**result, **({"bbox": xywh(box)} if kind == "bbox" else {"segmentation": masks.detections[row]})}
            )
    categories = [{"id": one.id, "name": one.name, "frequency": one.frequency} for one in CATEGORIES]
    truth.dataset = {"images": heads, "annotations": annotations, "categories": categories}
    truth.logger = __import__("logging").getLogger("lvis")
    truth._create_index()
    evaluation = LVISEval(truth, LVISResults(truth, rows), kind)
    evaluation.run()
    return [float(evaluation.results[name]) for name in NAMES]


def xywh(box: np.ndarray) -> list[float]:
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]


def ours(images: Images, kind: RegionKind) -> dict[str, float]:
    metrics = LvisMetrics(CATEGORIES, kind=kind)
    for sample, found, masks in images:
        metrics.add(sample, found, masks)
    return metrics.compute().values


@pytest.mark.slow_except("1-boxes", "0-masks", "3-masks")
@LOGS
@pytest.mark.parametrize("kind", [BOXES, MASKS], ids=["boxes", "masks"])
@pytest.mark.parametrize("seed", range(6))
def test_equals_its_own_package(seed: int, kind: RegionKind, monkeypatch: pytest.MonkeyPatch) -> None:
    images = made_up(seed)
    found = ours(images, kind)
    assert list(found) == [f"Detection{kind.name}_{name}" for name in NAMES]
    expected = by_lvis(images, {"Boxes": "bbox", "Masks": "segm"}[kind.name], monkeypatch)
    assert list(found.values()) == pytest.approx(expected, abs=1e-9)


@LOGS
def test_an_image_keeps_its_300_best_of_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    images = made_up(3, most=900)
    assert any(len(found) > 300 for _, found, _ in images)
    assert list(ours(images, BOXES).values()) == pytest.approx(by_lvis(images, "bbox", monkeypatch), abs=1e-9)


TRUTH = Sample(np.zeros((SIDE, SIDE, 0), np.uint8), np.array([[0, 0, 40, 40]]), np.array([0]))


def detections(*rows: tuple[list[float], float, int]) -> Detections[Array]:
    boxes, scores, labels = zip(*rows, strict=True)
    return Detections(np.float32(boxes), np.float32(scores), np.array(labels, np.int64), (SIDE, SIDE))


@pytest.mark.parametrize(
    ("lists", "wrong", "expected"),
    [
        # Class 0 is the only one with an object; its wrong detection comes first: precision 1 / 2 at its only recall.
        ({}, 0, 0.5),
        # Not all objects of class 0 are annotated: what finds none may be right.
        ({"not_exhaustive_labels": np.array([0])}, 0, 1.0),
        # A class that nobody looked for says nothing, nor does one that is absent, of which no image has an object.
        ({}, 1, 1.0),
        ({"negative_labels": np.array([1])}, 1, 1.0),
    ],
)
def test_by_hand(lists: dict[str, Any], wrong: int, expected: float) -> None:
    metrics = LvisMetrics(CATEGORIES, by_category=True)
    metrics.add(replace(TRUTH, **lists), detections(([80, 80, 120, 120], 0.9, wrong), ([0, 0, 40, 40], 0.5, 0)))
    found = metrics.compute().values
    assert found["DetectionBoxes_AP"] == pytest.approx(expected)
    assert found["DetectionBoxes_APr"] == pytest.approx(expected)
    assert found["DetectionBoxes_APc"] == found["DetectionBoxes_APf"] == found["DetectionBoxes_APl"] == -1
    assert found["DetectionBoxes_PerformanceByCategory/mAP/class 0"] == pytest.approx(expected)
    assert found["DetectionBoxes_PerformanceByCategory/mAP/class 1"] == -1


@pytest.mark.parametrize(("listed", "expected"), [([], 1.0), ([0], 0.5)])
def test_detections_of_an_absent_class_are_wrong(listed: list[int], expected: float) -> None:
    """Two images: class 0 is found in the first with 0.5, and wrongly in the second with 0.9."""
    metrics = LvisMetrics(CATEGORIES)
    metrics.add(TRUTH, detections(([0, 0, 40, 40], 0.5, 0)))
    second = replace(TRUTH, labels=np.array([1]), negative_labels=np.array(listed, np.int64))
    metrics.add(second, detections(([80, 80, 120, 120], 0.9, 0), ([0, 0, 40, 40], 0.9, 1)))
    # Class 1 is found perfectly: the mean of 1 and the other class's.
    assert metrics.compute().values["DetectionBoxes_AP"] == pytest.approx((1 + expected) / 2)


def test_what_is_said_of_data_that_are_not_lvis() -> None:
    plain = Categories((Category(0, 1, "cell"),))
    metrics = LvisMetrics(plain)
    metrics.add(TRUTH, detections(([0, 0, 40, 40], 0.5, 0)))
    result = metrics.compute()
    assert result.values["DetectionBoxes_AP"] == 1
    first, second = result.notes
    assert first.startswith("no image lists classes that are absent")
    assert second.startswith("no class is rare or common or frequent")
    empty = LvisMetrics(plain).compute()
    assert set(empty.values.values()) == {-1}
    assert empty.notes[0] == "LVIS's AP is -1: none of the 0 images has an object"
