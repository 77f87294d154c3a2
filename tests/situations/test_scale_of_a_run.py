"""From data that are not of 8 bits to detection: a run, its checkpoint and its export have the data's scale."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import boxwright as bw
from boxwright.data.convert import write_coco
from boxwright.data.shapes import ShapesDataset
from tests.situations.test_freezing import FIXED

SHAPES = ShapesDataset(12, seed=5, size=(64, 80))
SETTINGS: dict[str, Any] = {"device": "cpu", "workers": 0, "evaluate": False, "preflight": False}


class Pairs:
    """What torchvision's tutorial on detection has: float tensors of 0..1, and targets."""

    categories = SHAPES.categories

    def __init__(self, scale: float = 255.0, kind: Any = np.float32) -> None:
        self.scale, self.kind = scale, kind

    def __len__(self) -> int:
        return len(SHAPES)

    def __getitem__(self, index: int) -> tuple[Any, dict[str, Any]]:
        sample = SHAPES[index]
        values = sample.image.transpose(2, 0, 1)
        image = values / np.float32(self.scale) if self.kind == np.float32 else values.astype(self.kind) * 16
        return torch.from_numpy(image), {"boxes": torch.from_numpy(sample.boxes), "labels": sample.labels + 1}


def first_losses(config: Path, own: Any) -> dict[str, float]:
    learner = bw.Learner(config, overrides=(FIXED,), dataset=own, device="cpu")
    return learner.step(next(iter(learner.batches()))).losses


