"""The files that exported detectors are."""

# Suffix to the library that opens it, without PyTorch.
RUNTIMES = {".onnx": "onnxruntime", ".xml": "openvino", ".tflite": "ai-edge-litert"}
EXPORTS = (*RUNTIMES, ".pt2")
