"""Data of a caller's own: samples, and torchvision's pairs of image and target."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import boxwright as bw
from boxwright.data.label_map import load_label_map
from boxwright.data.own_dataset import as_dataset
from boxwright.data.shapes import ShapesDataset
from boxwright.types import Categories, Category, Sample

CLASSES = Categories((Category(0, 1, "cat"), Category(1, 7, "dog")))
PICTURE = Image.fromarray(np.full((20, 30, 3), 51, np.uint8))


class Pairs(list[Any]):
    """A list with classes."""

    categories = CLASSES


def only(item: Any, own: Any = None) -> Sample:
    dataset = as_dataset(Pairs([item]) if own is None else own)
    assert len(dataset) == 1
    return dataset[0]


def test_torchvisions_boxes_and_labels() -> None:
    """Labels from 1, images as tensors of 0..1."""
    target = {"boxes": torch.tensor([[1.0, 2, 11, 12], [0, 0, 5, 6]]), "labels": torch.tensor([2, 1])}
    sample = only((torch.full((3, 20, 30), 0.2), target))
    assert sample.boxes.tolist() == [[1, 2, 11, 12], [0, 0, 5, 6]]
    assert sample.labels.tolist() == [1, 0]
    assert sample.image.shape == (20, 30, 3)
    assert np.unique(sample.image).tolist() == [51]


def test_coco_detection() -> None:
    """A list of annotations; the classes are those of the collection's `coco`, by id."""
    own = Pairs([(PICTURE, [{"bbox": [1, 2, 10, 10], "category_id": 9, "iscrowd": 1}])])
    own.categories = None  # type: ignore[assignment]
    own.coco = SimpleNamespace(cats={9: {"id": 9, "name": "dog"}, 3: {"id": 3, "name": "cat"}})  # type: ignore[attr-defined]
    dataset = as_dataset(own)
    assert [(c.label, c.id, c.name) for c in dataset.categories] == [(0, 3, "cat"), (1, 9, "dog")]
    assert dataset[0].boxes.tolist() == [[1, 2, 11, 12]]
    assert dataset[0].labels.tolist() == [1]
    assert dataset[0].is_crowd.tolist() == [True]


def test_voc_detection() -> None:
    box = {"xmin": "1", "ymin": "2", "xmax": "11", "ymax": "12"}
    sample = only((PICTURE, {"annotation": {"object": [{"name": "dog", "bndbox": box}]}}))
    assert sample.boxes.tolist() == [[1, 2, 11, 12]]
    assert sample.labels.tolist() == [1]


def test_images_without_objects() -> None:
    for target in ([], {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}, {"annotation": {}}):
        assert len(only((PICTURE, target)).boxes) == 0


NO_BOXES = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0)}


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        (5, "sample 0: TypeError: expected a Sample, or an image with its target, found int"),
        ((PICTURE,), "found tuple"),
        ((PICTURE, {"boxes": [[0, 0, 1, 1]], "labels": [1, 2]}), "1 boxes, but 2 labels"),
        ((PICTURE, {"labels": [1]}), "the target has no 'boxes', only labels"),
        ((PICTURE, {"boxes": [[0, 0, 1, 1]], "labels": [3]}), "label 3, but the classes are 1 cat, 2 dog"),
        (
            (PICTURE, {"boxes": [[0, 0, 1, 1]], "labels": [0]}),
            "label 0, but the classes are 1 cat, 2 dog; 0 is torchvision's background",
        ),
        ((PICTURE, [{"bbox": [0, 0, 1, 1], "category_id": 99}]), "category_id 99, but the classes are 1 cat, 7 dog"),
        ((torch.zeros(2, 4, 4), NO_BOXES), "the image: expected a CHW tensor with 1, 3 or 4 channels"),
        (("picture.jpg", NO_BOXES), "the image: expected a PIL image, an array or a tensor, found str"),
        ((torch.full((3, 4, 4), torch.nan), NO_BOXES), "float32 values are not finite"),
    ],
)
def test_items_that_are_none(item: Any, wanted: str) -> None:
    with pytest.raises(bw.DataError, match=wanted):
        only(item)


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        (5, "expected samples by index with a length, found int"),
        ("text", "found str"),
        ({}, "found dict"),
        (Pairs([]), "it has no samples"),
        ([PICTURE], "its classes are unknown"),
    ],
)
def test_collections_that_are_none(own: Any, wanted: str) -> None:
    with pytest.raises(bw.DataError, match=wanted):
        as_dataset(own)


def test_trains_as_from_records(small_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    """The same samples, named by the configuration and given in Python: the same weights; and it resumes."""
    settings = {"workers": 0, "device": "cpu", "evaluate": False}
    shorter = bw.load_config(small_config, ["train_config.num_steps=2"])
    bw.train(shorter, tmp_path / "records", **settings)  # type: ignore[arg-type]
    from boxwright.pipeline.input_reader import build_dataset

    records = build_dataset(shorter.train_input_reader, "train_input_reader")
    own = Pairs([records[number] for number in range(len(records))])
    own.categories = load_label_map(shapes_data / "label_map.pbtxt")
    for steps in (1, 2):
        config = bw.load_config(small_config, [f"train_config.num_steps={steps}"])
        config.train_input_reader = None
        bw.train(config, tmp_path / "own", dataset=own, **settings)  # type: ignore[arg-type]
    from boxwright.weights.store import read_checkpoint

    first, second = (read_checkpoint(tmp_path / name / "ckpt-2.pt")["network"] for name in ("records", "own"))
    assert all(torch.equal(first[name], value) for name, value in second.items())
    assert len(bw.load(tmp_path / "own")(np.zeros((64, 64, 3), np.uint8))) >= 0


@pytest.mark.slow
def test_epochs_of_own_data(small_config: Path, tmp_path: Path) -> None:
    shapes = ShapesDataset(5, seed=0)
    config = bw.load_config(small_config, ["train_config.batch_size=2"])
    run = bw.train(config, tmp_path / "m", dataset=shapes, epochs=1, workers=0, device="cpu", evaluate=False)
    assert run.step == 3
    with pytest.raises(bw.ConfigError, match="epochs: expected a number above 0, found -1"):
        bw.train(config, tmp_path / "none", dataset=shapes, epochs=-1)


def test_a_configuration_of_external_data_says_where_they_come_from(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_input_reader { external_input_reader { } }"])
    with pytest.raises(bw.ConfigError, match="its data are given in Python: boxwright.train"):
        bw.train(config, tmp_path / "m", workers=0, device="cpu")
