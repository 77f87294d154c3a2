"""What a report opens with: what costs most, of which classes, and the picture that shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.report.analysis import Analysis, analyze
from boxwright.report.matching import TYPES, Outcomes, compute_outcomes
from boxwright.report.pictures import Photos, without_photos
from boxwright.report.sources import source_of_files
from boxwright.report.verdict import judge
from boxwright.report.write import write_report
from tests.report import made

A, B, FAR = (10, 10, 20, 20), (100, 100, 20, 20), (200, 200, 30, 30)
IMAGES = 6


def analysis_of(folder: Path, objects: Sequence[Any], rows: Sequence[Any]) -> Analysis:
    content = made.truth([(300, 300)] * IMAGES, objects, ["cat", "dog"])
    return analyze(made.tables(folder, content, made.found(rows)))


def photos(copied: tuple[int, ...] = tuple(range(IMAGES))) -> Photos:
    files = [f"pictures/{number}.jpg" if number in copied else "" for number in range(IMAGES)]
    return replace(without_photos(IMAGES), files=files)


def test_confused_classes(tmp_path: Path) -> None:
    """Each image's cat is found as a dog, and in image 4 a second one; dogs are found. Fixing that adds AP50 0.5."""
    objects = [(n, 0, A) for n in range(IMAGES)] + [(4, 0, FAR)] + [(n, 1, B) for n in range(IMAGES)]
    rows = [(n, 1, A, 0.7) for n in range(IMAGES)] + [(4, 1, FAR, 0.7)] + [(n, 1, B, 0.9) for n in range(IMAGES)]
    analysis = analysis_of(tmp_path, objects, rows)
    verdict = judge(analysis, photos())
    assert verdict.headline == "AP 0.500, AP50 0.500"
    assert verdict.cause == f"Confused classes cost most: +{analysis.tide.gains['classification']:.2f} AP50 if solved."
    assert analysis.tide.gains["classification"] > 0.4
    # Dogs are found best at 0.9, above which no cat is confused.
    assert analysis.threshold == 0.9
    assert verdict.example == ""
    shown = judge(replace(analysis, outcomes=outcomes_from(analysis, 0.5)), photos())
    assert shown.example == "cat found as dog, 7 times"
    assert shown.filters == {"type": TYPES.index("classification"), "truth": 0, "seen": 1}
    assert shown.image == 4
    assert judge(replace(analysis, outcomes=outcomes_from(analysis, 0.5)), photos(copied=(2, 3))).image in (2, 3)


def outcomes_from(analysis: Analysis, score: float) -> Outcomes:
    return compute_outcomes(analysis.tables, analysis.matching, score)


def test_missed_objects(tmp_path: Path) -> None:
    """Every cat is found, one dog of six: five of the missed are dogs, and two of them are in image 3."""
    dogs = [(1, 1, B), (2, 1, B), (3, 1, B), (3, 1, FAR), (4, 1, B), (5, 1, B)]
    analysis = analysis_of(
        tmp_path, [(n, 0, A) for n in range(IMAGES)] + dogs, [(n, 0, A, 0.9) for n in range(IMAGES)] + [(5, 1, B, 0.9)]
    )
    verdict = judge(analysis, photos())
    assert verdict.cause.startswith("Missed objects cost most: +0.4")
    assert verdict.example == "most of all dog, 5 of 5"
    assert verdict.filters == {"type": TYPES.index("missed"), "truth": 1}
    assert verdict.image == 3


def test_nothing_is_wrong(tmp_path: Path) -> None:
    analysis = analysis_of(
        tmp_path,
        [(n, 0, A) for n in range(IMAGES)] + [(2, 0, B)],
        [(n, 0, A, 0.9) for n in range(IMAGES)] + [(2, 0, B, 0.9)],
    )
    verdict = judge(analysis, photos())
    assert verdict.headline == "AP 1.000, AP50 1.000"
    assert verdict.cause == "No kind of error costs as much as 0.005 of AP50."
    assert verdict.filters == {}
    assert verdict.image == 2


def test_nothing_is_found_and_nothing_is_annotated(tmp_path: Path) -> None:
    verdict = judge(analysis_of(tmp_path, [(1, 0, A)], [(0, 0, A, 0.9)]), photos())
    assert (verdict.headline, verdict.cause) == ("AP 0.000, AP50 0.000", "No detection finds an object, at any score.")
    verdict = judge(analysis_of(tmp_path, [], [(0, 0, A, 0.9)]), photos())
    assert verdict.headline == "No object is annotated in these images, so that there is no average precision."
    assert verdict.cause == ""
    assert verdict.image is None


def test_without_pictures_there_is_none(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, [(0, 0, A)], [(0, 0, A, 0.9)])
    assert judge(analysis, without_photos(IMAGES)).image is None


def test_the_page_opens_with_it(tmp_path: Path) -> None:
    content, rows = made.messy(0, 12)
    paths = made.write(tmp_path, content, rows)
    made.draw(tmp_path, content)
    page = write_report(source_of_files(*paths), tmp_path / "r").read_text()
    opening = page.index('class="headline">AP ')
    assert opening < page.index("<th>metric</th>")
    assert " cost most: +" in page
    assert 'id="picture"' in page
    # Names for people come first, TensorFlow's are folded away.
    assert page.index('<th scope="row">AP50</th>') < page.index("<details><summary>TensorFlow's names")
    assert page.index("<details><summary>TensorFlow's names") < page.index("DetectionBoxes_Precision/mAP@.50IOU")


def test_counts_of_errors_are_those_of_the_pictures(tmp_path: Path) -> None:
    """The table says how many events of each type the page shows, and TIDE's count beside it."""
    content, rows = made.messy(1, 30)
    source = source_of_files(*made.write(tmp_path, content, rows))
    write_report(source, tmp_path / "r")
    errors = json.loads((tmp_path / "r" / "report.json").read_text())["errors"]
    analysis = analyze(source.tables)
    for number, name in enumerate(TYPES):
        if name != "right":
            assert errors[name]["shown"] == int((analysis.outcomes.types == number).sum()), name
            assert errors[name]["count"] == analysis.tide.counts[name]
    right = int((analysis.outcomes.types == 0).sum())
    counted = sum(not row["iscrowd"] for row in content["annotations"])
    assert errors["false negatives"]["shown"] == counted - right
    above = analysis.matching.counted[0] & (analysis.tables.detections.scores >= analysis.threshold)
    assert errors["false positives"]["shown"] == int(np.count_nonzero(above)) - right
