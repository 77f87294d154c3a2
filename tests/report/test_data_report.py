"""The page on data: counts worked by hand, names as text, and data of which there is nearly nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from boxwright.cli.main import app
from boxwright.data.coco import CocoDataset
from boxwright.data.survey import survey_dataset
from boxwright.report.data_report import (
    ASPECTS,
    CELLS,
    SIDES,
    DataCollector,
    DataTables,
    count,
    places,
    write_data_report,
)
from boxwright.report.settings import ReportSettings
from boxwright.types import Categories, Category
from tests.report import made

SCRIPT = "<script>alert(1)</script>"


def tables(sizes: list[tuple[int, int]], objects: list[tuple[int, int, list[float]]], classes: int = 2) -> DataTables:
    """Height and width of images; image, label and xyxy of objects."""
    return DataTables(
        categories=Categories(tuple(Category(n, n + 1, f"class {n}") for n in range(classes))),
        names=[f"{n}.jpg" for n in range(len(sizes))],
        sizes=np.array(sizes, np.int64).reshape(-1, 2),
        files=[""] * len(sizes),
        images=np.array([image for image, *_ in objects], np.int64),
        labels=np.array([label for _, label, _ in objects], np.int64),
        boxes=np.array([box for *_, box in objects], np.float64).reshape(-1, 4),
        odd=[],
        groups=[],
    )


def test_counts_by_hand() -> None:
    """Class 0: 30×30 and 10×40 in one image, of 900 and 400 square pixels; class 1: 100×25 in the other."""
    given = tables([(100, 200), (100, 200)], [(0, 0, [0, 0, 30, 30]), (0, 0, [50, 0, 60, 40]), (1, 1, [0, 0, 100, 25])])
    found = count(given)
    assert found.objects.tolist() == [2, 1]
    assert found.images.tolist() == [1, 1]
    assert found.middle.tolist() == [[20, 35], [100, 25]]
    sides = [{SIDES[n]: row[n] for n in np.flatnonzero(row)} for row in found.sides]
    assert sides == [{24: 1, 16: 1}, {48: 1}]
    aspects = [{ASPECTS[n]: row[n] for n in np.flatnonzero(row)} for row in found.aspects]
    # 1, a quarter and 4.
    assert aspects == [{4 / 5: 1, 1 / 5: 1}, {3: 1}]


def test_labels_without_a_class_are_apart() -> None:
    given = tables([(10, 10)], [(0, 7, [0, 0, 5, 5]), (0, 1, [0, 0, 5, 5])])
    assert given.positions.tolist() == [2, 1]
    assert count(given).objects.tolist() == [0, 1]


def test_places_by_hand() -> None:
    """The left half of one image, and all of another of another size; and a box that covers no cell's middle."""
    half = CELLS // 2
    given = tables(
        [(100, 200), (50, 50)], [(0, 0, [0, 0, 100, 100]), (1, 0, [0, 0, 50, 50]), (0, 0, [150, 50, 150.1, 50.1])]
    )
    found = places(given, np.arange(3))
    assert (found[:, :half] == 2).all()
    assert (found[:, half:] == 1).all()
    assert places(given, np.zeros(0, np.int64)).sum() == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_places_are_those_of_cells_counted_one_by_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    boxes = [[*corner, *(corner + side)] for corner, side in zip(*random.uniform(-20, 90, (2, 30, 2)), strict=True)]
    given = tables([(90, 120)], [(0, 0, box) for box in boxes])
    middles = (np.arange(CELLS) + 0.5) / CELLS
    expected = np.zeros((CELLS, CELLS), np.int64)
    for x0, y0, x1, y1 in boxes:
        inside_x, inside_y = (
            ((middles * 120 >= x0) & (middles * 120 < x1)),
            ((middles * 90 >= y0) & (middles * 90 < y1)),
        )
        expected += inside_y[:, None] & inside_x[None]
    assert places(given, np.arange(30)).tolist() == expected.tolist()


def written(folder: Path, content: dict[str, Any], settings: ReportSettings | None = None) -> Path:
    """The page on made-up data."""
    path, _ = made.write(folder, content, [])
    made.draw(folder, content)
    dataset = CocoDataset(path)
    (folder / "report" / "data").mkdir(parents=True)
    with DataCollector(dataset, folder / "report", settings or ReportSettings()) as collector:
        survey, _ = survey_dataset(dataset, visit=collector.add)
        write_data_report(folder / "report", "made up", survey, collector.tables(dataset.categories))
    return folder / "report"


