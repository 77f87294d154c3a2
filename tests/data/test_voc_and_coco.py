from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.base.errors import DataError
from boxwright.data.coco import CocoDataset
from boxwright.data.image_io import encode_png
from boxwright.data.voc import VocDataset
from boxwright.types import Categories, Category


def voc(tmp_path: Path, objects: str = "", size: str = "<size><width>8</width><height>6</height></size>") -> Path:
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "JPEGImages").mkdir()
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "JPEGImages" / "a.png").write_bytes(encode_png(np.zeros((6, 8, 3), np.uint8)))
    xml = f"<annotation><filename>a.png</filename>{size}{objects}</annotation>"
    (tmp_path / "Annotations" / "a.xml").write_text(xml)
    (tmp_path / "ImageSets" / "Main" / "some.txt").write_text("a -1\n\n")
    return tmp_path


def box(name: str, *corners: object, extra: str = "") -> str:
    tags = zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
    inner = "".join(f"<{tag}>{value}</{tag}>" for tag, value in tags)
    return f"<object><name>{name}</name>{extra}<bndbox>{inner}</bndbox></object>"


def test_voc(tmp_path: Path) -> None:
    root = voc(tmp_path, box("cat", 1, 2, 8, 6, extra="<difficult>1</difficult>") + box("ant", 0.5, 0, 1.5, 1))
    dataset = VocDataset(root, "some")
    assert [c.name for c in dataset.categories] == ["ant", "cat"]
    sample = dataset[0]
    assert sample.boxes.tolist() == [[1, 2, 8, 6], [0.5, 0, 1.5, 1]]
    assert sample.labels.tolist() == [1, 0]
    assert sample.difficult.tolist() == [True, False]
    assert (sample.id, sample.filename) == ("a", "a.png")


def test_voc_image_without_objects(tmp_path: Path) -> None:
    dataset = VocDataset(voc(tmp_path), categories=Categories((Category(0, 1, "cat"),)))
    assert dataset[0].boxes.shape == (0, 4)


@pytest.mark.parametrize(
    ("objects", "wanted"),
    [
        (box("cat", "x", 0, 1, 1), "<bndbox><xmin>: expected a number, found 'x'"),
        (box("cat", "nan", 0, 1, 1), "expected a finite number"),
        ("<object><name>cat</name></object>", "an object without <bndbox>"),
        ("<object><bndbox/></object>", "an object without <name>"),
        ("<object>", "not XML"),
        ("", "no object in any of 1 annotations; a label map is needed"),
    ],
)
def test_bad_voc_annotations(tmp_path: Path, objects: str, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        VocDataset(voc(tmp_path, objects))[0]


def test_bad_voc_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        VocDataset(tmp_path / "none")
    with pytest.raises(DataError, match="no annotations"):
        VocDataset(tmp_path)
    root = voc(tmp_path, box("cat", 0, 0, 1, 1))
    with pytest.raises(DataError, match="no such list; there are: some"):
        VocDataset(root, "train")
    (root / "ImageSets" / "Main" / "bad.txt").write_text("zebra\n")
    with pytest.raises(DataError, match="1 image without an annotation"):
        VocDataset(root, "bad")
    with pytest.raises(DataError, match="none of the classes in the data \\(cat\\) is in the label map \\(dog\\)"):
        VocDataset(root, categories=Categories((Category(0, 1, "dog"),)))[0]
    (root / "JPEGImages" / "a.png").unlink()
    with pytest.raises(DataError, match="none of 1 annotations has a picture: .*no picture 'a.png'"):
        VocDataset(root)[0]


CONTENT: dict[str, Any] = {
    "images": [{"id": 7, "file_name": "a.png", "height": 6, "width": 8}, {"id": 9, "file_name": "b.png"}],
    "categories": [{"id": 44, "name": "dog"}, {"id": 3, "name": "cat"}],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 44, "bbox": [1, 1, 4, 3], "segmentation": [[1, 1, 5, 1, 5, 4, 1, 4]]},
        {
            "id": 2,
            "image_id": 7,
            "category_id": 3,
            "bbox": [0, 0, 8, 6],
            "area": 24,
            "iscrowd": 1,
            "segmentation": {"size": [6, 8], "counts": [0, 24, 24]},
        },
    ],
}


