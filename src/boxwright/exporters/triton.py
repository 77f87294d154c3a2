"""A Triton model repository: the exported file and its `config.pbtxt`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from boxwright.base.errors import ExportError, OutputError
from boxwright.base.files import cause, make_folder, read_file, shown, write_whole
from boxwright.runtime.metadata import KEY
from boxwright.runtime.optional import require_library
from boxwright.runtime.sessions import open_session

# The defaults of `boxwright serve`.
_MOST, _DELAY_US = 8, 2000
# Triton's names of ONNX's types.
_TYPES = {"FLOAT": "TYPE_FP32", "UINT8": "TYPE_UINT8", "INT32": "TYPE_INT32", "INT64": "TYPE_INT64"}


def write_triton(file: str | Path, folder: str | Path, name: str = "detector") -> Path:
    """Write `NAME/1/model.onnx` and `NAME/config.pbtxt`, which OpenVINO's Model Server also reads; return the latter.

    Both appear together where there is no such model yet; of one that is there, they replace the files.

    Raises:
        ExportError: If the file is not an .onnx of ours, or has a tensor of a type that Triton's are not known for.
        OutputError: If the folder cannot be written.
    """
    if Path(file).suffix.lower() != ".onnx":
        raise ExportError(f"{file}: a Triton repository needs an .onnx file")
    metadata = open_session(file).metadata
    onnx = require_library("onnx", "onnx")
    data = read_file(file, ExportError)
    graph = onnx.load_model_from_string(data).graph
    lines = [
        f'name: "{name}"',
        'platform: "onnxruntime_onnx"',
        f"max_batch_size: {_MOST}",
        *(_tensor("input", value, _type(value, onnx)) for value in graph.input),
        *(_tensor("output", value, _type(value, onnx)) for value in graph.output),
        f"dynamic_batching {{ max_queue_delay_microseconds: {_DELAY_US} }}",
        # A JSON string is also a valid string of protobuf's text format.
        f'parameters {{ key: "{KEY}" value {{ string_value: {json.dumps(metadata.to_json())} }} }}',
    ]
    # Beside the repository, as a server may look into it at any time.
    with tempfile.TemporaryDirectory(dir=make_folder(folder).parent, prefix=f".{name}.") as scratch:
        made = Path(scratch) / name
        write_whole(make_folder(made / "1") / "model.onnx", data)
        write_whole(made / "config.pbtxt", "\n".join(lines) + "\n")
        return _publish(made, Path(folder) / name) / "config.pbtxt"


def _publish(made: Path, model: Path) -> Path:
    """Move a model's folder to its place, or its files if there is one already."""
    try:
        if not model.exists():
            return made.rename(model)
        make_folder(model / "1")
        for file in ("1/model.onnx", "config.pbtxt"):
            (made / file).replace(model / file)
    except OSError as error:
        raise OutputError(f"{shown(model)}: could not be written: {cause(error)}") from None
    return model


def tensorrt_line(file: str | Path, channels: int = 3) -> str:
    """Return the command that builds a TensorRT engine from an exported .onnx, for pictures up to 1280×1280."""
    sizes = {"min": "1x64x64", "opt": f"{_MOST}x480x640", "max": f"{_MOST}x1280x1280"}
    shapes = {kind: f"{size}x{channels}" for kind, size in sizes.items()}
    options = " ".join(f"--{kind}Shapes=input_tensor:{shape}" for kind, shape in shapes.items())
    # TensorRT 10 would choose each layer's precision itself; in 11 there is no other way.
    return f"trtexec --onnx={file} {options} --stronglyTyped --saveEngine={Path(file).with_suffix('.plan')}"


def _type(value: Any, onnx: Any) -> str:
    """Return Triton's name of a tensor's type."""
    kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    if kind not in _TYPES:
        raise ExportError(f"{value.name}: a tensor of {kind}, expected one of {', '.join(_TYPES)}")
    return _TYPES[kind]


def _tensor(role: str, value: Any, kind: str) -> str:
    """Return a tensor's description, without its batch dimension."""
    sides = [side.dim_value or -1 for side in value.type.tensor_type.shape.dim][1:]
    # Triton requires at least one dimension, so one is added to a scalar per picture.
    shape = f" dims: {sides}" if sides else " dims: [1] reshape { shape: [] }"
    return f'{role} {{ name: "{value.name}" data_type: {kind}{shape} }}'
