"""Masks and keypoints as vectors; and what an earlier report left in a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boxwright.nn.ops.pasted_masks import encode_mask
from boxwright.report.events import has_shapes, outline, shape_part
from boxwright.report.matching import compute_outcomes, match
from boxwright.report.settings import ReportSettings
from boxwright.report.sources import source_of_files
from boxwright.report.write import write_report
from tests.report import made

A = (10, 10, 20, 20)


def test_a_rectangle_is_four_points_and_a_hole_is_cut_out() -> None:
    mask = np.zeros((50, 60), np.uint8)
    mask[10:30, 20:41] = 1
    path = outline(mask)
    assert sorted(path.removeprefix("M").removesuffix("Z").split("L")) == ["20 10", "20 29", "40 10", "40 29"]
    mask[15:20, 25:30] = 0
    assert outline(mask).count("M") == 2
    assert outline(np.zeros((5, 5), np.uint8)) == ""


def test_truth_and_detections_have_shapes(tmp_path: Path) -> None:
    """A polygon, run lengths, keypoints of which one is not visible; a mask of another size is left out."""
    content = made.truth([(60, 50)], [(0, 0, A), (0, 0, (35, 10, 20, 20))], ["a"])
    content["annotations"][0]["segmentation"] = [[10, 10, 30, 10, 30, 30, 10, 30]]
    content["annotations"][0]["keypoints"] = [12, 13, 2, 0, 0, 0]
    rows = made.found([(0, 0, A, 0.9), (0, 0, (35, 10, 20, 20), 0.8)])
    mask = np.zeros((50, 60), np.uint8)
    mask[10:30, 10:30] = 1
    rows[0] |= {"segmentation": encode_mask(mask), "keypoints": [12.0, 13.5, 0.9, 20.0, 20.0, 0.1]}
    rows[1]["segmentation"] = encode_mask(mask[:20, :20])
    tables = made.tables(tmp_path, content, rows)
    assert has_shapes(tables)
    shapes = shape_part(tables, compute_outcomes(tables, match(tables), 0.5), 0, 50)
    assert list(shapes) == [0]
    assert shapes[0]["truth"]["points"] == [[12, 13]]
    assert shapes[0]["found"]["points"] == [[12, 13.5]]
    assert shapes[0]["truth"]["path"].startswith("M")
    assert shapes[0]["found"]["path"].count("L") == 3


@pytest.mark.slow
def test_a_second_report_leaves_nothing_of_the_first_and_nothing_else(tmp_path: Path) -> None:
    paths = made.write(tmp_path, *made.messy(0, 6))
    folder = tmp_path / "r"
    write_report(source_of_files(*paths), folder, ReportSettings(fit_calibration=True))
    assert (folder / "calibration.config").exists()
    (folder / "truth.json").write_text("{}")
    (folder / "pipeline.config").write_text("")
    write_report(source_of_files(*made.write(tmp_path, made.messy(0, 6)[0], [])), folder)
    assert not (folder / "calibration.config").exists()
    assert not (folder / "thresholds.json").exists()
    assert (folder / "truth.json").exists()
    assert (folder / "pipeline.config").exists()
