"""Regions to ignore in training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import boxwright as bw
from boxwright.data.groundtruth import with_regions_hidden
from boxwright.pipeline.input_reader import build_dataset
from boxwright.training.autoconfig.choices import InitSettings
from boxwright.training.autoconfig.start import init_config
from boxwright.types import Sample
from tests.brought.layouts import coco, kitti, visdrone
from tests.brought.pictures import pictures


def sample() -> Sample:
    """Return ten by ten white pixels: an object in a region to ignore, and another one outside."""
    boxes = np.array([[1, 1, 7, 7], [2, 2, 4, 4], [8, 8, 10, 10]], np.float32)
    image = np.full((10, 10, 3), 255, np.uint8)
    return Sample(image, boxes, np.zeros(3, np.int64), is_crowd=np.array([True, False, False]))


def test_a_region_is_gray_but_for_its_objects() -> None:
    given = sample()
    hidden = with_regions_hidden(given)
    assert (given.image == 255).all(), "the sample that was read stays"
    gray = (hidden.image == 114).all(2)
    assert gray.sum() == 36 - 4
    assert not gray[2:4, 2:4].any()
    assert (hidden.image[~gray] == 255).all()
    assert hidden.boxes.tolist() == given.boxes.tolist()
    plain = given.keep(~given.is_crowd)
    assert with_regions_hidden(plain) is plain


def test_an_outline_is_hidden_not_its_box() -> None:
    masks = np.zeros((3, 10, 10), np.uint8)
    masks[0, 5:7, 1:7] = 1
    gray = (with_regions_hidden(replace(sample(), masks=masks)).image == 114).all(2)
    assert gray.sum() == 12
    assert gray[5:7, 1:7].all()


@pytest.mark.parametrize("write", [kitti, visdrone])
def test_init_hides_them_in_training_alone(write: object, tmp_path: Path) -> None:
    folder = write(pictures(12), tmp_path / "data")  # type: ignore[operator]
    started = init_config(folder, tmp_path / "a.config", InitSettings(steps=False))
    assert any(choice.what == "regions" for choice in started.choices)
    config = bw.load_config(started.config)
    training = build_dataset(config.train_input_reader, "train")
    evaluation = build_dataset(config.eval_input_reader[0], "eval")
    for number in range(len(training)):
        item = training[number]
        (x, y, right, low), *_ = item.boxes[item.is_crowd].astype(int).tolist()
        assert (item.image[(y + low) // 2, (x + right) // 2] == 114).all()
    assert not config.eval_input_reader[0].hide_ignored_regions
    (x, y, right, low), *_ = evaluation[0].boxes[evaluation[0].is_crowd].astype(int).tolist()
    assert not (evaluation[0].image[y:low, x:right] == 114).all()


def test_data_without_regions_are_read_as_they_are(tmp_path: Path) -> None:
    started = init_config(coco(pictures(12), tmp_path / "data"), tmp_path / "a.config", InitSettings(steps=False))
    assert "hide_ignored_regions" not in started.config.read_text()
