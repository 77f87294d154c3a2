"""A served model's file, and what comes after it: hostile, damaged, half written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.base.errors import ExportError
from boxwright.inference.serving.model import ServedModel
from boxwright.inference.serving.settings import ServerSettings
from boxwright.runtime.export_file import read_export_file
from boxwright.runtime.metadata import UNSEALED, seal
from boxwright.runtime.sessions import read_metadata
from boxwright.weights import exports
from tests.exporters.tiny_exports import PICTURE, copied_export
from tests.runtime.test_trial import crashing_litert, endless

PATIENCE = 120


@contextmanager
def serving(path: Path, **more: Any) -> Iterator[ServedModel]:
    model = ServedModel(path, "detector", ServerSettings(batch_wait_ms=0), opener=exports.__name__, **more)
    try:
        yield model
    finally:
        model.close()


def score(model: ServedModel) -> float:
    (answer,) = model.current.batcher.submit([PICTURE[0]], PATIENCE)
    return float(answer.result(PATIENCE)["detection_scores"][0])


def later(path: Path) -> None:
    """Write an export anew, as of the step after it."""
    file = read_export_file(path)
    old = read_metadata(path).checksum.encode()
    data = file.data.replace(old, UNSEALED.encode())
    for step in (b'"step": 7', b"&quot;step&quot;: 7"):
        data = data.replace(step, step.replace(b"7", b"8"))
    path.write_bytes(seal([data, *file.parts[1:]])[0])


@pytest.mark.slow_cases(".xml")
@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
def test_a_new_file_takes_over(suffix: str, tmp_path: Path) -> None:
    path = copied_export(suffix, tmp_path)
    with serving(path) as model:
        assert model.reload() is False
        first = model.stamp()
        later(path)
        assert model.stamp() != first
        assert model.reload() is True
        assert (model.current.version, model.current.detector.metadata.step) == (2, 8)
        assert score(model) == pytest.approx(0.2)  # 51 / 255


def test_weights_are_watched_too_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    """The .xml is as it was: the server would go on with other weights, or none."""
    path = copied_export(".xml", tmp_path)
    with serving(path) as model:
        first = model.stamp()
        weights = path.with_suffix(".bin")
        data = bytearray(weights.read_bytes())
        data[:12] = bytes(12)
        with weights.open("r+b") as file:
            file.write(data)
        assert model.stamp() != first
        assert score(model) == pytest.approx(0.2)
        with pytest.raises(ExportError, match="is not as it was written"):
            model.reload()
        with weights.open("r+b") as file:
            file.truncate(0)
        with pytest.raises(ExportError, match="is not as it was written"):
            model.reload()
        assert score(model) == pytest.approx(0.2)
        assert model.current.version == 1


@pytest.mark.parametrize("edited", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_file_that_crashes_its_runtime_leaves_the_old_version(edited: bool, tmp_path: Path) -> None:
    path = copied_export(".tflite", tmp_path)
    with serving(path, allow_edited=edited) as model:
        crashing_litert(path)
        with pytest.raises(ExportError, match="its runtime crashes the process that opens it"):
            model.reload()
        (answer,) = model.current.batcher.submit([np.zeros((8, 6, 3), np.uint8)], PATIENCE)
        assert "num_detections" in answer.result(PATIENCE)
        assert model.current.version == 1


def test_an_edited_file_is_served_where_that_is_said(tmp_path: Path) -> None:
    path = copied_export(".onnx", tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"step": 7', b'"step": 9'))
    with pytest.raises(ExportError, match="is not as it was written"):
        ServedModel(path, "detector", ServerSettings())
    with serving(path, allow_edited=True) as model:
        assert model.current.detector.metadata.step == 9


def test_the_end_does_not_wait_for_a_file_that_is_being_tried(tmp_path: Path) -> None:
    """A new file whose loop has no end is tried for two minutes; the server may end before."""
    path = copied_export(".onnx", tmp_path)
    told: list[str] = []

    def reload(model: ServedModel) -> None:
        try:
            model.reload()
        except ExportError as error:
            told.append(str(error))

    with serving(path) as model:
        path.write_bytes(endless())
        trying = threading.Thread(target=reload, args=(model,))
        trying.start()
    trying.join(60)
    assert not trying.is_alive()
    assert told == [f"{path} was not opened: the server is shutting down"]