def coco(tmp_path: Path, **changes: Any) -> Path:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(encode_png(np.zeros((6, 8, 3), np.uint8)))
    (tmp_path / "c.json").write_text(json.dumps({**CONTENT, **changes}))
    return tmp_path / "c.json"


def test_coco(tmp_path: Path) -> None:
    dataset = CocoDataset(coco(tmp_path), load_masks=True)
    assert [(c.label, c.id, c.name) for c in dataset.categories] == [(0, 3, "cat"), (1, 44, "dog")]
    sample = dataset[0]
    assert sample.boxes.tolist() == [[1, 1, 5, 4], [0, 0, 8, 6]]
    assert sample.labels.tolist() == [1, 0]
    assert sample.is_crowd.tolist() == [False, True]
    assert sample.areas.tolist() == [12, 24]
    assert sample.id == "7"
    assert sample.masks is not None
    assert sample.masks[0].sum() == 12
    assert sample.masks[0, 1:4, 1:5].all()
    assert sample.masks[1, :, :4].all()
    assert not sample.masks[1, :, 4:].any()
    empty = dataset[1]
    assert empty.boxes.shape == (0, 4)
    assert empty.masks is not None
    assert empty.masks.shape == (0, 6, 8)


def test_coco_nulls_are_absent(tmp_path: Path) -> None:
    images = [{"id": 7, "file_name": "a.png", "height": None, "width": None}]
    rows = [{**CONTENT["annotations"][0], "area": None}]
    assert CocoDataset(coco(tmp_path, images=images, annotations=rows))[0].areas.tolist() == [12]


def test_coco_labels_follow_a_label_map_by_name(tmp_path: Path) -> None:
    categories = Categories((Category(4, 5, "cat"), Category(0, 1, "dog")))
    assert CocoDataset(coco(tmp_path), categories=categories)[0].labels.tolist() == [0, 4]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"images": []}, "no images"),
        ({"images": None}, "expected a list of objects under 'images'"),
        ({"images": [{"id": 7}]}, "images\\[0\\] has no file_name"),
        (
            {"annotations": [{"id": 5, "image_id": 8, "category_id": 3, "bbox": [0, 0, 1, 1]}]},
            "annotation 5: image_id 8",
        ),
        ({"annotations": [{"id": 5, "image_id": 7, "category_id": 1, "bbox": [0, 0, 1, 1]}]}, "category_id 1 is not"),
        (
            {"annotations": [{"id": 5, "image_id": 7, "category_id": 3, "bbox": [0, 0, 1]}]},
            "annotation 5: expected bbox",
        ),
        (
            {"annotations": [{"id": 5, "image_id": 7, "category_id": 3, "bbox": [0, 0, 1, float("nan")]}]},
            "annotation 5: bbox: expected a finite number",
        ),
        ({"categories": [{"id": 3, "name": "cat"}, {"id": 3, "name": "dog"}]}, "two categories have the id 3"),
        ({"categories": []}, "no classes"),
        ({"categories": [{"id": "x", "name": "cat"}]}, "category id 'x' is not a number"),
        ({"images": [{"id": [7], "file_name": "a.png"}]}, "images\\[0\\].id: expected a number"),
        ({"images": [CONTENT["images"][0]] * 2}, "two images have the same id"),
    ],
)
def test_bad_coco(tmp_path: Path, changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        CocoDataset(coco(tmp_path, **changes))[0]


def test_bad_coco_files_and_masks(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"images": [')
    with pytest.raises(DataError, match="not JSON"):
        CocoDataset(tmp_path / "x.json")
    (tmp_path / "y.json").write_text("[]")
    with pytest.raises(DataError, match="found a list"):
        CocoDataset(tmp_path / "y.json")
    for segmentation in ({"size": [5, 5], "counts": [0, 25]}, [[1, 2]], [[]], {"size": [6, 8]}):
        rows = [{**CONTENT["annotations"][1], "segmentation": segmentation}]
        with pytest.raises(DataError, match="annotation 2: segmentation: "):
            CocoDataset(coco(tmp_path, annotations=rows), load_masks=True)[0]
    (tmp_path / "a.png").unlink()
    with pytest.raises(DataError, match="image 7: file_name: no picture 'a.png' in"):
        CocoDataset(tmp_path / "c.json")[0]
