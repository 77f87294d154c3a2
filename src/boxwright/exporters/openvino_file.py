"""Converting an ONNX file to OpenVINO's .xml and .bin, in the detector's precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from boxwright.base.errors import OutputError, first_line
from boxwright.base.files import shown, write_whole
from boxwright.runtime.metadata import KEY, Metadata
from boxwright.runtime.optional import require_library
from boxwright.runtime.seal import seal


def openvino_model(onnx: bytes) -> Any:
    """Return an ONNX model as OpenVINO's."""
    runtime = require_library("openvino", "openvino")
    return runtime.Core().read_model(onnx)


def save_openvino(model: Any, metadata: Metadata, path: Path) -> None:
    """Write a model's .xml and .bin; OutputError if the disk is full or the folder cannot be written."""
    runtime = require_library("openvino", "openvino")
    model.set_rt_info(metadata.to_json(), [KEY])
    try:
        # By default OpenVINO saves weights as float16.
        runtime.save_model(model, str(path), compress_to_fp16=False)
        parts = [path.read_bytes(), path.with_suffix(".bin").read_bytes()]
        sealed = seal(parts)[0]
    except (RuntimeError, OSError, ValueError) as error:  # ValueError: written incompletely
        raise OutputError(
            f"{shown(path)}: could not be written by OpenVINO (is the disk full?): {first_line(error)}"
        ) from None
    write_whole(path, sealed)
