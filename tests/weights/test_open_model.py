"""One way to open a run, a checkpoint and an export."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from boxwright.base.errors import CheckpointError, ExportError
from boxwright.data.image_io import read_image
from boxwright.pipeline.load import load_config
from boxwright.weights.open_model import open_model
from tests.api.models import STEPS, SmallRun, small_run


@pytest.fixture(scope="module")
def run() -> SmallRun:
    return small_run()


def test_a_run_its_checkpoint_and_its_export_are_one_detector(run: SmallRun) -> None:
    (checkpoint,) = sorted(run.folder.glob("ckpt-*.pt"))[-1:]
    picture = read_image(run.picture)
    models = [open_model(path, device="cpu") for path in (run.folder, checkpoint, run.onnx)]
    assert [model.is_exported for model in models] == [False, False, True]
    assert {model.step for model in models} == {STEPS}
    assert {str(model.categories) for model in models} == {str(models[0].categories)}
    assert len({model.config.train_config.num_steps for model in models if model.config.train_config}) == 1
    first, second, exported = (model.detect_function()([picture])[0] for model in models)
    np.testing.assert_array_equal(first.boxes, second.boxes)
    np.testing.assert_allclose(exported.above(0.3).boxes, first.above(0.3).boxes, atol=0.01)


@pytest.mark.slow
def test_an_optimized_model_finds_the_same(run: SmallRun) -> None:
    picture = read_image(run.picture)
    plain = open_model(run.folder, device="cpu").detect_function()([picture])[0]
    opened = open_model(run.folder, device="cpu").optimized("float32", compile=False)
    assert opened.detector.optimized
    np.testing.assert_allclose(
        opened.detect_function()([picture])[0].above(0.3).scores, plain.above(0.3).scores, atol=1e-4
    )
    exported = open_model(run.onnx)
    assert exported.optimized("float32", compile=False) is exported


def test_what_is_fixed_in_an_export(run: SmallRun) -> None:
    exported = open_model(run.onnx)
    with pytest.raises(ExportError, match="it contains no PyTorch module"):
        _ = exported.detector
    for change in ({"precision": "bfloat16", "compile": False}, {"precision": "float32", "compile": True}):
        with pytest.raises(ExportError, match="is exported: its precision is fixed"):
            exported.optimized(**change)  # type: ignore[arg-type]
    with pytest.raises(ExportError, match="is exported: its scales are fixed"):
        exported.detect_function("refinedet320-voc")
    with pytest.raises(ExportError, match="is exported: its configuration and classes are fixed"):
        open_model(run.onnx, config=load_config(run.config))
    with pytest.raises(ExportError, match="device 'cuda': the installed ONNX Runtime has no CUDAExecutionProvider"):
        open_model(run.onnx, device="cuda")


def test_nothing_there(run: SmallRun) -> None:
    with pytest.raises(CheckpointError, match="no such run, checkpoint or exported file"):
        open_model(run.folder / "nothing.onnx")


def test_an_export_is_opened_without_pytorch(run: SmallRun) -> None:
    code = """
import sys
from boxwright.weights.open_model import open_model
assert open_model(sys.argv[1]).step == int(sys.argv[2])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(run.onnx), str(STEPS)], check=True)
