"""File formats of exported detectors, and the runtimes for which detectors are exported when they are opened."""

from __future__ import annotations

from dataclasses import dataclass

# From suffix to the library that opens the file without PyTorch.
RUNTIMES = {".onnx": "onnxruntime", ".xml": "openvino", ".tflite": "ai-edge-litert"}
EXPORTS = (*RUNTIMES, ".pt2")
# The folder of exports in the cache.
CACHED_EXPORTS = "exports"
AUTO, TORCH = "auto", "torch"


@dataclass(frozen=True)
class RuntimeFormat:
    """The export of a runtime.

    Attributes:
        format: Its name, as of `boxwright export --format`.
        libraries: That write and run it, besides PyTorch.
    """

    format: str
    suffix: str
    libraries: tuple[str, ...]


# A runtime's name for users → its export; the first that is installed is the default. ONNX Runtime took 0.26 of eager
# PyTorch's time and OpenVINO 0.43 (FPNLite-320, one image, two cores).
EXPORTED_FOR = {
    "onnxruntime": RuntimeFormat("onnx", ".onnx", ("onnx", "onnxscript", "onnxruntime")),
    "openvino": RuntimeFormat("openvino", ".xml", ("openvino", "onnx", "onnxscript")),
}