def test_floats_train_as_the_same_bytes_do(small_config: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not on black pictures; one line says what was understood."""
    bytes_losses = first_losses(small_config, SHAPES)
    assert not caplog.text
    for own, line in (
        (Pairs(), "images are float32 of 0 to 1: taken for 0..1"),
        (Pairs(kind=np.int32), "taken for 0..4,095 (12 bits)"),
    ):
        caplog.clear()
        assert first_losses(small_config, own) == bytes_losses
        assert [line in record.getMessage() for record in caplog.records] == [True]


@pytest.fixture(scope="module")
def run(shapes_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step on floats of 0..1."""
    from tests.conftest import small_config_text

    folder = tmp_path_factory.mktemp("floats")
    (folder / "pipeline.config").write_text(small_config_text(shapes_data))
    config = bw.load_config(folder / "pipeline.config", [FIXED, "train_config.num_steps=1"])
    bw.train(config, folder / "run", dataset=Pairs(), **SETTINGS)
    return folder


def test_the_run_keeps_the_scale_and_detection_takes_it(run: Path) -> None:
    """Without a word about it, in arrays, tensors and `Detector.detect`; a dark picture is a dark picture."""
    written = bw.load_config(run / "run" / "pipeline.config")
    assert written.train_input_reader is not None
    assert written.train_input_reader.white_level == 1
    assert written.eval_input_reader[0].white_level == 1
    model = bw.load(run / "run")
    image = SHAPES[0].image
    floats = image / np.float32(255)
    for given, same in (
        (floats, image),
        (torch.from_numpy(floats.transpose(2, 0, 1)), image),
        (floats / 300, np.rint(image / 300).astype(np.uint8)),
        (image.astype(np.int64), image),
    ):
        found, wanted = model(given), model(same)
        np.testing.assert_array_equal(found.image, wanted.image)
        np.testing.assert_array_equal(found.boxes, wanted.boxes)
    (found,) = model.detector.detect([floats])
    np.testing.assert_allclose(found.arrays().boxes, model(image).boxes, atol=1e-2)
    with pytest.raises(bw.DataError, match=r'expected numbers in 0\.\.1, found .*or set scale="pixels"'):
        model(image.astype(np.float32))
    np.testing.assert_array_equal(model(image.astype(np.float32), scale="pixels").image, image)


def test_another_configuration_does_not_lose_the_scale(run: Path) -> None:
    """The one that a person wrote, without the field, for evaluation or detection."""
    model = bw.load(run / "run", config=run / "pipeline.config")
    assert model.detector.white_level == 1
    floats = SHAPES[0].image / np.float32(255)
    np.testing.assert_array_equal(model(floats).image, SHAPES[0].image)


def test_a_run_that_is_resumed_reads_as_it_began(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Even if the pictures that are looked at now are all dark."""
    import shutil

    shutil.copytree(run / "run", tmp_path / "run")
    config = bw.load_config(run / "pipeline.config", [FIXED, "train_config.num_steps=2"])
    with caplog.at_level(logging.INFO, "boxwright.run"):
        bw.train(config, tmp_path / "run", dataset=Pairs(scale=255 * 50), **SETTINGS)
    assert "taken for" not in caplog.text
    assert "resuming from" in caplog.text
    resumed = bw.load(tmp_path / "run").config.train_input_reader
    assert resumed is not None
    assert resumed.white_level == 1


def test_an_export_reads_by_the_scale_in_its_metadata() -> None:
    """12 bits of the training data; floats of 0..1 are refused, and bytes are bytes."""
    from types import SimpleNamespace

    from boxwright.runtime.exported import ExportedDetector
    from boxwright.runtime.metadata import Metadata

    empty = {"num_detections": (), "detection_boxes": (5, 4), "detection_scores": (5,), "detection_classes": (5,)}
    seen: list[Any] = []

    def session_run(images: Any) -> dict[str, Any]:
        seen.extend(images)
        return {name: np.zeros((len(images), *shape), np.float32) for name, shape in empty.items()}

    texts = dict.fromkeys(("format", "boxwright", "config", "created", "weights_sha256"), "")
    about: Any = {
        "outputs": {},
        "suppression": {},
        "versions": {},
        "categories": [],
        "num_classes": 1,
        "step": 0,
        **texts,
    }
    metadata = Metadata(**about, input={"range": [0, 255], "white_level": 4095.0})
    assert Metadata.from_json(metadata.to_json(), "").white_level == 4095
    session: Any = SimpleNamespace(metadata=metadata, run=session_run)
    exported = ExportedDetector(session)
    image = SHAPES[0].image
    deep: Any = [image.astype(np.uint16) << 4, image, Image.fromarray(image[..., 0].astype(np.uint16) << 4)]
    exported.detect(deep)
    np.testing.assert_array_equal(seen[0], image)
    np.testing.assert_array_equal(seen[1], image)
    np.testing.assert_array_equal(seen[2][..., 1], image[..., 0])
    for wrong in (image / 255, np.full((4, 4, 3), 5000, np.uint16)):
        with pytest.raises(bw.DataError, match=r"as if they were in 0\.\.1|expected numbers in 0\.\.4095, found 5000"):
            exported.detect([wrong])
    for level in (-1, "4095", None, [1]):
        assert Metadata(**about, input={"white_level": level}).white_level == 0


def test_what_is_exported_states_the_detectors_scale() -> None:
    from boxwright.exporters.export import describe
    from tests.exporters.small_detectors import FAMILIES, build

    detector = build(FAMILIES["ssd"])
    assert "white_level" not in describe(detector, "onnx", "operator").input
    detector.white_level = 1.0
    assert describe(detector, "onnx", "operator").white_level == 1


def test_a_folder_of_12_bits_is_trained_by_its_range(
    small_config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """COCO with gray PNGs of 12 bits in 16: as the pictures of 8 bits that they are copies of."""
    losses = []
    for depth in (8, 12):
        folder = tmp_path / str(depth)
        write_coco(SHAPES, folder / "instances.json")
        for path in sorted((folder / "images").iterdir()):
            values = np.asarray(Image.open(path).convert("RGB"))[..., 0]
            Image.fromarray(values.astype(np.uint16) << 4 if depth == 12 else values).save(path, "PNG")
        reader = f"train_input_reader={{coco_input_reader {{annotations: '{folder}/instances.json'}}}}"
        caplog.clear()
        learner = bw.Learner(small_config, overrides=(FIXED, reader), device="cpu")
        losses.append(learner.step(next(iter(learner.batches()))).losses)
        assert ("taken for 0..4,095 (12 bits), by the range of 12 images" in caplog.text) == (depth == 12)
    assert losses[0] == losses[1]
