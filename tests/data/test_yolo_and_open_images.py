"""YOLO's text labels and Open Images' CSV: the same samples as COCO gives, and clear words for what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from boxwright.base.errors import DataError
from boxwright.cli.main import app
from boxwright.config.load import parse_message
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import write_yolo
from boxwright.data.dataset import source_sizes
from boxwright.data.open_dataset import open_dataset
from boxwright.data.open_images import OpenImagesDataset
from boxwright.data.yolo import YoloDataset
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset
from boxwright.types import Categories, Category
from tests.data.other_formats import open_images_of, yolo_of
from tests.data.yolo_folders import picture


def coco(shapes_data: Path) -> CocoDataset:
    return CocoDataset(shapes_data / "coco" / "instances.json")


def by_name(dataset: Any) -> dict[str, Any]:
    return {Path(sample.filename).stem: sample for sample in (dataset[index] for index in range(len(dataset)))}


def titles(dataset: Any, sample: Any) -> list[str]:
    return [dataset.categories.by_label(label).title for label in sample.labels.tolist()]


def compare(dataset: Any, shapes_data: Path, missing: int = 0) -> None:
    wanted = coco(shapes_data)
    ours, theirs = by_name(dataset), by_name(wanted)
    assert len(theirs) == 12
    assert len(theirs) - len(ours) == missing
    assert len(ours) > 6
    for name, sample in ours.items():
        assert np.array_equal(sample.image, theirs[name].image)
        np.testing.assert_allclose(sample.boxes, theirs[name].boxes, atol=1e-3)
        assert titles(dataset, sample) == titles(wanted, theirs[name])


def test_yolo_is_what_coco_is(shapes_data: Path) -> None:
    dataset = YoloDataset(yolo_of(shapes_data))
    compare(dataset, shapes_data)
    assert source_sizes(dataset) == (12,)
    data, name = dataset.encoded(0)
    assert (shapes_data / "yolo" / "images" / "train" / name).read_bytes() == data
    assert [category.id for category in dataset.categories] == [1, 2, 3, 4]


def test_open_images_are_what_coco_is(shapes_data: Path) -> None:
    path = open_images_of(shapes_data)
    empty = sum(not len(sample.boxes) for sample in by_name(coco(shapes_data)).values())
    compare(OpenImagesDataset(path), shapes_data, missing=empty)
    whole = OpenImagesDataset(path, image_labels=path.parent / "image-labels.csv")
    compare(whole, shapes_data)
    assert [category.name for category in whole.categories] == ["/m/01", "/m/02", "/m/03", "/m/04"]
    samples = by_name(whole).values()
    assert all(sample.verified_labels.tolist() == [0] for sample in samples)
    assert all(sample.negative_labels.tolist() == [0] for sample in samples), "their confidence is 0"
    count = sum(len(sample.boxes) for sample in samples)
    assert sum(int(sample.group_of.sum()) for sample in samples) == -(-count // 5)


def test_outlines_are_masks(shapes_data: Path) -> None:
    dataset = YoloDataset(yolo_of(shapes_data, outlines=True), load_masks=True)
    compare(dataset, shapes_data)
    for sample in by_name(dataset).values():
        for box, mask in zip(sample.boxes, sample.masks, strict=True):
            rows, columns = np.nonzero(mask)
            found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            np.testing.assert_allclose(found, box, atol=1.01)
    boxes = YoloDataset(yolo_of(shapes_data), load_masks=True)
    full = next(index for index in range(12) if len(YoloDataset(yolo_of(shapes_data))[index].boxes))
    with pytest.raises(DataError, match="has a box but no outline; masks were requested"):
        boxes[full]


def test_a_label_map_chooses_classes(shapes_data: Path, tmp_path: Path) -> None:
    first, second, *_ = coco(shapes_data).categories
    (tmp_path / "map.pbtxt").write_text(
        f'item {{ id: 3 name: "{second.name}" }}\nitem {{ id: 1 name: "{first.name}" }}'
    )
    reader = parse_message(
        f'label_map_path: "{tmp_path}/map.pbtxt" open_images_input_reader {{ annotations: "{open_images_of(shapes_data)}" }}',
        m.InputReader,
    )
    dataset = build_dataset(reader, "train_input_reader")
    samples = [dataset[index] for index in range(len(dataset))]
    assert {label for sample in samples for label in sample.labels.tolist()} == {0, 2}
    everything = by_name(coco(shapes_data)).values()
    others = sum(int((~np.isin(sample.labels, [first.label, second.label])).sum()) for sample in everything)
    assert sum(sample.left_out for sample in samples) == others > 0


@pytest.mark.slow_cases("yolo")
@pytest.mark.parametrize("what", ["yolo", "open_images"])
def test_convert(shapes_data: Path, tmp_path: Path, what: str) -> None:
    source = yolo_of(shapes_data).parent if what == "yolo" else open_images_of(shapes_data)
    # COCO has no place for Open Images' groups.
    target = tmp_path / "out" / ("instances.json" if what == "yolo" else "all.record")
    result = CliRunner().invoke(app, ["convert", str(source), str(target)])
    assert result.exit_code == 0, result.output
    written, wanted = open_dataset(target), open_dataset(source)
    assert len(written) == len(wanted) > 6
    for index in range(len(written)):
        assert written.encoded(index)[0] == wanted.encoded(index)[0]
        np.testing.assert_allclose(written[index].boxes, wanted[index].boxes, atol=1e-3)
        assert written[index].group_of.tolist() == wanted[index].group_of.tolist()
    shown = CliRunner().invoke(app, ["inspect", str(source), "--sheet", str(tmp_path / "sheet.png")])
    assert shown.exit_code == 0, shown.output


def test_lists_and_other_layouts(shapes_data: Path, tmp_path: Path) -> None:
    folder = yolo_of(shapes_data).parent
    images = sorted((folder / "images" / "train").iterdir())
    (tmp_path / "list.txt").write_text("\n".join(str(image) for image in images[:3]))
    (tmp_path / "data.yaml").write_text(
        f"train: list.txt\nval: [{folder}/images/train, list.txt]\nnames: [a, b, c, d]\n"
    )
    with pytest.raises(DataError, match="allow_paths_outside"):
        YoloDataset(tmp_path)
    assert len(YoloDataset(tmp_path, allow_paths_outside=True)) == 3
    assert len(YoloDataset(tmp_path, "val", allow_paths_outside=True)) == 15
    with pytest.raises(DataError, match="no 'test'; there are: train, val"):
        YoloDataset(tmp_path, "test")


def yolo(tmp_path: Path, label: str = "", text: str = "train: images\nnames: [a, b]\n") -> YoloDataset:
    (tmp_path / "images").mkdir(exist_ok=True)
    (tmp_path / "labels").mkdir(exist_ok=True)
    from PIL import Image

    Image.new("RGB", (20, 10)).save(tmp_path / "images" / "one.png")
    (tmp_path / "labels" / "one.txt").write_text(label)
    (tmp_path / "data.yaml").write_text(text)
    return YoloDataset(tmp_path)


def test_a_line_by_hand(tmp_path: Path) -> None:
    sample = yolo(tmp_path, "1 0.5 0.5 0.5 0.2\n\n0 0.0 0.0 0.5 0.0 0.5 1.0\n")[0]
    np.testing.assert_allclose(sample.boxes, [[5, 4, 15, 6], [0, 0, 10, 10]], atol=1e-5)
    assert sample.labels.tolist() == [1, 0]
    assert len(yolo(tmp_path, "")[0].boxes) == 0


@pytest.mark.parametrize(
    ("label", "wanted"),
    [
        ("0 0.5 0.5 0.5", "line 1: expected a class and 4 numbers"),
        ("0.5 0.5 0.5 0.5 0.5", "line 1: expected a class"),
        ("0 0.5 0.5 0.5 nan", "line 1: expected a class"),
        ("cat 0.5 0.5 0.5 0.5", "line 1: expected numbers"),
        ("nan 0.5 0.5 0.5 0.5", "line 1: expected a class"),
        ("2 0.5 0.5 0.5 0.5", "class 2, but data.yaml names 2 from 0"),
        ("-1 0.5 0.5 0.5 0.5", "class -1, but"),
        ("0 1e300 0.5 0.5 0.5", "line 1: expected a class"),
    ],
)
def test_bad_labels(tmp_path: Path, label: str, wanted: str) -> None:
    dataset = yolo(tmp_path, label)
    with pytest.raises(DataError, match=wanted):
        dataset[0]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("train: images\n", "names: expected a list"),
        ("train: images\nnames: [a, a]\n", r"data\.yaml: two categories have the name 'a'"),
        ("train: images\nnames: [[a]]\n", "names: expected a list"),
        ("train: elsewhere\nnames: [a]\n", "no such folder or list"),
        ("train: labels\nnames: [a]\n", "no images in labels"),
        ("train: ../elsewhere\nnames: [a]\n", "allow_paths_outside"),
        ("names: [a]\n", "no 'train'; there are: none"),
        ("- a\n", "expected names and lists"),
        ("a: [\n", "not YAML"),
        ("train: images\nnames: [a]\nkpt_shape: [17, 4]\n", "kpt_shape: expected the number of keypoints, and 2 or 3"),
        ("train: 'a\\0b'\nnames: [a]\n", "no such folder or list|null byte"),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        yolo(tmp_path, "", text)


def csv_of(tmp_path: Path, text: str) -> OpenImagesDataset:
    (tmp_path / "boxes.csv").write_text(text)
    return OpenImagesDataset(tmp_path / "boxes.csv")


HEAD = "ImageID,LabelName,XMin,XMax,YMin,YMax\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "no column ImageID"),
        ("a,b\n1,2\n", "no column ImageID, LabelName, XMin, YMin, XMax, YMax; there are: a, b"),
        (HEAD, "no boxes"),
        (f"{HEAD}a,/m/0,0,1\n", "line 2: too few columns"),
        (f"{HEAD}a,/m/0,0,x,0,1\n", "line 2: XMax: expected a number"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        csv_of(tmp_path, text)


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ("missing,/m/0,0,1,0,1", "no image"),
        ("../up,/m/0,0,1,0,1", "allow_paths_outside"),
        ("here,/m/0,0,inf,0,1", "not finite"),
    ],
)
def test_bad_rows(tmp_path: Path, row: str, wanted: str) -> None:
    from PIL import Image

    Image.new("RGB", (20, 10)).save(tmp_path / "here.jpg")
    dataset = csv_of(tmp_path, f"{HEAD}{row}\n")
    with pytest.raises(DataError, match=wanted):
        dataset[0]


def test_pictures_of_open_images(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "here.jfif", (20, 10), orientation=6)
    (tmp_path / "images" / "here.jfif").rename(tmp_path / "images" / "here.odd")
    dataset = csv_of(tmp_path, f"{HEAD}here,/m/0,0,0.5,0,1\n")
    assert dataset[0].image.shape == (20, 10, 3)
    assert dataset.without_pixels(0).image.shape == (20, 10, 0)
    for sample in (dataset[0], dataset.without_pixels(0)):
        np.testing.assert_allclose(sample.boxes, [[0, 0, 5, 20]])
    stored = OpenImagesDataset(tmp_path / "boxes.csv", ignore_exif=True)
    np.testing.assert_allclose(stored[0].boxes, [[0, 0, 10, 10]])
    only = Categories((Category(0, 1, "/m/1"),))
    dropped = OpenImagesDataset(tmp_path / "boxes.csv", categories=only).notices.boxes
    assert list(dropped.lines()) == ["of classes that are not in the label map: 1"]


def test_a_picture_of_open_images_that_may_be_two(tmp_path: Path) -> None:
    for name in ("here.png", "here.jpg"):
        picture(tmp_path / "images" / name)
    assert csv_of(tmp_path, f"{HEAD}here,/m/0,0,1,0,1\n").encoded(0)[1] == "here.jpg"
    picture(tmp_path / "images" / "below" / "here.jpg")
    with pytest.raises(DataError, match="may be .*here.jpg or .*here.jpg; rename one"):
        csv_of(tmp_path, f"{HEAD}here,/m/0,0,1,0,1\n")[0]


def test_training_reads_them(shapes_data: Path) -> None:
    for text in (
        f'yolo_input_reader {{ data: "{yolo_of(shapes_data)}" }}',
        f'open_images_input_reader {{ annotations: "{open_images_of(shapes_data)}" }}',
    ):
        dataset = build_dataset(parse_message(text, m.InputReader), "train_input_reader")
        assert sum(len(dataset[index].boxes) for index in range(len(dataset))) > 12


def roboflow(shapes_data: Path, folder: Path) -> Path:
    """Lay out data as Roboflow's YOLO exports do: folders beside data.yaml, which says `../`."""
    import shutil

    import yaml

    own = YoloDataset(yolo_of(shapes_data))
    for split in ("train", "valid"):
        for kind in ("images", "labels"):
            shutil.copytree(shapes_data / "yolo" / kind / "train", folder / split / kind)
    content = {"train": "../train/images", "val": "../valid/images", "nc": 4, "names": [c.name for c in own.categories]}
    (folder / "data.yaml").write_text(yaml.safe_dump(content))
    return folder / "data.yaml"


