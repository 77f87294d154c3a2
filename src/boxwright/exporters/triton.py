"""A Triton model repository: the exported file and its `config.pbtxt`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from boxwright.base.errors import ExportError
from boxwright.base.files import make_folder, read_file, write_whole
from boxwright.runtime.metadata import KEY
from boxwright.runtime.optional import require_library
from boxwright.runtime.sessions import open_session

# The defaults of `boxwright serve`.
_MOST, _DELAY_US = 8, 2000


def write_triton(file: str | Path, folder: str | Path, name: str = "detector") -> Path:
    """Write `NAME/1/model.onnx` and `NAME/config.pbtxt`, which OpenVINO's Model Server also reads; return the latter.

    Raises:
        ExportError: If the file is not an .onnx of ours.
        OutputError: If the folder cannot be written.
    """
    if Path(file).suffix != ".onnx":
        raise ExportError(f"{file}: a Triton repository needs an .onnx file")
    metadata = open_session(file).metadata
    onnx = require_library("onnx", "onnx")
    data = read_file(file, ExportError)
    graph = onnx.load_model_from_string(data).graph
    lines = [
        f'name: "{name}"',
        'platform: "onnxruntime_onnx"',
        f"max_batch_size: {_MOST}",
        *(_tensor("input", value, "TYPE_UINT8" if _is_uint8(value, onnx) else "TYPE_FP32") for value in graph.input),
        *(_tensor("output", value, "TYPE_FP32") for value in graph.output),
        f"dynamic_batching {{ max_queue_delay_microseconds: {_DELAY_US} }}",
        # A JSON string is also a valid string of protobuf's text format.
        f'parameters {{ key: "{KEY}" value {{ string_value: {json.dumps(metadata.to_json())} }} }}',
    ]
    model = make_folder(Path(folder) / name / "1")
    write_whole(model / "model.onnx", data)
    return write_whole(model.parent / "config.pbtxt", "\n".join(lines) + "\n")


def tensorrt_line(file: str | Path, channels: int = 3) -> str:
    """Return the command that builds a TensorRT engine from an exported .onnx, for pictures up to 1280×1280."""
    sizes = {"min": "1x64x64", "opt": f"{_MOST}x480x640", "max": f"{_MOST}x1280x1280"}
    shapes = {kind: f"{size}x{channels}" for kind, size in sizes.items()}
    options = " ".join(f"--{kind}Shapes=input_tensor:{shape}" for kind, shape in shapes.items())
    return f"trtexec --onnx={file} {options} --saveEngine={Path(file).with_suffix('.plan')}"


def _is_uint8(value: Any, onnx: Any) -> bool:
    return bool(value.type.tensor_type.elem_type == onnx.TensorProto.UINT8)


def _tensor(role: str, value: Any, kind: str) -> str:
    """Return a tensor's description, without its batch dimension."""
    sides = [side.dim_value or -1 for side in value.type.tensor_type.shape.dim][1:]
    # Triton requires at least one dimension, so one is added to a scalar per picture.
    shape = f" dims: {sides}" if sides else " dims: [1] reshape { shape: [] }"
    return f'{role} {{ name: "{value.name}" data_type: {kind}{shape} }}'
