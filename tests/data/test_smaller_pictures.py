"""Pictures that conversion makes smaller."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from boxwright.data.open_dataset import open_dataset
from boxwright.data.smaller_pictures import SmallerPictures
from tests.cli.test_commands import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """YOLO's data: a photograph on its side by EXIF (upright 300 × 400), and a small picture."""
    for name in ("images/train", "labels/train"):
        (tmp_path / "data" / name).mkdir(parents=True)
    pixels = np.zeros((400, 300, 3), np.uint8)
    pixels[100:200, 60:180] = 200  # y, x of the upright picture
    turned = Image.fromarray(np.rot90(pixels).copy())  # as a camera stores it, to be turned by 90° clockwise
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "data" / "images" / "train" / "large.jpg", quality=95, exif=exif)
    Image.fromarray(pixels[:80, :100]).save(tmp_path / "data" / "images" / "train" / "small.png")
    for name in ("large", "small"):
        (tmp_path / "data" / "labels" / "train" / f"{name}.txt").write_text("0 0.4 0.375 0.4 0.25\n")
    (tmp_path / "data" / "data.yaml").write_text("train: images/train\nval: images/train\nnames: [thing]\n")
    return tmp_path / "data"


@pytest.mark.parametrize("target", ["coco/out.json", "records/out.record", "yolo/data.yaml", "voc"])
def test_boxes_lie_where_the_object_is(target: str, folder: Path, tmp_path: Path) -> None:
    """Half of 400 pixels: the object, 60 to 180 by 100 to 200, then lies at 30 to 90 by 50 to 100."""
    path = tmp_path / target
    path.parent.mkdir(exist_ok=True)
    run("convert", folder / "data.yaml", path, "--max_side", "200")
    made = open_dataset(str(path))
    large, small = sorted((made[number] for number in range(2)), key=lambda one: -max(one.image.shape))
    assert large.image.shape == (200, 150, 3)
    np.testing.assert_allclose(large.boxes, [[30, 50, 90, 100]], atol=0.51)
    bright = large.image[..., 0] > 100
    rows, columns = bright.any(1).nonzero()[0], bright.any(0).nonzero()[0]
    assert abs(rows[[0, -1]] - [50, 99]).max() <= 1
    assert abs(columns[[0, -1]] - [30, 89]).max() <= 1
    assert small.image.shape == (80, 100, 3)
    np.testing.assert_allclose(small.boxes, [[20, 20, 60, 40]], atol=0.51)


def test_small_pictures_are_copied_byte_for_byte(folder: Path) -> None:
    dataset = SmallerPictures(open_dataset(str(folder / "data.yaml")), 100)
    assert len(dataset) == 2
    for number in range(2):
        data, name = dataset.encoded(number)
        stored = (folder / "images" / "train" / Path(name).name).read_bytes()
        assert (data == stored) == ("small" in name)


def test_an_annotation_tools_pictures_stay_as_they_are(folder: Path, tmp_path: Path) -> None:
    run("convert", folder / "data.yaml", tmp_path / "x.xml", "--to", "cvat", "--max_side", "100", status=1)
    assert not (tmp_path / "x.xml").exists()
