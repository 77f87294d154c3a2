"""Hugging Face's imagefolder and Parquet: what their boxes mean, and the names of classes."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from boxwright.base.errors import DataError
from boxwright.data.coco import CocoDataset
from boxwright.data.layouts.table import find_layout
from tests.data.layouts.opened import classes_in, draw, objects_in

# The first is no corner, as 30 is left of 60; the second would leave a picture of 100 by 80 as a corner and a size.
SIZES, CORNERS = [60, 20, 30, 40], [60, 20, 90, 60]


def imagefolder(folder: Path, *rows: dict[str, Any]) -> Path:
    draw(folder, "a.png", "b.png")
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def row(*boxes: Any, classes: list[Any] | None = None, name: Any = "a.png", key: str = "categories") -> dict[str, Any]:
    return {"file_name": name, "objects": {"bbox": [*boxes], key: [0] * len(boxes) if classes is None else classes}}


@pytest.mark.parametrize("key", ["categories", "category", "label"])
def test_imagefolder(key: str, tmp_path: Path) -> None:
    imagefolder(tmp_path, row(SIZES, [1, 2, 3, 4], classes=[2, 10], key=key), {"file_name": "b.png", "objects": None})
    assert getattr(find_layout(tmp_path), "name", None) == "Hugging Face's imagefolder"
    assert objects_in(tmp_path) == {"a.png": [("2", [60, 20, 90, 60]), ("10", [1, 2, 4, 6])], "b.png": []}
    assert classes_in(tmp_path / "metadata.jsonl") == ["2", "10"]


def test_corners_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    imagefolder(tmp_path, row(CORNERS, [1, 2, 3, 4], classes=["cat", "dog"]))
    with caplog.at_level(logging.WARNING):
        assert objects_in(tmp_path) == {"a.png": [("cat", [60, 20, 90, 60]), ("dog", [1, 2, 3, 4])]}
    assert "bbox is read as corners: as sizes, 1 of 2 boxes leave their image" in caplog.text


def test_sizes_in_rows_are_used(tmp_path: Path) -> None:
    # Of a picture of 1000 by 800, the box has room as a corner and a size.
    imagefolder(tmp_path, {**row(CORNERS, SIZES), "width": 1000, "height": 800})
    assert objects_in(tmp_path)["a.png"] == [("0", [60, 20, 150, 80]), ("0", [60, 20, 90, 60])]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            [row([1, 2, 3, 4])],
            r"bbox may be \[x, y, width, height\] or the corners .*of 1 boxes, 0 leave .* 0 are turned",
        ),
        ([row(SIZES, CORNERS)], "of 2 boxes, 1 leave their image as the former, 1 are turned inside out as the latter"),
        ([row([0.1, 0.2, 0.3, 0.4])], "bbox has shares of the image, from 0 to 1"),
        (
            [row(SIZES), row([1, 2, 3], name="b.png")],
            "metadata.jsonl: line 2: objects: expected a bbox of four numbers",
        ),
        ([row([1, 2, 3, float("nan")])], "line 1: objects: bbox: expected a finite number"),
        ([row(SIZES, classes=[])], "line 1: objects: 1 boxes, but 0 classes"),
        ([row(SIZES, classes=[None])], "expected a class's name or number, found None"),
        ([row(SIZES, key="color")], "objects: no category; its keys are bbox, color"),
        ([row(SIZES, name=None)], "line 1: file_name: expected text"),
        ([row(SIZES, name="c.png")], "c.png"),
        ([{"file_name": "a.png", "objects": 5}], "objects: expected an object with lists, found 5"),
        ([{"file_name": "a.png", "objects": [5]}], "objects: expected objects"),
    ],
)
def test_what_is_refused(rows: list[dict[str, Any]], problem: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=problem):
        objects_in(imagefolder(tmp_path, *rows))


def test_objects_one_by_one(tmp_path: Path) -> None:
    imagefolder(
        tmp_path, {"file_name": "a.png", "objects": [{"bbox": SIZES, "label": "cat"}]}, {**row(), "objects": []}
    )
    assert objects_in(tmp_path)["a.png"] == [("cat", [60, 20, 90, 60])]


def test_metadata_as_csv(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    (tmp_path / "metadata.csv").write_text(
        'file_name,objects\na.png,"{""bbox"": [[60, 20, 30, 40]], ""categories"": [1]}"\n'
    )
    assert objects_in(tmp_path) == {"a.png": [("1", [60, 20, 90, 60])]}


def test_a_cut_off_line(tmp_path: Path) -> None:
    imagefolder(tmp_path, row(SIZES))
    with (tmp_path / "metadata.jsonl").open("a") as file:
        file.write('{"file_name": "b.p')
    with pytest.raises(DataError, match="metadata.jsonl: line 2: not JSON"):
        objects_in(tmp_path)


def picture(kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (100, 80), (9, 99, 199)).save(buffer, format=kind)
    return buffer.getvalue()


def parquet(path: Path, rows: list[dict[str, Any]], features: Any = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    if features is not None:
        stored = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(stored)
    pq.write_table(table, path)
    return path


def image_row(number: int, *boxes: list[int], kind: str = "PNG", path: str | None = None) -> dict[str, Any]:
    image = {"bytes": picture(kind), "path": path}
    return {"image": image, "objects": {"bbox": [*boxes], "category": [number] * len(boxes)}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


LISTS = {"objects": {"category": {"feature": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "_type": "Sequence"}}}
ITEMS = {"objects": [{"category": {"names": ["cat", "dog"], "_type": "ClassLabel"}}]}


@pytest.mark.parametrize(("features", "names"), [(None, ["0", "1"]), (LISTS, ["cat", "dog"]), (ITEMS, ["cat", "dog"])])
def test_parquet(features: Any, names: list[str], tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "set"
    shards = [[image_row(0, SIZES, path="x/my cat.jpg", kind="JPEG")], [image_row(1, SIZES), image_row(1)]]
    for number, rows in enumerate(shards):
        parquet(folder / f"data/train-{number:05d}-of-00002.parquet", rows, features)
    expected = {
        "00000000_my_cat.jpg": [(names[0], [60, 20, 90, 60])],
        "00000001.png": [(names[1], [60, 20, 90, 60])],
        "00000002.png": [],
    }
    assert getattr(find_layout(folder), "name", None) == "Hugging Face's Parquet"
    assert objects_in(folder) == expected
    written = {file: file.stat().st_mtime_ns for file in cache.rglob("*.png")}
    assert objects_in(folder / "data/train-00000-of-00002.parquet") == expected, "a shard stands for its split"
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*.png")} == written, "they are written once"
    assert classes_in(folder) == names


def test_several_splits(tmp_path: Path) -> None:
    for name in ("train", "test"):
        parquet(tmp_path / f"{name}-00000-of-00001.parquet", [image_row(0, SIZES)])
    assert find_layout(tmp_path) is None
    assert len(CocoDataset(tmp_path / "test-00000-of-00001.parquet")) == 1


def test_what_is_no_such_parquet(tmp_path: Path, cache: Path) -> None:
    assert find_layout(parquet(tmp_path / "a/other.parquet", [{"text": "words"}])) is None
    empty = parquet(tmp_path / "b/x.parquet", [{"image": {"bytes": None, "path": "a.png"}, "objects": None}])
    with pytest.raises(DataError, match=r"x.parquet: row 1: image: expected the bytes of a picture"):
        CocoDataset(empty)
    assert not [path for path in cache.rglob("*") if path.is_file()]
    wrong = parquet(tmp_path / "c/x.parquet", [image_row(5, SIZES)], LISTS)
    with pytest.raises(DataError, match=r"row 1: class 5: expected 0 to 1"):
        CocoDataset(wrong)
    (tmp_path / "d.parquet").write_bytes(b"PAR1 and nothing")
    assert find_layout(tmp_path / "d.parquet") is None
