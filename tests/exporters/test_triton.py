from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from boxwright.base.errors import ExportError, OutputError
from boxwright.cli.main import app
from boxwright.config.text_format import parse_text
from boxwright.exporters.triton import tensorrt_line, write_triton
from boxwright.runtime.sessions import open_session
from tests.api.models import small_run
from tests.cli.test_commands import run
from tests.exporters.exported import exported_detector

TRITON = "BOXWRIGHT_TRITON_PYTHON"


def test_a_model_repository(tmp_path: Path) -> None:
    file = exported_detector().file
    config = write_triton(file, tmp_path / "models", "shapes")
    assert config == tmp_path / "models" / "shapes" / "config.pbtxt"
    assert (config.parent / "1" / "model.onnx").read_bytes() == file.read_bytes()
    text = config.read_text()
    parse_text(text, file="config.pbtxt")
    assert 'input { name: "input_tensor" data_type: TYPE_UINT8 dims: [-1, -1, 3] }' in text
    assert 'output { name: "detection_boxes" data_type: TYPE_FP32 dims: [100, 4] }' in text
    assert 'output { name: "num_detections" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } }' in text
    assert text.count("output {") == len(open_session(file).output_names)
    # Nothing else, and a second time in place of the first.
    (config.parent / "1" / "model.onnx").write_bytes(b"earlier")
    write_triton(file, tmp_path / "models", "shapes")
    assert (config.parent / "1" / "model.onnx").read_bytes() == file.read_bytes()
    files = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(files) == ["models/shapes/1/model.onnx", "models/shapes/config.pbtxt"]
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_what_cannot_be_a_repository(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="needs an .onnx file"):
        write_triton(tmp_path / "d.xml", tmp_path / "models")
    (tmp_path / "models").write_text("a file")
    with pytest.raises(OutputError, match="models: this folder cannot be created"):
        write_triton(exported_detector().file, tmp_path / "models")
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "detector").write_text("a file")
    with pytest.raises(OutputError, match="detector"):
        write_triton(exported_detector().file, tmp_path / "repository")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models", "repository"]


@pytest.mark.slow
@pytest.mark.skipif(TRITON not in os.environ, reason=f"{TRITON} names no interpreter with tritonclient[grpc]")
def test_the_configuration_is_tritons(tmp_path: Path) -> None:
    """Held to the message ModelConfig that comes with Triton's own client."""
    config = write_triton(exported_detector().file, tmp_path / "models")
    script = """
import json, sys
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
config = text_format.Parse(open(sys.argv[1]).read(), model_config_pb2.ModelConfig())
kind = model_config_pb2.DataType.Name
print(json.dumps({
    "name": config.name,
    "platform": config.platform,
    "batch": config.max_batch_size,
    "delay": config.dynamic_batching.max_queue_delay_microseconds,
    "inputs": [[one.name, kind(one.data_type), list(one.dims)] for one in config.input],
    "outputs": {one.name: [kind(one.data_type), list(one.dims), one.HasField("reshape"), list(one.reshape.shape)] for one in config.output},
    "parameters": {name: json.loads(one.string_value)["format"] for name, one in config.parameters.items()},
}))
"""
    words = [os.environ[TRITON], "-c", script, str(config)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["inputs"] == [["input_tensor", "TYPE_UINT8", [-1, -1, 3]]]
    assert (found["name"], found["platform"]) == ("detector", "onnxruntime_onnx")
    assert (found["batch"], found["delay"]) == (8, 2000)
    assert found["outputs"]["detection_boxes"] == ["TYPE_FP32", [100, 4], False, []]
    assert found["outputs"]["num_detections"] == ["TYPE_FP32", [1], True, []]
    assert set(found["outputs"]) == set(open_session(exported_detector().file).output_names)
    assert found["parameters"] == {"boxwright": "onnx"}


@pytest.mark.slow
def test_the_format_on_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(small_run().folder, folder)
    output = run("export", folder, tmp_path / "models", "--format", "triton")
    assert "tritonserver --model-repository=" in output
    model = tmp_path / "models" / "detector" / "1" / "model.onnx"
    # The file that passed the comparison, whose report is beside it.
    assert model.read_bytes() == (folder / "export" / "detector.onnx").read_bytes()
    assert (folder / "export" / "detector.onnx.parity.json").is_file()
    assert "passed" in run("inspect", model)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["models", "--triton", "others"], "--format triton and --triton both name a model repository"),
        (["models.onnx"], "models.onnx: a model repository is a folder"),
        (["models", "--verify", "a.onnx"], "--verify compares one file"),
    ],
)
def test_words_that_contradict_each_other(words: list[str], problem: str, tmp_path: Path) -> None:
    (tmp_path / "ckpt-1.pt").touch()
    with pytest.raises(ExportError, match=problem):
        CliRunner().invoke(app, ["export", str(tmp_path), *words, "--format", "triton"], catch_exceptions=False)


def test_the_line_for_tensorrt() -> None:
    assert tensorrt_line("a/d.onnx").startswith("trtexec --onnx=a/d.onnx --minShapes=input_tensor:1x64x64x3 ")
