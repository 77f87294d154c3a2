"""WIDER FACE's measure: worked by hand, and against a slow computation that follows the published rules one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from boxwright.evaluation.metrics.wider_face import WiderFaceMetrics
from boxwright.types import Array, Categories, Category, Detections, Sample
from tests.conftest import found_objects

FACE = Categories((Category(0, 1, "face"),))
KEY = "WiderFaceBoxes_Precision/AP@0.5IOU/"


def sample_of(boxes: list[list[float]], hard: list[int] | None = None, easy: list[int] | None = None) -> Sample:
    """Return an image with faces; `hard` and `easy` say which of them are in those subsets."""
    count, names, columns = len(boxes), [], []
    for name, chosen in (("easy", easy), ("hard", hard)):
        if chosen is not None:
            names.append(name)
            columns.append([int(number in chosen) for number in range(count)])
    return Sample(
        image=np.zeros((100, 100, 3), np.uint8),
        boxes=np.array(boxes, np.float32).reshape(-1, 4),
        labels=np.zeros(count, np.int64),
        attributes=np.array(columns, np.int64).T.reshape(count, len(names)) if names else None,
        attribute_names=tuple(names),
    )


def found_of(rows: list[tuple[list[float], float]]) -> Detections[Array]:
    boxes = torch.tensor([box for box, _ in rows]).reshape(-1, 4)
    scores = torch.tensor([score for _, score in rows])
    return found_objects(boxes, scores, torch.zeros(len(rows), dtype=torch.int64), (100, 100))


A, B, C = [0.0, 0, 10, 10], [20.0, 20, 40, 40], [60.0, 60, 70, 70]
FAR = [80.0, 0, 90, 10]


def measure(*images: tuple[Sample, Detections[Array]]) -> dict[str, float]:
    metrics = WiderFaceMetrics(FACE)
    for sample, found in images:
        metrics.add(sample, found)
    return {name.removeprefix(KEY): value for name, value in metrics.compute().values.items()}


def test_all_found_and_nothing_else() -> None:
    image = sample_of([A, B], hard=[0, 1], easy=[1])
    assert measure((image, found_of([(A, 0.9), (B, 0.5)]))) == {"easy": pytest.approx(1), "hard": pytest.approx(1)}


def test_a_face_that_is_not_in_the_subset_is_ignored_with_its_detections() -> None:
    """On easy ones only B counts: what found A is neither right nor wrong, however often it did."""
    image = sample_of([A, B], hard=[0, 1], easy=[1])
    found = measure((image, found_of([(A, 0.9), (A, 0.8), (B, 0.5)])))
    assert found["easy"] == pytest.approx(1)
    # On hard ones the second detection of A is wrong: precision 1 up to recall 1/2, then 2/3.
    assert found["hard"] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)


def test_wrong_detections_by_hand() -> None:
    """Best first: wrong, right, wrong, right of three faces: 1/2 at recall 1/3, 2/4 at 2/3; the third is not found."""
    image = sample_of([A, B, C], hard=[0, 1, 2])
    rows = [(FAR, 0.9), (A, 0.8), (FAR, 0.7), (B, 0.6)]
    assert measure((image, found_of(rows)))["hard"] == pytest.approx(2 / 3 * 0.5)


def test_scores_are_spread_over_the_whole_set() -> None:
    """Between 0.50 and 0.51 all happens between two of 1000 thresholds, unless scores are spread."""
    image = sample_of([A, B], hard=[0, 1])
    wide = measure((image, found_of([(FAR, 0.9), (A, 0.5), (B, 0.1)])))
    narrow = measure((image, found_of([(FAR, 0.5001), (A, 0.50005), (B, 0.5)])))
    assert narrow["hard"] == pytest.approx(wide["hard"])
    # What lies between two thresholds comes together: right and wrong at once.
    together = measure((image, found_of([(FAR, 0.90001), (A, 0.9), (B, 0.1)])))
    assert together["hard"] == pytest.approx(2 / 3)


def test_an_image_without_faces_counts_nothing() -> None:
    """So the tool does it: what is found there is not wrong."""
    image, empty = sample_of([A], hard=[0]), sample_of([], hard=[])
    assert measure((image, found_of([(A, 0.5)])), (empty, found_of([(B, 0.9)])))["hard"] == pytest.approx(1)


def test_boxes_are_compared_a_pixel_larger() -> None:
    """8 of 16 pixels overlap by half already without: 2 × 4 in 4 × 4; of 1 × 3 and 2 × 3 it is (2 × 4) ÷ (3 × 4)."""
    image = sample_of([[0.0, 0, 2, 3]], hard=[0])
    assert measure((image, found_of([([0.0, 0, 1, 3], 0.5)])))["hard"] == pytest.approx(1)
    image = sample_of([[0.0, 0, 10, 10]], hard=[0])
    # 4.4 of 10 columns: 5.4 ÷ 11 is less than half; of 4.6 5.6 ÷ 11 is more.
    assert measure((image, found_of([([0.0, 0, 4.4, 10], 0.5)])))["hard"] == 0
    assert measure((image, found_of([([0.0, 0, 4.6, 10], 0.5)])))["hard"] == pytest.approx(1)


def test_without_subsets_all_that_are_valid_count() -> None:
    image = sample_of([A, B])
    image.is_crowd[1] = True
    metrics = WiderFaceMetrics(FACE)
    metrics.add(image, found_of([(A, 0.9), (B, 0.5)]))
    result = metrics.compute()
    assert result.values == {f"{KEY}all": pytest.approx(1)}
    assert "do not say which faces are easy" in result.notes[0]


def test_nothing_at_all() -> None:
    assert np.isnan(WiderFaceMetrics(FACE).compute().values[f"{KEY}all"])
    found = measure((sample_of([A], hard=[0], easy=[]), found_of([])))
    assert np.isnan(found["easy"])
    assert found["hard"] == 0


def test_curve_has_a_thousand_thresholds() -> None:
    metrics = WiderFaceMetrics(FACE)
    metrics.add(sample_of([A, B], hard=[0, 1]), found_of([(A, 0.9), (FAR, 0.6), (B, 0.3)]))
    (curve,) = metrics.compute().curves
    assert curve.category == "hard"
    assert curve.objects == 2
    assert len(curve.scores) == len(curve.precision) == len(curve.recall) == 1000
    assert curve.scores[0] == pytest.approx(0.999)
    assert curve.scores[-1] == pytest.approx(0)
    assert curve.recall[0] == 0.5
    assert curve.precision[-1] == pytest.approx(2 / 3)
    assert curve.gains.sum() == 2


def overlap(a: Any, b: Any) -> float:
    wide, tall = min(a[2], b[2]) - max(a[0], b[0]) + 1, min(a[3], b[3]) - max(a[1], b[1]) + 1
    if wide <= 0 or tall <= 0:
        return 0.0
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (a, b)]
    return float(wide * tall / (sum(areas) - wide * tall))


def slowly(images: list[tuple[Sample, Detections[Array]]], column: int) -> float:
    """Follow the rules for every threshold, image, detection and face in turn."""
    scores = [float(score) for _, found in images for score in found.scores]
    low, high = min(scores), max(scores)
    faces = sum(int(sample.attributes[:, column].sum()) for sample, _ in images if sample.attributes is not None)
    points = []
    for step in range(1000):
        threshold = 1 - (step + 1) / 1000
        right = counted = 0
        for sample, found in images:
            if not len(sample.boxes):
                continue
            rows = [(float(s) - low) / (high - low) for s in found.scores]
            order = sorted(range(len(rows)), key=lambda n: -rows[n])
            taken: set[int] = set()
            for number in order:
                if rows[number] < threshold:
                    break
                overlaps = [overlap(found.boxes[number].tolist(), box) for box in sample.boxes.tolist()]
                best = max(range(len(overlaps)), key=lambda n: overlaps[n])
                if overlaps[best] >= 0.5 and not sample.attributes[best, column]:  # type: ignore[index]
                    continue
                counted += 1
                if overlaps[best] >= 0.5:
                    taken.add(best)
            right += len(taken)
        points.append((right / faces, right / counted if counted else 0.0))
    recalls, precisions = [0.0, *(r for r, _ in points), 1.0], [0.0, *(p for _, p in points), 0.0]
    for number in range(len(precisions) - 2, -1, -1):
        precisions[number] = max(precisions[number], precisions[number + 1])
    return sum((recalls[n + 1] - recalls[n]) * precisions[n + 1] for n in range(len(recalls) - 1))


@pytest.mark.slow_except("0")
@pytest.mark.slow_cases("0", "3")
@pytest.mark.parametrize("seed", range(4))
def test_against_the_slow_computation(seed: int) -> None:
    random = np.random.default_rng(seed)
    images = []
    for _ in range(6):
        count = int(random.integers(0, 6))
        corners = random.uniform(0, 70, (count, 2))
        boxes = np.concatenate([corners, corners + random.uniform(3, 30, (count, 2))], 1)
        chosen = [[n for n in range(count) if random.random() < share] for share in (0.8, 0.4)]
        rows = []
        for box in boxes.tolist():
            near = np.array(box) + random.normal(0, 3, (int(random.integers(0, 4)), 4))
            rows += [(one, float(random.random())) for one in near.tolist()]
        rows += [([*p, *(p + 10)], float(random.random())) for p in random.uniform(0, 80, (3, 2))]
        images.append((sample_of(boxes.tolist(), *chosen), found_of(rows)))
    found = measure(*images)
    assert 0 < found["hard"] < 1
    for column, name in enumerate(("easy", "hard")):
        assert found[name] == pytest.approx(slowly(images, column), abs=1e-9)
