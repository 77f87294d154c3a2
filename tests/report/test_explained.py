"""What a perfect answer on one part brings, by hand; and planted causes are ranked first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.report.explained import Part, explain, ranked
from boxwright.report.factors import compute_factors
from boxwright.report.matching import average_precisions, class_curves, match, mean_ap
from boxwright.report.pictures import Photos, without_photos
from boxwright.report.tables import Indices, Tables
from tests.report import made


def parts_of(tables: Tables, photos: Photos | None = None, anchors: Indices | None = None) -> list[Part]:
    matching = match(tables)
    factors = compute_factors(tables, photos or without_photos(len(tables.ids)), anchors)
    return explain(tables, matching, class_curves(tables, matching), factors, most_draws=20)


def test_gains_by_hand(tmp_path: Path) -> None:
    """A small object is missed and a large one found at 0.9, after a small false alarm at 0.95.

    Average precision is 51 / 101 × 1/2: recall reaches 1/2 at precision 1/2. With a perfect answer on what is small,
    the alarm is gone and the object found: 1. On what is large, the large object comes first: 51 / 101.
    """
    content = made.truth([(300, 300)], [(0, 0, (10, 10, 20, 20)), (0, 0, (100, 100, 100, 100))], ["a"])
    rows = [(0, 0, (100, 100, 100, 100), 0.9), (0, 0, (250, 10, 20, 20), 0.95)]
    parts = {part.name.partition(":")[0]: part for part in parts_of(made.tables(tmp_path, content, made.found(rows)))}
    before = 51 / 101 / 2
    assert parts["small"].gain.value == pytest.approx(1 - before)
    assert parts["large"].gain.value == pytest.approx(51 / 101 - before)
    assert parts["small"].share == parts["large"].share == 0.5
    assert parts["small"].average_precision == 0
    assert parts["large"].average_precision == 1
    # The two gains are 1 together, and each part has half of the objects.
    assert parts["small"].excess == pytest.approx(1 - before - 1 / 2)
    # All objects are whole and alone: these parts explain nothing.
    assert parts["whole"].gain.value == pytest.approx(1 - before)
    assert parts["whole"].excess == pytest.approx(0)
    assert parts["large"].excess == pytest.approx(-parts["small"].excess)
    assert [part.name.partition(":")[0] for part in ranked(list(parts.values()))] == ["small"]


def test_a_perfect_answer_on_everything_is_perfect(tmp_path: Path) -> None:
    tables = made.tables(tmp_path, *made.messy(0))
    everything = mean_ap(average_precisions(class_curves(tables, match(tables))))
    parts = parts_of(tables)
    for part in parts:
        assert part.gain.low - 1e-9 <= part.gain.value <= 1 - everything + 1e-9
    by_factor: dict[str, float] = {}
    for part in parts:
        by_factor[part.factor] = by_factor.get(part.factor, 0) + part.share
    # The parts of a factor are all objects.
    assert list(by_factor.values()) == pytest.approx([1] * len(by_factor))


def planted(seed: int, missed: Any) -> tuple[dict[str, Any], made.Rows]:
    """Objects of four classes, a 40th of the last; a tenth is missed, and most of those for which `missed` says so."""
    random = np.random.default_rng(seed)
    objects: list[Any] = []
    rows: list[Any] = []
    for image in range(60):
        for box in made.random_boxes(random, 5, (320, 240)):
            label = 3 if len(objects) % 40 == 0 else int(random.integers(0, 3))
            objects.append((image, label, box.tolist()))
            if random.uniform() > (0.85 if missed(label, box, image) else 0.1):
                rows.append((image, label, (box + random.normal(0, 0.5, 4)).tolist(), float(random.uniform(0.3, 1))))
        box = made.random_boxes(random, 1, (320, 240))[0]
        rows.append((image, int(random.integers(0, 4)), box.tolist(), float(random.uniform(0.2, 0.6))))
    return made.truth([(320, 240)] * 60, objects, list("abcd")), made.found(rows)


def is_small(label: int, box: Any, image: int) -> bool:
    return bool(box[2] * box[3] < 32**2)


def is_tall(label: int, box: Any, image: int) -> bool:
    return bool(box[3] > 2 * box[2])


def is_rare(label: int, box: Any, image: int) -> bool:
    return label == 3


@pytest.mark.slow_except("is_rare-class frequency-part1-0")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("missed", "factor", "part"),
    [
        (is_small, "size", ("tiny", "small")),
        (is_rare, "class frequency", ("rare",)),
        (is_tall, "anchors", ("no anchor fits",)),
        (lambda label, box, image: image % 5 == 0, "blur", ("blurriest fifth",)),
        (lambda label, box, image: image % 5 == 1, "brightness", ("darkest fifth",)),
        (lambda label, box, image: min(box[0], box[1]) < 12, "border", ("cut by the border",)),
    ],
)
def test_a_planted_cause_is_ranked_first(seed: int, missed: Any, factor: str, part: Any, tmp_path: Path) -> None:
    content, rows = planted(seed, missed)
    if factor == "border":  # what is near the border is stretched up to it
        for row in (*content["annotations"], *rows):
            x, y, width, height = row["bbox"]
            if min(x, y) < 12:
                row["bbox"] = [max(x - 12, 0), max(y - 12, 0), width, height]
    tables = made.tables(tmp_path, content, rows)
    sides = tables.objects.boxes[:, 2:] - tables.objects.boxes[:, :2]
    # Anchors of no tall shape: none fits what is twice as tall as wide.
    anchors = np.where(sides[:, 1] > 2 * sides[:, 0], 0, 12)
    images = np.arange(60)
    sharp = np.where(images % 5 == 0, 10.0, 100.0) + images / 60
    bright = np.where(images % 5 == 1, 30.0, 120.0) + images / 60
    photos = Photos([""] * 60, bright, sharp, [], [])
    first = ranked(parts_of(tables, photos, anchors))[0]
    assert first.factor == factor
    assert first.name.startswith(part)
    # Not by chance: the interval is above 0.
    assert first.gain.low > 0
