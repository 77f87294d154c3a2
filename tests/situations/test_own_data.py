"""Data sets of a person's own: torchvision's pairs with masks and keypoints, CocoDetection, and what they get wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import boxwright as bw
from boxwright.data.own_dataset import as_dataset
from boxwright.types import Categories, Category, Sample

CLASSES = Categories((Category(0, 1, "cat"), Category(1, 7, "dog")))
IMAGE = torch.zeros(3, 20, 30, dtype=torch.uint8)
MASKS = torch.zeros(2, 20, 30, dtype=torch.uint8)
MASKS[0, 2:12, 1:11], MASKS[1, 0:6, 0:5] = 1, 255
TARGET: dict[str, Any] = {
    "boxes": torch.tensor([[1.0, 2, 11, 12], [0, 0, 5, 6]]),
    "labels": torch.tensor([2, 1]),
    "masks": MASKS,
    "keypoints": torch.tensor([[[1.0, 2, 2], [3, 4, 1], [0, 0, 0]], [[1, 1, 0], [2, 2, 2], [3, 3, 2]]]),
    "image_id": 5,
    "area": torch.tensor([100.0, 30]),
    "iscrowd": torch.tensor([0, 1]),
}


class Mine(list[Any]):
    """A data set as people write them: a class with __len__ and __getitem__."""

    categories = CLASSES


def read(target: Any, image: Any = IMAGE) -> Sample:
    return as_dataset(Mine([(image, target)]))[0]


def test_torchvisions_masks_and_keypoints() -> None:
    sample = read(TARGET)
    assert sample.masks is not None
    assert sample.masks.dtype == np.uint8
    assert sample.masks.sum((1, 2)).tolist() == [100, 30]
    assert sample.keypoints is not None
    assert sample.keypoints[0].tolist() == [[1, 2, 1], [3, 4, 1], [0, 0, 0]]
    assert sample.is_crowd.tolist() == [False, True]


def test_an_image_without_objects_has_no_masks_but_the_field() -> None:
    """Or its batch would drop the masks of all."""
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    sample = read({**empty, "masks": torch.zeros(0, 20, 30), "keypoints": torch.zeros(0, 3, 3)})
    assert sample.masks is not None
    assert sample.masks.shape == (0, 20, 30)
    assert sample.keypoints is not None
    assert sample.keypoints.shape == (0, 3, 3)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"labels": torch.tensor([2, 5])}, "label 5, but the classes are 1 cat, 2 dog"),
        ({"labels": torch.tensor([0, 1])}, "label 0, .*; 0 is torchvision's background: drop those boxes, or count"),
        ({"labels": ["dog", "cat"]}, r"labels are \['dog', 'cat'\]; expected numbers from 1, in the order of the"),
        ({"labels": torch.tensor([1])}, "2 boxes, but 1 labels"),
        ({"boxes": torch.tensor([[1.0, 2, torch.nan, 4], [0, 0, 5, 6]])}, "boxes of object 0 are not finite"),
        ({"boxes": torch.tensor([[1.0, 2, 3, 4], [0, 0, torch.inf, 6]])}, "boxes of object 1 are not finite"),
        ({"boxes": torch.zeros(8)}, r"boxes: expected \[N, 4\], x_min, y_min, x_max, y_max, found shape \(8,\)"),
        ({"masks": MASKS[:1]}, r"masks: expected \[2, 20, 30\], as boxes and image, found \(1, 20, 30\)"),
        ({"masks": MASKS[:, :10]}, r"found \(2, 10, 30\)"),
        ({"keypoints": torch.zeros(2, 3, 2)}, r"keypoints: expected \[2, points, 3\] of x, y and visibility, found"),
        ({"keypoints": torch.full((2, 3, 3), 1e30)}, "keypoint 0 of object 0"),
    ],
)
def test_what_is_wrong_with_a_target_is_said_as_it_was_given(change: dict[str, Any], wanted: str) -> None:
    with pytest.raises(bw.DataError, match=f"Mine: sample 0: .*{wanted}"):
        read({**TARGET, **change})


def test_what_is_missing_is_named() -> None:
    for target, wanted in (
        ({"bboxes": [], "labels": []}, "the target has no 'boxes', only bboxes, labels"),
        ({}, "the target has no 'boxes', only nothing"),
        ("cat", "expected a dictionary or a list of COCO's annotations, found str"),
        (7, "found int"),
        ([{"bbox": [1, 2, 3, 4], "category_id": 99}], "category_id 99, but the classes are 1 cat, 7 dog"),
        ({"annotation": {"object": [{"name": "cow", "bndbox": {}}]}}, "KeyError: 'xmin'"),
    ):
        with pytest.raises(bw.DataError, match=wanted):
            read(target)


def test_a_samples_label_counts_from_zero_and_so_does_its_message() -> None:
    sample = Sample(np.zeros((20, 30, 3), np.uint8), np.zeros((1, 4), np.float32), np.array([5]))
    with pytest.raises(bw.DataError, match="label 5, but the classes are 0 cat, 1 dog; labels of a Sample start at 0"):
        as_dataset(Mine([sample]))[0]


@pytest.fixture
def coco(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of three pictures, the second without objects, the third stored turned; classes 3 and 9."""
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = Image.fromarray(np.full((20, 30, 3), 51, np.uint8))
    for name in ("a.png", "b.png"):
        picture.save(tmp_path / name)
    picture.save(tmp_path / "c.jpg", exif=exif.tobytes())
    square = [1, 2, 11, 2, 11, 12, 1, 12]
    points = [1, 2, 2, 3, 4, 1]
    runs = {"size": [20, 30], "counts": [0, 20, 580]}
    common = {"area": 100, "iscrowd": 0}
    rows = [
        {
            "id": 1,
            "image_id": 1,
            "category_id": 9,
            "bbox": [1, 2, 10, 10],
            "segmentation": [square],
            "keypoints": points,
        },
        {"id": 2, "image_id": 1, "category_id": 3, "bbox": [0, 0, 1, 20], "segmentation": runs, "iscrowd": 1},
        {"id": 3, "image_id": 3, "category_id": 3, "bbox": [1, 2, 10, 10], "segmentation": [square]},
    ]
    size = {"width": 30, "height": 20}
    content = {
        "images": [{"id": n, "file_name": name, **size} for n, name in ((1, "a.png"), (2, "b.png"), (3, "c.jpg"))],
        "annotations": [{**common, **row} for row in rows],
        "categories": [{"id": 9, "name": "dog"}, {"id": 3, "name": "cat"}],
    }
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(content))
    return tmp_path, path


