"""File formats of exported detectors, names of a run's checkpoints, and of runtimes."""

from __future__ import annotations

import re
from pathlib import Path

# From suffix to the library that opens the file without PyTorch.
RUNTIMES = {".onnx": "onnxruntime", ".xml": "openvino", ".tflite": "ai-edge-litert"}
EXPORTS = (*RUNTIMES, ".pt2")
CHECKPOINT_NAME = re.compile(r"ckpt-([0-9]{1,18})\.pt")
AUTO, TORCH = "auto", "torch"
# The runtimes that a user may ask for → the format that `boxwright export` writes for them.
EXPORT_FORMATS = {"onnxruntime": "onnx", "openvino": "openvino"}


def is_export(path: Path) -> bool:
    """Return whether a file's name ends as that of an exported detector, in capitals or not."""
    return path.suffix.lower() in EXPORTS