def test_roboflow_exports_are_read_as_their_users_expect(shapes_data: Path, tmp_path: Path) -> None:
    path = roboflow(shapes_data, tmp_path / "export")
    for split in ("train", "val", "valid"):
        compare(YoloDataset(path, split), shapes_data)
    (tmp_path / "export" / "train" / "labels" / f"{YoloDataset(path).images[0].stem}.txt").write_text("")
    assert len(YoloDataset(path)[0].boxes) == 0, "an empty label file is an image without objects"
    # What really lies outside stays refused, also where nothing of that name lies inside.
    (tmp_path / "export" / "data.yaml").write_text("train: ../elsewhere/images\nnames: [a]\n")
    (tmp_path / "elsewhere" / "images").mkdir(parents=True)
    with pytest.raises(DataError, match="lies outside"):
        YoloDataset(path)


def test_a_valid_list_is_found_by_either_name(shapes_data: Path, tmp_path: Path) -> None:
    path = roboflow(shapes_data, tmp_path / "export")
    path.write_text(path.read_text().replace("val: ", "valid: "))
    assert len(YoloDataset(path, "val")) == len(YoloDataset(path, "valid")) == 12
    with pytest.raises(DataError, match="no 'test'; there are: train, valid"):
        YoloDataset(path, "test")


