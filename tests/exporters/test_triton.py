from __future__ import annotations

from pathlib import Path

import pytest

from boxwright.base.errors import ExportError
from boxwright.config.text_format import parse_text
from boxwright.exporters.triton import tensorrt_line, write_triton
from boxwright.runtime.sessions import open_session
from tests.exporters.exported import exported_detector


def test_a_model_repository(tmp_path: Path) -> None:
    file = exported_detector().file
    config = write_triton(file, tmp_path / "models", "shapes")
    assert config == tmp_path / "models" / "shapes" / "config.pbtxt"
    assert (config.parent / "1" / "model.onnx").read_bytes() == file.read_bytes()
    text = config.read_text()
    parse_text(text, file="config.pbtxt")
    assert 'input { name: "input_tensor" data_type: TYPE_UINT8 dims: [-1, -1, 3] }' in text
    assert 'output { name: "detection_boxes" data_type: TYPE_FP32 dims: [50, 4] }' in text
    assert 'output { name: "num_detections" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } }' in text
    assert text.count("output {") == len(open_session(file).output_names)
    with pytest.raises(ExportError, match="needs an .onnx file"):
        write_triton(tmp_path / "d.xml", tmp_path / "models")


def test_the_line_for_tensorrt() -> None:
    assert tensorrt_line("a/d.onnx").startswith("trtexec --onnx=a/d.onnx --minShapes=input_tensor:1x64x64x3 ")
