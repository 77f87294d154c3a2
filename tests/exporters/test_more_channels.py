"""Detectors of images of five channels: exported, opened, predicted with; refused where only colors can come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

import boxwright as bw
from boxwright.base.errors import DataError, ExportError
from boxwright.cli.main import app
from boxwright.config.load import parse_message
from boxwright.data.image_io import encode_png
from boxwright.exporters.export import FORMATS, export
from boxwright.exporters.triton import tensorrt_line
from boxwright.inference.serving.model import ServedModel
from boxwright.inference.serving.settings import ServerSettings
from boxwright.weights.exports import open_export
from tests.conftest import SMALL_MODEL
from tests.exporters.small_detectors import CATEGORIES, SQUARE, as_trained, pictures
from tests.exporters.tiny_exports import tiny_export_of
from tests.made_once import made_once

CHANNELS = 5
FIXED = "image_resizer { fixed_shape_resizer { height: 64 width: 64 } }"
READER = 'train_input_reader { num_additional_channels: 2 tf_record_input_reader { input_path: "x" } }'


def of_five(resizer: str = FIXED) -> bw.Detector:
    text = f"{SMALL_MODEL.replace(FIXED, resizer)} {READER}"
    torch.manual_seed(0)
    return as_trained(bw.build_detector(parse_message(text, bw.Pipeline), CATEGORIES), images())


def images() -> list[NDArray[np.uint8]]:
    """Pictures of shapes, with two more channels that tell what colors do not."""
    random = np.random.default_rng(3)
    return [
        np.concatenate([image, image[::-1, :, :1], random.integers(0, 255, (*image.shape[:2], 1), np.uint8)], 2)
        for image in pictures()
    ]


def exported() -> Path:
    """Return an ONNX file that passed its comparison, written once in a run of the tests."""
    folder = made_once("more-channels", lambda folder: export(of_five(), folder / "detector.onnx", images=images()))
    return folder / "detector.onnx"


@pytest.mark.slow
def test_a_file_detects_in_images_of_its_channels() -> None:
    model = bw.load(exported())
    assert open_export(exported()).metadata.image_channels == CHANNELS
    own = of_five().detect(images()[:3])
    for one, found in zip(own, model(images()[:3]), strict=True):
        assert len(found) == len(one) > 0
        np.testing.assert_allclose(found.boxes, one.boxes.numpy(), atol=0.1)
        assert found.plot().mode == "RGB"
    # What the further channels hold matters.
    colors = [np.concatenate([image[..., :3], image[..., 3:] * 0], 2) for image in images()[:3]]
    assert any(
        len(found) != len(one) or not np.allclose(found.scores, one.scores, atol=1e-3)
        for one, found in zip(model(images()[:3]), model(colors), strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("given", [np.zeros((20, 30, 3), np.uint8), np.zeros((20, 30, 4), np.uint8), "a.png", b"x"])
def test_a_file_refuses_other_images(given: Any) -> None:
    with pytest.raises(DataError, match="5 channels"):
        bw.load(exported())(given)
    if isinstance(given, np.ndarray):
        with pytest.raises(DataError, match="expected a HWC array with the detector's 5 channels and some pixels"):
            open_export(exported()).detect([given])


def test_the_server_refuses_it() -> None:
    with pytest.raises(ExportError, match="takes images of 5 channels, and clients send colors; it is not served"):
        ServedModel(tiny_export_of(CHANNELS), "detector", ServerSettings())


def test_predict_takes_files_of_numpy(tmp_path: Path) -> None:
    file = tiny_export_of(CHANNELS)
    np.save(tmp_path / "a.npy", images()[0])
    (tmp_path / "a.png").write_bytes(encode_png(images()[0][..., :3].copy()))

    def predict(*words: object) -> Any:
        listed = ["predict", *words, "--model_dir", file, "--out", tmp_path / "out", "--min_score", "0.05"]
        return CliRunner().invoke(app, [str(word) for word in listed])

    done = predict(tmp_path / "a.npy")
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "out/detections.json").read_text())
    assert len(rows) == len(bw.load(file)(tmp_path / "a.npy").above(0.05)) > 0
    assert (tmp_path / "out/a.jpg").exists()
    refused = predict(tmp_path / "a.png")
    assert refused.exit_code != 0
    assert "a.png: the detector takes images of 5 channels, and pictures have red, green and blue" in str(
        refused.exception
    )
    many = CliRunner().invoke(
        app, ["predict", str(tmp_path), "--model_dir", str(file), "--out", str(tmp_path / "out.parquet")]
    )
    assert "the detector takes images of 5 channels" in str(many.exception)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "resizer"), [("pt2", FIXED), ("openvino", FIXED), ("onnx", SQUARE)])
def test_other_formats_and_resizers(form: Literal["pt2", "openvino", "onnx"], resizer: str, tmp_path: Path) -> None:
    path = tmp_path / f"detector{FORMATS[form].suffix}"
    report = export(of_five(resizer), path, images=images(), format=form)
    assert report.passed
    (found,) = open_export(path).detect(images()[:1])
    assert len(found) > 0


def test_litert_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="litert: pictures have red, green and blue alone; use --format onnx"):
        export(of_five(), tmp_path / "detector.tflite", images=images(), format="litert")


def test_the_line_for_tensorrt() -> None:
    assert "--minShapes=input_tensor:1x64x64x5 " in tensorrt_line("a.onnx", 5)
