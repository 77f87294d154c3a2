"""Checks of labels against what a detector can learn."""

from __future__ import annotations

import pytest

from boxwright.data.shapes import ShapesDataset
from boxwright.training.preflight.labels import check_queries
from boxwright.training.preflight.records import read_records, some
from tests.exporters.small_detectors import build
from tests.rf_detrs import RF_DETR

OWN_INITIALIZERS = True


def test_images_with_more_objects_than_queries() -> None:
    dataset = ShapesDataset(6, seed=0, size=(64, 64))
    records, _ = read_records(dataset, range(6), workers=0)
    most = max(len(record.boxes) for record in records)
    assert most > 1
    (finding,) = check_queries(records, most - 1)
    assert finding.verdict == "warning"
    assert f"than the detector has queries, {most - 1}: at most {most}" in finding.found
    (finding,) = check_queries(records, most)
    assert finding.verdict == "fine"
    assert list(check_queries(records, None)) == []


@pytest.mark.parametrize(("text", "queries"), [(RF_DETR, 20), (RF_DETR.replace("queries: 20", "queries: 7"), 7)])
def test_a_network_says_how_many_objects_it_can_learn(text: str, queries: int) -> None:
    assert build(text).network.most_objects == queries


def test_names_of_two_lines_stay_in_their_line() -> None:
    assert some(["a\nb", *"cdefghij"]).startswith(r"a\u000ab, c, ")
