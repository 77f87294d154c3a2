"""Crops, YOLO's labels, classes, and names of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError, OutputError
from boxwright.data.image_io import encode_png, read_image
from boxwright.inference.detect_functions import parse_classes
from boxwright.inference.object_files import write_class_names, write_crops, write_yolo_labels
from boxwright.inference.predict import predict
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.sources import find_sources
from boxwright.types import Array, Categories, Category, Detections
from tests.inference.blobs import find_blobs, picture_of

CLASSES = Categories((Category(0, 1, "cat"), Category(2, 7, "b/w dog"), Category(3, 9, "left, upper")))


def detections(boxes: list[list[float]], labels: list[int], size: tuple[int, int]) -> Detections[Array]:
    scores = np.linspace(0.9, 0.5, len(boxes)).astype(np.float32)
    return Detections(np.array(boxes, np.float32).reshape(-1, 4), scores, np.array(labels), size, CLASSES)


def test_labels_are_centers_and_sizes_in_shares_of_the_image(tmp_path: Path) -> None:
    """A box at the border is cut; worked by hand for an image of 200x100."""
    objects = detections([[20, 10, 60, 30], [-10, 90, 50, 120]], [2, 0], (100, 200))
    write_yolo_labels(tmp_path / "a" / "x y.txt", objects)
    assert (tmp_path / "a" / "x y.txt").read_text() == (
        "2 0.200000 0.200000 0.200000 0.200000\n0 0.125000 0.950000 0.250000 0.100000\n"
    )
    write_yolo_labels(tmp_path / "none.txt", detections([], [], (100, 200)))
    assert (tmp_path / "none.txt").read_text() == ""
    write_class_names(tmp_path / "classes.txt", CLASSES)
    assert (tmp_path / "classes.txt").read_text().splitlines() == ["cat", "class 2", "b/w dog", "left, upper"]


def test_crops_are_cut_at_the_border_and_named_by_class(tmp_path: Path) -> None:
    image = np.arange(20 * 30 * 3, dtype=np.uint32).reshape(20, 30, 3).astype(np.uint8)
    objects = detections([[2, 3, 9.6, 8], [25, 15, 40, 30], [4, 4, 4.2, 9], [50, 3, 60, 8]], [0, 2, 0, 0], (20, 30))
    write_crops(tmp_path, "x", image, objects, ".png")
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    assert written == ["b_w dog/x_2.png", "cat/x_1.png"], "the others have no whole pixel in the image"
    np.testing.assert_array_equal(read_image(tmp_path / "cat" / "x_1.png"), image[3:8, 2:10])
    np.testing.assert_array_equal(read_image(tmp_path / "b_w dog" / "x_2.png"), image[15:, 25:])


def two_classes(images: Sequence[NDArray[np.uint8]]) -> list[Detections[Array]]:
    """The blobs, the first of which is a cat, the second a dog."""
    return [
        Detections(one.boxes, one.scores, np.array([0, 2, 0][: len(one)]), one.image_size, CLASSES)
        for one in find_blobs(images)
    ]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    picture = picture_of([(4, 8, 20, 24), (40, 8, 50, 18)], 40, 80)
    for name in ("holiday (1).png", "holiday (1).jpg.png", "été à l'île.png", "empty.png"):
        (tmp_path / "photos" / name).write_bytes(encode_png(picture if name != "empty.png" else picture[:4]))
    return tmp_path / "photos"


def test_predict_writes_labels_and_crops(photos: Path, tmp_path: Path) -> None:
    settings = PredictionSettings(save_txt=True, save_crops=True, picture_format="png")
    predict(two_classes, find_sources([str(photos)]), tmp_path / "out", settings)
    names = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*"))
    stems = ["empty", "holiday (1)", "holiday (1).jpg", "été à l'île"]
    assert names == sorted(
        ["classes.txt", "detections.json"]
        + [f"{stem}.png" for stem in stems]
        + [f"labels/{stem}.txt" for stem in stems]
        + [f"crops/cat/{stem}_1.png" for stem in stems[1:]]
        + [f"crops/b_w dog/{stem}_2.png" for stem in stems[1:]]
    )
    assert (tmp_path / "out" / "labels" / "empty.txt").read_text() == ""
    assert (tmp_path / "out" / "labels" / "holiday (1).txt").read_text() == (
        "0 0.150000 0.400000 0.200000 0.400000\n2 0.562500 0.325000 0.125000 0.250000\n"
    )


def test_labels_are_read_back_as_a_data_set(photos: Path, tmp_path: Path) -> None:
    from boxwright.data.yolo import YoloDataset

    predict(
        two_classes, find_sources([str(photos)]), tmp_path / "out", PredictionSettings(save_txt=True, pictures=False)
    )
    photos.rename(tmp_path / "out" / "images")
    dataset = YoloDataset(tmp_path / "out")
    boxes = {Path(sample.id).name: sample.boxes.tolist() for sample in map(dataset.__getitem__, range(len(dataset)))}
    assert len(boxes) == 4
    assert sorted(map(len, boxes.values())) == [0, 2, 2, 2]


def test_labels_that_are_there_are_not_overwritten(photos: Path, tmp_path: Path) -> None:
    """They may be somebody's own."""
    for folder, option in (("labels", "save_txt"), ("crops", "save_crops")):
        out = tmp_path / option
        (out / folder).mkdir(parents=True)
        (out / folder / "empty.txt").write_text("0 0.5 0.5 1 1\n")
        with pytest.raises(OutputError, match=f"{folder}: has files already; remove this folder"):
            predict(two_classes, find_sources([str(photos)]), out, PredictionSettings(**{option: True}))  # type: ignore[arg-type]
        assert (out / folder / "empty.txt").read_text() == "0 0.5 0.5 1 1\n"
        assert not (out / "detections.json").exists()


def test_labels_and_crops_of_a_video_are_in_a_folder_of_its_own(tmp_path: Path) -> None:
    from boxwright.inference.video import open_video_for_writing

    with open_video_for_writing(tmp_path / "my walk.mp4") as writer:
        for number in range(2):
            writer.write(picture_of([(4, 8, 36, 40)] * number, 48, 80), number / 10)
    settings = PredictionSettings(save_txt=True, save_crops=True)
    predict(two_classes, find_sources([str(tmp_path / "my walk.mp4")]), tmp_path / "out", settings)
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")}
    assert {"labels/my walk/0.txt", "labels/my walk/1.txt", "crops/cat/my walk/1_1.jpg"} <= names


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        (["cat"], [0]),
        (["7"], [2]),
        (["cat, b/w dog"], [0, 2]),
        (["left, upper"], [3]),
        (["9", "1"], [3, 0]),
        (["left, upper", "cat,7"], [3, 0, 2]),
    ],
)
def test_classes_by_name_or_id(words: list[str], labels: list[int]) -> None:
    assert parse_classes(words, CLASSES) == labels


@pytest.mark.parametrize(
    ("words", "categories", "message"),
    [
        (["cet"], CLASSES, "--classes: the model has no class 'cet'; did you mean cat?"),
        (["2"], CLASSES, "no class '2'; it has cat, b/w dog, left, upper"),
        (["cat,"], CLASSES, "no class ''"),
        (["cat"], None, "no class names; give numbers, from 1, or add names with --label_map"),
        (["0"], None, "no class names"),
    ],
)
def test_classes_that_are_not_there(words: list[str], categories: Categories | None, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_classes(words, categories)
    assert message in str(raised.value)


def test_classes_without_names_are_numbers() -> None:
    assert parse_classes(["1,3"], None) == [0, 2]