def data(folder: Path, name: str) -> Any:
    text = (folder / "data" / f"{name}.js").read_text()
    return json.loads(json.loads(text.partition(", ")[2].rstrip().removesuffix(");")))


def test_what_is_written(tmp_path: Path) -> None:
    """The second image is the first's copy; an object is there twice, and another crosses the border."""
    objects = [(0, 0, [5, 5, 20, 20]), (0, 0, [5, 5, 20, 20]), (2, 1, [50, 30, 20, 30]), (3, 1, [1, 1, 9, 9])]
    content = made.truth([(64, 48), (64, 48), (64, 48), (64, 48)], objects, [SCRIPT, "rod"])
    made.write(tmp_path, content, [])
    made.draw(tmp_path, content)
    folder = written(tmp_path, content)
    page = (folder / "index.html").read_text()
    assert SCRIPT not in page
    assert "&lt;script&gt;" in page
    assert data(folder, "images")["objects"] == [2, 0, 1, 1]
    odd = data(folder, "odd")
    assert [(one["image"], one["class"], one["reason"]) for one in odd] == [
        (0, 0, "twice in this image"),
        (2, 1, "crosses the border"),
    ]
    assert odd[1]["box"] == [50, 30, 20, 30]
    assert data(folder, "objects-0") == [
        [[0, 5, 5, 20, 20], [0, 5, 5, 20, 20]],
        [],
        [[1, 50, 30, 20, 30]],
        [[1, 1, 1, 9, 9]],
    ]
    first, second = data(folder, "classes-0")
    assert (first["images"], second["images"]) == ([0], [2, 3])
    assert data(folder, "summary")["perImage"][:3] == [1, 2, 1]
    assert len(list((folder / "pictures").glob("*.jpg"))) == 4


def test_images_that_are_the_same(tmp_path: Path) -> None:
    content = made.truth([(64, 48)] * 3, [(0, 0, [5, 5, 20, 20])], ["cell"])
    made.write(tmp_path, content, [])
    made.draw(tmp_path, content)
    (tmp_path / "3.jpg").write_bytes((tmp_path / "1.jpg").read_bytes())
    dataset = CocoDataset(tmp_path / "instances.json")
    with DataCollector(dataset, tmp_path / "r", ReportSettings(max_pictures=1)) as collector:
        survey_dataset(dataset, visit=collector.add)
        found = collector.tables(dataset.categories)
    assert found.groups == [[0, 2]]
    assert [bool(file) for file in found.files] == [True, False, False]


@pytest.mark.slow_cases("2-1000")
@pytest.mark.parametrize(("images", "classes"), [(1, 1), (2, 1000)])
def test_nearly_empty_data(tmp_path: Path, images: int, classes: int) -> None:
    """No objects at all; names in any script."""
    content = made.truth([(64, 48)] * images, [], [f"класс 類 {n}" for n in range(classes)])
    folder = written(tmp_path, content)
    assert data(folder, "odd") == []
    assert len(list((folder / "data").glob("classes-*.js"))) == -(-classes // 25)
    assert "класс 類 0" in (folder / "index.html").read_text()


def test_the_command(tmp_path: Path) -> None:
    """Today's output, and the page; a second one replaces the first."""
    content, _ = made.messy(0, 5)
    path, _ = made.write(tmp_path, content, [])
    made.draw(tmp_path, content)
    words = ["inspect", str(path), "--sheet", str(tmp_path / "sheet.png"), "--report", str(tmp_path / "r")]
    (tmp_path / "r" / "data").mkdir(parents=True)
    (tmp_path / "r" / "data" / "classes-9.js").write_text("former")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "5 images" in done.output
    assert "report:" in done.output
    assert (tmp_path / "sheet.png").is_file()
    assert not (tmp_path / "r" / "data" / "classes-9.js").exists()
    refused = CliRunner().invoke(app, [*words, "--augmented", "3"])
    assert refused.exit_code != 0
    assert "--report: expected annotated data" in str(refused.exception)
