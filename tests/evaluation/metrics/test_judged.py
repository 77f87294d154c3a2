"""Detections that are kept in few bytes."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from boxwright.evaluation.metrics.judged import MatchAccumulator, MatchedDetections, PackedMatches

SIZES, THRESHOLDS = 4, 10


def judged(image: int, labels: list[int], scores: list[float], objects: int = 3) -> MatchedDetections:
    """An image's detections, whose verdicts follow from the image's number."""
    random = np.random.default_rng(image)
    count = len(labels)
    shape = (SIZES, THRESHOLDS, count)
    right = random.random(shape) < 0.5
    return MatchedDetections(
        np.array(labels, np.int64),
        np.arange(count),
        np.array(scores, np.float32),
        right,
        ~right & (random.random(shape) < 0.5),
        np.full(count, image),
        np.arange(count),
        random.integers(-1, objects, (THRESHOLDS, count)).astype(np.int32),
    )


@pytest.mark.parametrize("count", [0, 1, 256, 600])
def test_what_comes_back_is_what_was_added(count: int) -> None:
    """By class; the best first, ties image by image."""
    accumulator = MatchAccumulator(SIZES, THRESHOLDS, THRESHOLDS)
    images = [judged(n, [0, 0, 2] if n % 3 else [], [0.5, 0.25, n / 600] if n % 3 else []) for n in range(count)]
    for image in images:
        accumulator.add(image)
    whole = MatchedDetections.join([*images, judged(0, [], [])])
    found = accumulator.by_class()
    assert len(found.best_first(1)) == 0
    for label in (0, 2):
        own = np.flatnonzero(whole.labels == label)
        expected = sorted(own, key=lambda row: -whole.scores[row])
        order = found.best_first(label)
        assert found.every.images[order].tolist() == whole.images[expected].tolist()
        assert found.every.objects[:, order].tolist() == whole.objects[:, expected].tolist()
        verdicts = found.verdicts(order)
        for rule in range(SIZES * THRESHOLDS):
            size, threshold = divmod(rule, THRESHOLDS)
            assert verdicts.right_by(rule).tolist() == whole.right[size, threshold, expected].tolist()
            assert (~verdicts.counted_by(rule)).tolist() == whole.ignored[size, threshold, expected].tolist()
        assert verdicts.among(1).ranks.tolist() == [rank for rank in whole.ranks[expected].tolist() if rank < 1]


def test_a_detection_takes_48_bytes() -> None:
    """4 for its class, 2 for its rank, 4 for its score, 5 and 5 for 40 rules, 4 and 4 for its place, 20 for objects."""
    packed = PackedMatches.of(judged(0, [0] * 100, [0.5] * 100))
    assert sum(getattr(packed, one.name).nbytes for one in fields(PackedMatches)) == 48 * 100


def test_an_image_with_very_many_objects() -> None:
    given = judged(0, [0] * 50, [0.5] * 50, objects=100_000)
    assert PackedMatches.of(given).objects.tolist() == given.objects.tolist()
