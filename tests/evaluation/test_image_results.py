"""Detections and ground truth, written image by image."""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import boxwright as bw
from boxwright.evaluation.build import _METRICS
from boxwright.evaluation.images import EvaluatedImage
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.summary import summarize
from boxwright.evaluation.write import ImageResults, write_evaluation
from tests.evaluation.test_metrics_process import CATEGORIES, found_all, plan_of


def test_no_image_stays_in_memory(tmp_path: Path) -> None:
    """Whatever the metric: of the images that came before, at most the last one is still there."""
    alive: list[weakref.ref[EvaluatedImage]] = []
    samples: list[weakref.ref[Any]] = []
    most = 0

    def images() -> Iterator[EvaluatedImage]:
        nonlocal most
        for number in range(30):
            image = found_all(number + 1)[-1]
            alive.append(weakref.ref(image))
            samples.extend((weakref.ref(image.sample), weakref.ref(image.detections)))
            yield image
            del image
            most = max(most, sum(one() is not None for one in alive))

    with ImageResults(tmp_path) as results:
        summarize(images(), plan_of(*_METRICS), CATEGORIES, results.add)
        assert list(tmp_path.iterdir()) == []
    assert most <= 1
    assert not any(one() is not None for one in samples)


def test_the_files(tmp_path: Path) -> None:
    images = found_all(3)
    with ImageResults(tmp_path / "e") as results:
        for image in images:
            results.add(image, CATEGORIES)
        write_evaluation(Evaluation({"mAP": 0.5}, []), results, tmp_path / "e", step=7)
    rows = json.loads((tmp_path / "e" / "detections.json").read_text())
    # The dog of the first image was taken for a cat.
    assert [(row["image_id"], row["category_id"], row["bbox"], row["score"]) for row in rows[:3]] == [
        (0, 1, [2.0, 2.0, 8.0, 10.0], 0.9),
        (0, 1, [20.0, 4.0, 10.0, 14.0], 0.8),
        (1, 1, [2.0, 2.0, 8.0, 10.0], 0.9),
    ]
    assert len(rows) == 6
    truth = json.loads((tmp_path / "e" / "truth.json").read_text())
    assert truth["images"][2] == {"id": 2, "file_name": "2", "width": 32, "height": 32, "index": 2}
    assert [(row["id"], row["image_id"], row["category_id"]) for row in truth["annotations"]] == [
        (1, 0, 1),
        (2, 0, 2),
        (3, 1, 1),
        (4, 1, 2),
        (5, 2, 1),
        (6, 2, 2),
    ]
    assert truth["annotations"][0]["segmentation"]["size"] == [32, 32]
    assert [(row["id"], row["name"]) for row in truth["categories"]] == [(1, "cat"), (2, "dog")]
    assert json.loads((tmp_path / "e" / "metrics.json").read_text()) == {"step": 7, "mAP": 0.5}


def test_nothing_at_all(tmp_path: Path) -> None:
    with ImageResults(tmp_path) as results:
        results.write(tmp_path)
    assert json.loads((tmp_path / "detections.json").read_text()) == []
    assert json.loads((tmp_path / "truth.json").read_text()) == {"images": [], "annotations": [], "categories": []}


def test_an_evaluation_that_fails_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    def images() -> Iterator[EvaluatedImage]:
        yield from found_all(2)
        raise bw.DataError("a bad record")

    (tmp_path / "detections.json").write_text("[]")
    with pytest.raises(bw.DataError, match="a bad record"), ImageResults(tmp_path) as results:
        summarize(images(), plan_of("coco_detection_metrics"), CATEGORIES, results.add)
    assert [path.name for path in tmp_path.iterdir()] == ["detections.json"]
    assert (tmp_path / "detections.json").read_text() == "[]"


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full.open("w+b", buffering=0))
    with pytest.raises(bw.OutputError, match="could not be written: No space left"), ImageResults(tmp_path) as results:
        results.add(found_all(1)[0], CATEGORIES)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "eval").write_text("")
    with pytest.raises(bw.OutputError, match="cannot be created"):
        ImageResults(tmp_path / "eval")
