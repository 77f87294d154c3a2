"""File formats of exported detectors, and the names of runtimes."""

from __future__ import annotations

# From suffix to the library that opens the file without PyTorch.
RUNTIMES = {".onnx": "onnxruntime", ".xml": "openvino", ".tflite": "ai-edge-litert"}
EXPORTS = (*RUNTIMES, ".pt2")
AUTO, TORCH = "auto", "torch"
# The runtimes that a user may ask for → the format that `boxwright export` writes for them.
EXPORT_FORMATS = {"onnxruntime": "onnx", "openvino": "openvino"}
