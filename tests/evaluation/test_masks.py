"""Masks all the way: a record, augmentation, a batch, a network that does nothing, the evaluator and its picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.base.drawing import label_color
from boxwright.config.load import parse_message
from boxwright.data.augmentation.crop import RandomCrop
from boxwright.data.augmentation.flip import RandomHorizontalFlip
from boxwright.data.augmentation.transform import Chain
from boxwright.data.batch import Batch, collate
from boxwright.data.convert import write_coco, write_tfrecords
from boxwright.data.loader import TrainingExamples
from boxwright.data.shapes import ShapesDataset
from boxwright.evaluation.build import EvaluationPlan
from boxwright.nn.ops.roi import crop_and_resize
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset
from boxwright.types import Detections, Targets
from tests.conftest import SMALL_MODEL
from tests.evaluation.evaluate import evaluate_on_dataset


class SeesTargets(torch.nn.Module):
    """A network that predicts nothing and remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: Targets | None = None

    def forward(self, inputs: Tensor, true_sizes: Tensor, targets: Targets | None = None) -> Any:
        del inputs, true_sizes
        self.given = targets
        return None


READERS = {
    "png": """load_instance_masks: true mask_type: PNG_MASKS label_map_path: "FOLDER/label_map.pbtxt"
      tf_record_input_reader { input_path: "FOLDER/val.record" }""",
    "polygons and RLE": """load_instance_masks: true
      coco_input_reader { annotations: "FOLDER/coco/instances.json" image_folder: "FOLDER/coco/images" }""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("masks")
    dataset = ShapesDataset(3, seed=4, size=(64, 80))
    write_tfrecords(dataset, path / "val.record")
    write_coco(dataset, path / "coco" / "instances.json")
    return path


def batch_of(dataset: Any) -> Batch:
    from boxwright.nn.preprocessing import KeepAspectRatioResizer

    steps = Chain((RandomHorizontalFlip(1.0), RandomCrop(0.1, areas=(0.5, 1.0))))
    examples = TrainingExamples(dataset, steps, KeepAspectRatioResizer(96, 96, pad_to_max_dimension=True), 7)
    samples = [examples[0, number] for number in range(len(dataset))]
    return collate([sample for sample in samples if not isinstance(sample, bw.BoxwrightError)])


@pytest.mark.slow_cases("png")
@pytest.mark.parametrize("kind", READERS)
def test_masks_travel(kind: str, folder: Path) -> None:
    reader = parse_message(READERS[kind].replace("FOLDER", str(folder)), m.InputReader)
    dataset = build_dataset(reader, "eval_input_reader[0]")
    whole = ShapesDataset(3, seed=4, size=(64, 80))
    for number in range(3):
        masks = dataset[number].masks
        assert masks is not None
        assert np.array_equal(masks, np.asarray(whole[number].masks)), "as they were made"

    detector = bw.build_detector(parse_message(SMALL_MODEL, bw.Pipeline), dataset.categories)
    network = SeesTargets()
    detector.network = network  # type: ignore[assignment]
    batch = batch_of(dataset)
    assert len(batch) == 3
    detector.predict(detector.preprocessor.normalize(batch.images, batch.true_sizes), batch.true_sizes, batch.targets)
    targets = network.given
    assert targets is not None
    assert targets.masks is not None
    assert targets.masks.size == (96, 96)
    checked = 0
    for row in range(len(batch)):
        height, width = batch.true_sizes[row].tolist()
        for box, mask in zip(
            targets.boxes[row][targets.valid[row]], targets.masks.dense(row)[targets.valid[row]], strict=True
        ):
            assert not mask[height:].any()
            assert not mask[:, width:].any()
            if not mask.any():
                continue  # what is seen of an object may be cropped away while its box is not
            y, x = mask.nonzero(as_tuple=True)
            x_min, y_min, x_max, y_max = box.tolist()
            # Within the box, but for the pixel by which resizing rounds.
            assert x.min() >= x_min - 2
            assert x.max() <= x_max + 1
            assert y.min() >= y_min - 2
            assert y.max() <= y_max + 1
            checked += 1
    assert checked >= 4

    plan = EvaluationPlan(num_pictures=3, losses=False, min_score=0.5)
    evaluation = evaluate_on_dataset(FindsTruth(dataset), dataset, plan)  # type: ignore[arg-type]
    assert len(evaluation.pictures) == 3
    sample = dataset[0]
    picture = evaluation.pictures[sample.id]
    zoom = 5  # of a picture of 64 pixels to at least 320
    left, right = picture[26:], picture[26:, 64 * 0 + 80 * zoom + 6 :]
    assert sample.masks is not None
    tinted = 0
    for mask, label in zip(sample.masks, sample.labels.tolist(), strict=True):
        only = mask.astype(bool) & (np.asarray(sample.masks).sum(0) == 1)
        y, x = np.argwhere(only)[len(np.argwhere(only)) // 2]
        want = (sample.image[y, x] * 0.55 + np.array(label_color(label)) * 0.45).astype(int)
        for half in (left, right):
            near = half[y * zoom : y * zoom + zoom, 6 + x * zoom : 6 + x * zoom + zoom].astype(int)
            tinted += int((np.abs(near - want).max(-1) <= 12).any())
    assert tinted >= len(sample.labels), "masks are drawn beside each other, found and true"


def within_boxes(sample: Any) -> Tensor:
    """Return masks as a head gives them: of their boxes, from corner to corner; finely, so that nothing is lost."""
    masks = torch.from_numpy(sample.masks)[:, None].float()
    height, width = masks.shape[-2:]
    boxes = torch.from_numpy(sample.boxes) / torch.tensor([width, height, width, height])
    levels = torch.zeros(1, len(masks), dtype=torch.int64)
    whole = crop_and_resize([masks], boxes[:, None], levels.transpose(0, 1), (200, 200))
    return whole[:, 0, 0]


class FindsTruth:
    """Stands where a detector does, and finds what is annotated, masks and all."""

    training = False

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.next = dataset, 0

    def modules(self) -> list[Any]:
        return [self]

    def parameters(self) -> list[Any]:
        return []

    def eval(self) -> None: ...

    def train(self, mode: bool = True) -> None: ...

    def detect_with_losses(self, images: Any, losses: Any, scale: Any = None, context: Any = None) -> Any:
        for image in images:
            sample = self.dataset[self.next]
            self.next += 1
            found = Detections(
                torch.from_numpy(sample.boxes),
                torch.ones(len(sample.boxes)),
                torch.from_numpy(sample.labels),
                image.shape[:2],
                self.dataset.categories,
                masks=within_boxes(sample),
            )
            yield found, {}


def test_keypoints_are_drawn() -> None:
    from boxwright.base.drawing import Details, draw_boxes

    image = np.zeros((400, 400, 3), np.uint8)
    points = np.array([[[100, 200, 1], [300, 300, 0], [np.nan, 5, 1]]], np.float32)
    picture = draw_boxes(image, np.zeros((1, 4), np.float32), [3], [""], Details(keypoints=points))
    assert tuple(picture[200, 100]) == label_color(3)
    assert not picture[290:310, 290:310].any()


def test_a_sample_without_masks_stays_without() -> None:
    sample = ShapesDataset(1, seed=4, size=(64, 80))[0]
    assert collate([replace(sample, masks=None)]).targets.masks is None


@pytest.mark.slow
def test_batches_carry_masks_only_for_networks_that_learn_them(
    small_config: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 64 objects of an image of 1024² they are 64 MiB."""
    from boxwright.nn.network import Network
    from boxwright.training.step import Learner

    seen: list[bool] = []
    plain = Learner.step

    def watched(self: Learner, batch: Batch, *given: Any, **how: bool) -> Any:
        seen.append(batch.targets.masks is not None)
        return plain(self, batch, *given, **how)

    monkeypatch.setattr(Learner, "step", watched)
    config = bw.load_config(small_config, ["train_config.num_steps=1", "train_config.batch_size=2"])
    config.train_input_reader = parse_message(READERS["png"].replace("FOLDER", str(folder)), m.InputReader)
    settings = bw.RunSettings(workers=0, preflight=False, evaluate=False)
    bw.train(config, tmp_path / "boxes", settings)
    monkeypatch.setattr(Network, "learns_masks", True)
    bw.train(config, tmp_path / "masks", settings)
    assert seen == [False, True]
