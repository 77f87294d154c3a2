"""Conversion keeps every box on its object, however EXIF turns the picture and whatever the reader's rule."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from boxwright.data.coco import CocoDataset
from boxwright.data.convert import (
    stored_file,
    upright_file,
    without_orientation,
    write_coco,
    write_tfrecords,
    write_voc,
    write_yolo,
)
from boxwright.data.image_io import decode_image, encode_png, parse_header
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.data.voc import VocDataset
from boxwright.types import Categories, Category, Sample

CLASSES = Categories((Category(0, 1, "red"), Category(1, 2, "blue")))
COLORS = ((250, 0, 0), (0, 0, 250))
# Of the same pixels before and after: lossless formats, and JPEG of flat blocks.
FORMATS = {"png": "PNG", "webp": "WEBP", "tif": "TIFF", "jpg": "JPEG"}


def stored(square: bool) -> NDArray[np.uint8]:
    """Two blocks that no turn or reflection leaves in place, on JPEG's grid of 16 pixels."""
    image = np.full((64, 64 if square else 96, 3), 128, np.uint8)
    image[0:16, 16:32] = COLORS[0]
    image[32:64, 0:16] = COLORS[1]
    return image


def file_of(image: NDArray[np.uint8], orientation: int, suffix: str) -> bytes:
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    # More than the one tag, as cameras write.
    exif[0x010F] = "maker"
    more: dict[str, Any] = (
        {"quality": 95, "subsampling": 0} if suffix == "jpg" else {"lossless": True} if suffix == "webp" else {}
    )
    Image.fromarray(image).save(buffer, FORMATS[suffix], exif=exif, **more)
    return buffer.getvalue()


class OnePicture:
    """A data set of one picture, read upright or as stored."""

    def __init__(self, data: bytes, suffix: str, upright: bool) -> None:
        self.name, self.categories, self._data, self._suffix = "one", CLASSES, data, suffix
        image = decode_image(data, "one", upright=upright)
        self.sample = Sample(image, boxes_of(image), np.array([0, 1]), id="1", filename=f"p.{suffix}")

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Sample:
        return self.sample

    def encoded(self, index: int) -> tuple[bytes, str]:
        return self._data, f"p.{self._suffix}"


def boxes_of(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the boxes around the two colors."""
    boxes = []
    for color in COLORS:
        places = np.argwhere((np.abs(image.astype(int) - color) < 40).all(-1))
        (y, x), (bottom, right) = places.min(0), places.max(0) + 1
        boxes.append([x, y, right, bottom])
    return np.array(boxes, np.float32)


EVERY = [
    (orientation, square, upright, suffix)
    for orientation in range(1, 9)
    for square in (False, True)
    for upright in (False, True)
    for suffix in FORMATS
]


@pytest.mark.parametrize(("orientation", "square", "upright", "suffix"), EVERY)
def test_every_format(orientation: int, square: bool, upright: bool, suffix: str, tmp_path: Path) -> None:
    data = OnePicture(file_of(stored(square), orientation, suffix), suffix, upright)
    wanted, boxes = data.sample.image, data.sample.boxes

    again = CocoDataset(write_coco(data, tmp_path / "c" / "c.json"))[0]
    np.testing.assert_array_equal(again.image, wanted)
    np.testing.assert_array_equal(again.boxes, boxes)

    voc = VocDataset(write_voc(data, tmp_path / "v"))
    # Upright, as its reader and viewers show the file.
    np.testing.assert_array_equal(decode_image(voc.encoded(0)[0], "voc", upright=True), wanted)
    np.testing.assert_array_equal(voc[0].boxes, boxes)

    yolo = write_yolo(data, tmp_path / "y" / "data.yaml").parent
    (file,), (text,) = (yolo / "images" / "train").iterdir(), (yolo / "labels" / "train").iterdir()
    image = decode_image(file.read_bytes(), "yolo", upright=True)
    np.testing.assert_array_equal(image, wanted)
    rows = np.array([line.split()[1:] for line in text.read_text().splitlines()], float)
    scale = np.array([image.shape[1], image.shape[0]])
    corners = np.concatenate([rows[:, :2] - rows[:, 2:] / 2, rows[:, :2] + rows[:, 2:] / 2], 1) * np.tile(scale, 2)
    np.testing.assert_allclose(corners, boxes, atol=0.01)

    # TensorFlow decodes JPEG and PNG alone, and turns none.
    (record,) = map(Path, write_tfrecords(data, tmp_path / "t.record"))
    records = TFRecordDataset([record], CLASSES)
    np.testing.assert_allclose(boxes_of(records[0].image), boxes)
    np.testing.assert_allclose(records[0].boxes, boxes, atol=1e-4)
    # And back: what is stored there stays what boxes refer to.
    last = CocoDataset(write_coco(records, tmp_path / "b" / "c.json"))[0]
    np.testing.assert_array_equal(last.image, records[0].image)
    np.testing.assert_allclose(last.boxes, boxes, atol=1e-3)


@pytest.mark.parametrize("suffix", FORMATS)
def test_bytes_are_kept_where_they_can_be(suffix: str) -> None:
    name = f"p.{suffix}"
    plain, turned = (file_of(stored(square=False), orientation, suffix) for orientation in (1, 6))
    upright, lying = (decode_image(turned, name, upright=how) for how in (True, False))
    assert upright_file(lying, plain, name) == (plain, name)
    assert upright_file(upright, turned, name) == (turned, name)
    assert stored_file(lying, turned, name) is turned
    assert stored_file(lying, plain, name) is plain
    # One number of the file changes, and a PNG's checksum.
    changed, same = upright_file(lying, turned, name)
    assert same == name
    assert len(changed) == len(turned)
    assert sum(a != b for a, b in zip(changed, turned, strict=True)) <= 1 + 4 * (suffix == "png")
    assert parse_header(changed, name).orientation == 1
    with Image.open(io.BytesIO(changed)) as image:
        assert image.getexif()[0x010F] == "maker"


def test_a_picture_that_is_none_of_its_files_is_written_anew() -> None:
    turned = file_of(stored(square=False), 6, "webp")
    other = np.full((5, 7, 3), 9, np.uint8)
    for data, name in ((upright_file(other, turned, "a/p.webp")), (stored_file(other, turned, "p"), "a/p.png")):
        assert name == "a/p.png"
        np.testing.assert_array_equal(decode_image(data, name, upright=True), other)
    # JPEG stays JPEG, under an honest name.
    data, name = upright_file(other, file_of(stored(square=False), 3, "jpg"), "p.JPEG")
    assert (name, data[:3]) == ("p.JPEG", b"\xff\xd8\xff")


@pytest.mark.parametrize("suffix", FORMATS)
def test_damaged_exif_is_left_alone(suffix: str) -> None:
    whole = file_of(stored(square=True), 6, suffix)
    assert without_orientation(encode_png(stored(square=True))) is None
    assert without_orientation(b"GIF89a" + bytes(40)) is None
    random = np.random.default_rng(0)
    for _ in range(200):
        data = bytearray(whole[: random.integers(40, len(whole))])
        for place in random.integers(8, min(len(data), 200), 3):
            data[place] = random.integers(256)
        changed = without_orientation(bytes(data))
        assert changed is None or len(changed) == len(data)
