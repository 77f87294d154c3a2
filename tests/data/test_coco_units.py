"""COCO files with other numbers than COCO's give the boxes, outlines and points that they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from boxwright.base.errors import DataError
from boxwright.data.coco import CocoDataset
from boxwright.data.coco_content import CocoUnits
from boxwright.data.image_io import ImageHeader
from boxwright.data.picture_dataset import BoxesAre


def dataset(
    folder: Path, row: dict[str, Any], *, orientation: int = 1, declared: tuple[int, int] = (160, 80), **how: Any
) -> CocoDataset:
    """One picture, stored 40 wide and 20 high, and one object; `declared` is (width, height)."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (40, 20)).save(folder / "a.jpg", exif=exif)
    image = {"id": 1, "file_name": "a.jpg", "width": declared[0], "height": declared[1]}
    point = [{"id": 1, "name": "o", "keypoints": ["tip"]}]
    row = {"id": 1, "image_id": 1, "category_id": 1, **row}
    (folder / "c.json").write_text(json.dumps({"images": [image], "annotations": [row], "categories": point}))
    return CocoDataset(folder / "c.json", **how)


@pytest.mark.parametrize(
    ("boxes_are", "bbox"),
    [
        ("xywh", [10, 5, 20, 10]),
        ("xyxy", [10, 5, 30, 15]),
        ("normalized_xywh", [0.25, 0.25, 0.5, 0.5]),
        ("normalized_xyxy", [0.25, 0.25, 0.75, 0.75]),
    ],
)
def test_four_numbers(tmp_path: Path, boxes_are: BoxesAre, bbox: list[float]) -> None:
    sample = dataset(tmp_path, {"bbox": bbox, "area": 7}, boxes_are=boxes_are)[0]
    assert sample.boxes.tolist() == [[10, 5, 30, 15]]
    # The area in a file of other boxes may be that of what they are not.
    assert sample.areas.tolist() == [7 if boxes_are == "xywh" else 200]


def test_what_was_labeled_on_a_larger_picture(tmp_path: Path) -> None:
    row = {
        "bbox": [40, 20, 80, 40],
        "area": 1600,
        "keypoints": [80, 40, 2],
        "segmentation": [[40, 20, 120, 20, 120, 60]],
    }
    data = dataset(tmp_path, row, rescale=True, num_keypoints=None, load_masks=True)
    for sample in (data[0], data.without_pixels(0)):
        assert sample.boxes.tolist() == [[10, 5, 30, 15]]
        assert sample.areas.tolist() == [100]
        assert sample.keypoints is not None
        assert sample.keypoints.tolist() == [[[20, 10, 1]]]
        assert sample.masks is not None
        assert sample.masks.shape == (1, 20, 40)
        assert np.argwhere(sample.masks[0]).max(0).tolist() == [14, 29]
    # As the file says, without the switch.
    assert dataset(tmp_path, row)[0].boxes.tolist() == [[40, 20, 120, 60]]


def test_corners_of_a_larger_picture(tmp_path: Path) -> None:
    sample = dataset(tmp_path, {"bbox": [40, 20, 120, 60]}, rescale=True, boxes_are="xyxy")[0]
    assert sample.boxes.tolist() == [[10, 5, 30, 15]]


@pytest.mark.parametrize(("declared", "shape"), [((160, 80), (20, 40)), ((80, 160), (40, 20))])
def test_the_declared_size_shows_which_way_the_picture_was(
    tmp_path: Path, declared: tuple[int, int], shape: tuple[int, int]
) -> None:
    """Of a picture that EXIF turns, as of one whose size is unchanged."""
    row = {"bbox": [40, 20, 8, 16]}
    data = dataset(tmp_path, row, orientation=6, declared=declared, rescale=True)
    for sample in (data[0], data.without_pixels(0)):
        assert sample.image.shape[:2] == shape
        assert sample.boxes.tolist() == [[10, 5, 12, 9]]


def test_a_square_declared_size_shows_nothing() -> None:
    header, units = ImageHeader((20, 40), 6), CocoUnits(rescale=True)
    assert units.size_meant(header, (100, 100)) is None
    assert units.size_meant(header, (99, 202)) == (20, 40)
    assert units.size_meant(header, (202, 99)) == (40, 20)
    assert units.size_meant(ImageHeader((20, 40), 3), (100, 100)) == (20, 40)
    assert units.size_meant(header, None) is None
    assert CocoUnits().size_meant(header, (7, 9)) == (7, 9)


def test_shares_are_not_rescaled() -> None:
    with pytest.raises(DataError, match="choose normalized boxes, or rescale"):
        CocoUnits("normalized_xywh", rescale=True)
