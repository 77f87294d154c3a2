"""Formats that are not written: errors that name the way there, and endings in any case."""

from __future__ import annotations

from pathlib import Path

import pytest

import boxwright as bw
from boxwright.exporters.other_formats import way_to
from boxwright.runtime.export_file import export_paths
from tests.exporters.small_detectors import MOBILENET_V1, build, pictures


@pytest.mark.parametrize(
    ("format", "name", "problem"),
    [
        ("engine", "a.engine", "format 'engine': TensorRT builds .* --nms padded .* trtexec --onnx=detector.onnx"),
        ("CoreML", "a.mlpackage", "format 'CoreML': .*coremltools"),
        ("tflite", "a.tflite", "format 'tflite': .* the format is litert"),
        ("saved_model", "a", "format 'saved_model': .* needs TensorFlow to write"),
        ("xyz", "a.xyz", "format 'xyz': expected onnx, openvino, litert, pt2"),
        ("onnx", "a.torchscript", r"a.torchscript: expected a name that ends in .onnx \(TorchScript is deprecated"),
        ("onnx", "a.xyz", r"a.xyz: expected a name that ends in .onnx$"),
    ],
)
def test_errors_name_the_way_there(tmp_path: Path, format: str, name: str, problem: str) -> None:
    with pytest.raises(bw.ExportError, match=problem):
        bw.export(build(MOBILENET_V1), tmp_path / name, images=pictures(), format=format)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_endings_and_names_in_any_case() -> None:
    assert way_to("Engine") == way_to("tensorrt") != ""
    assert way_to("onnx") == way_to("") == ""
    assert export_paths("a/OUT.XML") == [Path("a/OUT.XML"), Path("a/OUT.bin")]
    assert export_paths("OUT.ONNX") == [Path("OUT.ONNX")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "format"), [("OUT.ONNX", "onnx"), ("OUT.XML", "openvino"), ("OUT.Pt2", "pt2")])
def test_files_in_capitals_are_written_and_open(tmp_path: Path, name: str, format: str) -> None:
    bw.export(build(MOBILENET_V1), tmp_path / name, images=pictures(), format=format)  # type: ignore[arg-type]
    companions = {"OUT.bin"} if format == "openvino" else set[str]()
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}.parity.json", *companions}
    assert len(bw.load(tmp_path / name)(pictures()[0], min_score=0.0).boxes) > 10
