"""Conversion keeps every box exactly, whatever the way round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boxwright.base.errors import DataError
from boxwright.data.convert import write_coco, write_tfrecords, write_voc
from boxwright.data.dataset import Dataset
from boxwright.data.open_dataset import open_dataset
from boxwright.data.shapes import ShapesDataset
from boxwright.data.survey import survey_dataset
from boxwright.data.tfrecord import TFRecordFile, write_records
from boxwright.data.voc import VocDataset
from tests.conftest import extra_folder

pytestmark = pytest.mark.filterwarnings("ignore:masks are dropped")


def same(first: Dataset, second: Dataset) -> int:
    """Assert equal images, boxes, classes and flags; count the boxes."""
    assert len(first) == len(second)
    ours = {Path(first[i].filename).stem: first[i] for i in range(len(first))}
    count = 0
    for index in range(len(second)):
        other = second[index]
        sample = ours[Path(other.filename).stem]
        np.testing.assert_array_equal(sample.image, other.image)
        np.testing.assert_array_equal(sample.boxes, other.boxes)
        names = [first.categories.by_label(label).name for label in sample.labels.tolist()]
        assert names == [second.categories.by_label(label).name for label in other.labels.tolist()]
        np.testing.assert_array_equal(sample.difficult, other.difficult)
        count += len(sample.boxes)
    return count


def round_trip(start: Dataset, folder: Path) -> int:
    """VOC → TFRecord (two shards) → COCO → VOC."""
    write_tfrecords(start, folder / "r.record", num_shards=2)
    records = open_dataset(f"{folder}/r.record@2")
    write_coco(records, folder / "coco" / "c.json")
    from_coco = open_dataset(folder / "coco" / "c.json", label_map=folder / "label_map.pbtxt")
    write_voc(from_coco, folder / "voc")
    return same(start, open_dataset(folder / "voc", label_map=folder / "label_map.pbtxt"))


def test_round_trip_of_shapes(tmp_path: Path) -> None:
    write_voc(ShapesDataset(15, seed=3, size=(61, 83)), tmp_path / "start")
    assert round_trip(VocDataset(tmp_path / "start"), tmp_path) > 20


def test_round_trip_keeps_decimals_and_odd_boxes(tmp_path: Path) -> None:
    write_voc(ShapesDataset(1, seed=4, size=(333, 777)), tmp_path / "start")
    (xml,) = (tmp_path / "start" / "Annotations").glob("*.xml")
    corners = [(0.25, 1.5, 700.125, 332.75), (5, 5, 5, 5), (-3, -2, 800, 400), (9, 9, 10, 10)]
    objects = "".join(
        f"<object><name>star</name><difficult>{n % 2}</difficult><bndbox><xmin>{a}</xmin><ymin>{b}</ymin>"
        f"<xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for n, (a, b, c, d) in enumerate(corners)
    )
    xml.write_text(f"<annotation><filename>{xml.stem}.jpg</filename>{objects}</annotation>")
    assert round_trip(VocDataset(tmp_path / "start"), tmp_path) == 4


@pytest.mark.slow
def test_round_trip_of_real_data(tmp_path: Path) -> None:
    folder = extra_folder("BOXWRIGHT_DATA")
    if folder is None:
        pytest.skip("BOXWRIGHT_DATA names no folder with bccd; the made-up data above covers the path")
    dataset = VocDataset(folder / "bccd", "test")
    assert round_trip(dataset, tmp_path) == sum(len(dataset[i].boxes) for i in range(len(dataset)))


def test_an_image_turned_by_exif_keeps_its_boxes(tmp_path: Path) -> None:
    """Annotated upright, stored lying: every format gives the same picture and boxes."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "v" / "JPEGImages").mkdir(parents=True)
    (tmp_path / "v" / "Annotations").mkdir()
    Image.new("RGB", (100, 60), (9, 99, 9)).save(tmp_path / "v" / "JPEGImages" / "a.jpg", exif=exif)
    (tmp_path / "v" / "Annotations" / "a.xml").write_text(
        "<annotation><filename>a.jpg</filename><size><width>60</width><height>100</height></size><object><name>o</name>"
        "<bndbox><xmin>10</xmin><ymin>20</ymin><xmax>50</xmax><ymax>90</ymax></bndbox></object></annotation>"
    )
    start = VocDataset(tmp_path / "v")
    assert start[0].image.shape == (100, 60, 3)
    assert round_trip(start, tmp_path) == 1