def coco_detection(coco: tuple[Path, Path]) -> Any:
    from torchvision.datasets import CocoDetection

    return CocoDetection(str(coco[0]), str(coco[1]))


def test_coco_detection_as_torchvision_makes_it(coco: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Classes, masks, keypoints; a picture whose stored size is the annotation's is not turned."""
    dataset = as_dataset(coco_detection(coco))
    capsys.readouterr()
    assert [category.name for category in dataset.categories] == ["cat", "dog"]
    first, empty, turned = (dataset[number] for number in range(3))
    assert first.labels.tolist() == [1, 0]
    assert first.boxes.tolist() == [[1, 2, 11, 12], [0, 0, 1, 20]]
    assert first.is_crowd.tolist() == [False, True]
    assert first.areas.tolist() == [100, 100]
    assert first.masks is not None
    assert first.masks[0, 2:12, 1:11].all()
    assert first.masks.sum((1, 2)).tolist() == [100, 20]
    assert first.keypoints is not None
    assert first.keypoints.tolist() == [[[1, 2, 1], [3, 4, 1]], [[0, 0, 0], [0, 0, 0]]]
    assert empty.masks is not None
    assert empty.masks.shape == (0, 20, 30)
    assert turned.image.shape == (20, 30, 3)


def test_a_subset_and_a_split_of_it(coco: tuple[Path, Path]) -> None:
    from torch.utils.data import Subset, random_split

    whole = coco_detection(coco)
    assert as_dataset(Subset(whole, [0]))[0].labels.tolist() == [1, 0]
    train, _ = random_split(whole, [2, 1], torch.Generator().manual_seed(0))
    assert [category.name for category in as_dataset(train).categories] == ["cat", "dog"]


def test_its_wrapper_for_transforms_keeps_cocos_ids(coco: tuple[Path, Path]) -> None:
    from torchvision.datasets import wrap_dataset_for_transforms_v2

    wrapped = wrap_dataset_for_transforms_v2(coco_detection(coco), target_keys=("boxes", "labels", "masks"))
    sample = as_dataset(wrapped)[0]
    assert sample.labels.tolist() == [1, 0]
    assert sample.boxes.tolist() == [[1, 2, 11, 12], [0, 0, 1, 20]]
    assert sample.masks is not None


def test_masks_are_drawn_where_they_are_learned_alone(coco: tuple[Path, Path]) -> None:
    from boxwright.api.own import use_own_data

    for wanted in (False, True):
        config = bw.load_config(
            "preset:ssd_mobilenet_v2_320", [f"train_input_reader.load_instance_masks={wanted}".lower()]
        )
        assert (use_own_data(config, coco_detection(coco))[0].masks is not None) == wanted
