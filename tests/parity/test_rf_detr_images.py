"""RF-DETR's pictures as its authors' code prepares them: for detection, for validation, and augmented for training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from boxwright.data.augmentation.crop import RandomSizeCrop
from boxwright.data.augmentation.flip import RandomHorizontalFlip
from boxwright.data.batch import collate, to_input
from boxwright.nn.detector import Detector
from boxwright.nn.ops.resize import resize_antialiased, resize_half_pixel
from boxwright.nn.postprocessing.queries import QueryPostprocessor
from boxwright.nn.preprocessing import IMAGENET, FixedShapeResizer, Preprocessor
from boxwright.types import Sample
from tests.rf_detrs import build, described, folders_with, with_recorded_weights

FOLDERS = folders_with("images.npz")
each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
# One of 255 levels, in units of the least deviation that channels are divided by.
LEVEL = 1 / 255 / 0.224
DETECTED, TRAINED = 3, 8


def test_all_are_there() -> None:
    """A set of six arrays a picture for detection, and of six for training; nothing else is in the file."""
    for folder in FOLDERS:
        names = set(np.load(folder / "images.npz").files)
        parts = ("pixels", "predict", "validation", "boxes", "scores", "labels")
        wanted = {f"{number}.{part}" for number in range(DETECTED) for part in parts}
        parts = ("pixels", "input_boxes", "image", "boxes", "labels", "area")
        wanted |= {f"train.{number}.{part}" for number in range(TRAINED) for part in parts}
        assert names == wanted


def read(folder: Path) -> tuple[dict[str, NDArray[Any]], Any]:
    return dict(np.load(folder / "images.npz")), json.loads((folder / "images.json").read_text())


def detector_of(recording: Any) -> Detector:
    """Return the detector that pictures were shown to, with the authors' order of classes."""
    message = described({**recording, "defaults": {"dim_feedforward": recording["dim_feedforward"]}})
    return with_recorded_weights(build(message), recording["salt"])


@each_folder
@pytest.mark.parametrize("number", range(DETECTED))
def test_inputs_of_validation(folder: Path, number: int) -> None:
    """Ours in validation and in detection alike: antialiased; theirs are rounded to levels, twice."""
    arrays, notes = read(folder)
    detector = detector_of(notes["predict"])
    inputs, sizes = detector.preprocessor(torch.from_numpy(arrays[f"{number}.pixels"])[None])
    wanted = arrays[f"{number}.validation"]
    assert sizes.tolist() == [[*wanted.shape[1:]]]
    np.testing.assert_allclose(inputs[0].numpy(), wanted, atol=1.1 * LEVEL)


@each_folder
@pytest.mark.parametrize("number", range(DETECTED))
@torch.no_grad()
def test_detections_of_pictures(folder: Path, number: int) -> None:
    """Theirs resizes without antialiasing in detection; with that resizer, ours has their inputs and detections."""
    arrays, notes = read(folder)
    detector, side = detector_of(notes["predict"]), notes["predict"]["model"]["resolution"]
    pixels = arrays[f"{number}.pixels"]
    inputs, sizes = Preprocessor(FixedShapeResizer(side, side, resize_half_pixel), IMAGENET)(
        torch.from_numpy(pixels)[None]
    )
    np.testing.assert_allclose(inputs.numpy(), arrays[f"{number}.predict"], atol=1e-5)
    postprocessor = detector.postprocessor
    assert isinstance(postprocessor, QueryPostprocessor)
    # The recorded heads have the row of no class last, and detect it.
    postprocessor = replace(postprocessor, background=0)
    outputs = detector.network(inputs, sizes)
    found = postprocessor.select(outputs, postprocessor.decode(outputs), sizes).image(0)
    scale = torch.tensor([pixels.shape[1], pixels.shape[0]] * 2) / side
    rows = torch.cat([found.labels[:, None], found.scores[:, None], found.boxes * scale], 1).double().numpy()
    labels, scores, boxes = (arrays[f"{number}.{part}"] for part in ("labels", "scores", "boxes"))
    wanted = np.concatenate([labels[:, None], scores[:, None], boxes], 1)
    # Near-equal scores may exchange places, so each detection is looked for among all.
    rows = rows[rows[:, 1] > notes["predict"]["threshold"]]
    assert len(rows) == len(wanted)
    distances = np.abs(rows[:, None] - wanted[None]) / np.array([0.5, 1e-5, *[2e-4] * 4])
    assert sorted(distances.max(-1).argmin(1)) == list(range(len(wanted)))
    assert distances.max(-1).min(1).max() <= 1


class Draws:
    """Stands for `np.random.Generator`: what the authors' code drew, in order."""

    def __init__(self, draws: Sequence[tuple[str, float, list[int]]]) -> None:
        self.left = list(draws)

    def random(self) -> float:
        kind, value, _ = self.left.pop(0)
        assert kind == "rand"
        return value

    def integers(self, low: int, high: int) -> int:
        kind, value, limits = self.left.pop(0)
        assert (kind, [0, *limits][-2:]) == ("randint", [low, high])
        return int(value)


@each_folder
@pytest.mark.parametrize("number", range(TRAINED))
def test_augmented_samples(folder: Path, number: int) -> None:
    """The crop, the flip, the network's size, with the authors' draws."""
    arrays, notes = read(folder)
    side = notes["train"]["resolution"]
    sample = Sample(
        arrays[f"train.{number}.pixels"],
        boxes=arrays[f"train.{number}.input_boxes"],
        labels=np.arange(1, 4),
    )
    draws: Any = Draws(notes["train"]["draws"][number])
    for step in (RandomSizeCrop(), RandomHorizontalFlip()):
        sample = step(sample, draws)
    assert draws.left == []
    batch = collate([to_input(sample, FixedShapeResizer(side, side, resize_antialiased))])
    inputs = Preprocessor(FixedShapeResizer(side, side), IMAGENET).normalize(batch.images, batch.true_sizes)
    wanted = arrays[f"train.{number}.image"]
    np.testing.assert_allclose(inputs[0].numpy(), wanted, atol=1.5 * LEVEL)
    kept = batch.targets.valid[0].numpy()
    assert np.array_equal(batch.targets.labels[0].numpy()[kept], arrays[f"train.{number}.labels"])
    boxes = batch.targets.boxes[0].numpy()[kept] / side
    centers = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)
    np.testing.assert_allclose(centers, arrays[f"train.{number}.boxes"], atol=1e-6)
    # Theirs is of the clipped box in the network's input.
    np.testing.assert_allclose(boxes_area(boxes * side), arrays[f"train.{number}.area"], rtol=1e-4)


def boxes_area(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray((boxes[:, 2:] - boxes[:, :2]).prod(1))
