"""File formats of exported detectors."""

# From suffix to the library that opens the file without PyTorch.
RUNTIMES = {".onnx": "onnxruntime", ".xml": "openvino", ".tflite": "ai-edge-litert"}
EXPORTS = (*RUNTIMES, ".pt2")
# The folder of exports in the cache.
CACHED_EXPORTS = "exports"