def test_names_that_clash_in_voc(tmp_path: Path) -> None:
    first = ShapesDataset(2, seed=1)
    write_coco(first, tmp_path / "c" / "c.json")
    text = (tmp_path / "c" / "c.json").read_text().replace("shapes-000001.jpg", "shapes-000000.png")
    (tmp_path / "c" / "c.json").write_text(text)
    (tmp_path / "c" / "images" / "shapes-000001.jpg").rename(tmp_path / "c" / "images" / "shapes-000000.png")
    write_voc(open_dataset(tmp_path / "c" / "c.json"), tmp_path / "v")
    again = VocDataset(tmp_path / "v")
    assert len(again) == 2
    assert sum(len(again[i].boxes) for i in range(2)) == len(first[0].boxes) + len(first[1].boxes)


def test_what_a_format_cannot_hold_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="masks are dropped: VOC cannot represent them"):
        write_voc(ShapesDataset(1, seed=1), tmp_path)


def test_masks_survive(tmp_path: Path) -> None:
    start = ShapesDataset(4, seed=2)
    write_tfrecords(start, tmp_path / "a.record")
    write_coco(open_dataset(tmp_path / "a.record", load_masks=True), tmp_path / "c" / "c.json")
    again = open_dataset(tmp_path / "c" / "c.json", load_masks=True)
    for index in range(4):
        np.testing.assert_array_equal(start[index].masks, again[index].masks)
        np.testing.assert_array_equal(start[index].areas, again[index].areas)


def test_records_without_names_need_a_label_map(tmp_path: Path) -> None:
    write_tfrecords(ShapesDataset(1), tmp_path / "a.record")
    (tmp_path / "label_map.pbtxt").unlink()
    # The names' feature under another name of the same length.
    record = TFRecordFile(tmp_path / "a.record")[0].replace(b"image/object/class/text", b"image/object/class/tezt")
    write_records(tmp_path / "b.record", [record])
    with pytest.raises(DataError, match="objects have class numbers but no names; set a label_map"):
        open_dataset(tmp_path / "b.record")


def test_a_label_map_of_other_classes_is_not_overwritten(tmp_path: Path) -> None:
    write_tfrecords(ShapesDataset(1), tmp_path / "a.record")
    write_tfrecords(ShapesDataset(1), tmp_path / "again.record")
    text = (tmp_path / "label_map.pbtxt").read_text()
    (tmp_path / "label_map.pbtxt").write_text(text.replace("circle", "ring"))
    with pytest.raises(DataError, match="has other classes"):
        write_tfrecords(ShapesDataset(1), tmp_path / "b.record")
    assert not (tmp_path / "b.record").exists()


def test_survey_finds_suspicious_boxes(tmp_path: Path) -> None:
    write_voc(ShapesDataset(2, seed=1, size=(50, 60)), tmp_path)
    first, second = sorted((tmp_path / "Annotations").glob("*.xml"))
    corners = {
        "no area": (5, 5, 5, 9),
        "outside the image": (70, 0, 80, 9),
        "crosses the border": (50, 0, 70, 9),
        "one pixel or less across": (3, 3, 4, 4),
        "more than 20 times as long as wide": (0, 0, 59, 2),
    }
    objects = "".join(
        f"<object><name>o</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for a, b, c, d in [*corners.values(), (10, 10, 30, 30), (10, 10, 30, 30)]
    )
    first.write_text(f"<annotation>{objects}</annotation>")
    second.write_text("<annotation></annotation>")
    (tmp_path / "JPEGImages" / f"{second.stem}.jpg").write_bytes(b"broken")
    survey, shown = survey_dataset(VocDataset(tmp_path))
    assert len(survey.suspicious) == len(corners) + 1
    for reason in [*corners, "twice in this image"]:
        assert sum(reason in line for line in survey.suspicious) == 1, reason
    assert survey.images == 1
    assert len(survey.unreadable) == 1
    assert survey.boxes["o"] == 7
    assert len(shown) == 1


def test_shapes_follow_from_the_seed() -> None:
    first, again, other = ShapesDataset(50, seed=1), ShapesDataset(60, seed=1), ShapesDataset(50, seed=2)
    np.testing.assert_array_equal(first[7].image, again[7].image)
    assert not np.array_equal(first[7].image, other[7].image)
    counts = [len(first[i].boxes) for i in range(50)]
    assert min(counts) == 0
    assert max(counts) >= 4
    for index in range(50):
        sample = first[index]
        assert sample.masks is not None
        for mask, (x_min, y_min, x_max, y_max) in zip(sample.masks, sample.boxes.astype(int).tolist(), strict=True):
            assert mask.sum() == mask[y_min:y_max, x_min:x_max].sum() > 0
    with pytest.raises(IndexError):
        first[50]
