"""The formats that exported detectors run in without PyTorch."""

__all__ = ["RUNTIMES"]

# Suffix to the library that opens it.
RUNTIMES = {".onnx": "onnxruntime", ".xml": "openvino"}