def test_roboflow_coco_leaves_out_the_class_above(shapes_data: Path, tmp_path: Path) -> None:
    import json
    import shutil

    folder = tmp_path / "train"
    shutil.copytree(shapes_data / "coco" / "images", folder)
    content = json.loads((shapes_data / "coco" / "instances.json").read_text())
    for row in content["categories"]:
        row["supercategory"] = "shapes"
    content["categories"].insert(0, {"id": 0, "name": "shapes", "supercategory": "none"})
    (folder / "_annotations.coco.json").write_text(json.dumps(content))
    dataset = open_dataset(folder)
    assert isinstance(dataset, CocoDataset)
    compare(dataset, shapes_data)
    assert [category.id for category in dataset.categories] == [1, 2, 3, 4]
    assert list(dataset.notices.assumed.lines()) == [
        "category 0 left out, which is the supercategory of the others: 1 (shapes)"
    ]
    # One that objects have is a class.
    content["annotations"][0]["category_id"] = 0
    (folder / "_annotations.coco.json").write_text(json.dumps(content))
    assert [category.id for category in open_dataset(folder).categories] == [0, 1, 2, 3, 4]


def test_yolo_is_written_and_read_again(shapes_data: Path, tmp_path: Path) -> None:
    source, target = str(shapes_data / "voc"), str(tmp_path / "yolo" / "data.yaml")
    done = CliRunner().invoke(app, ["convert", source, target])
    assert done.exit_code == 0, done.output
    compare(YoloDataset(target), shapes_data)
    assert len(list((tmp_path / "yolo" / "labels" / "train").glob("*.txt"))) == 12
    yolo = yolo_of(shapes_data)
    done = CliRunner().invoke(app, ["convert", str(yolo), target])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["convert", target, str(tmp_path / "again" / "data.yaml"), "--image_set", "train"])
    assert done.exit_code == 0, done.output
    compare(YoloDataset(tmp_path / "again"), shapes_data)


def test_lists_of_one_yolo_add_up(shapes_data: Path, tmp_path: Path) -> None:
    source, target = open_dataset(shapes_data / "voc"), tmp_path / "data.yaml"
    write_yolo(source, target, "train")
    write_yolo(source, target, "val")
    assert [len(YoloDataset(target, split)) for split in ("train", "val")] == [12, 12]
    target.write_text(target.read_text().replace(source.categories.by_label(0).name, "other"))
    with pytest.raises(DataError, match="already exists and has other classes"):
        write_yolo(source, target, "test")


@pytest.mark.parametrize("name", ["labels.txt", "data.csv", "x.xml"])
def test_what_cannot_be_written_is_refused(shapes_data: Path, tmp_path: Path, name: str) -> None:
    done = CliRunner().invoke(app, ["convert", str(shapes_data / "voc"), str(tmp_path / name)])
    assert done.exit_code != 0
    assert "unknown format; expected *.json" in str(done.exception)
    assert not (tmp_path / name).exists()
