"""Formats that are not written, by the endings of their files or other programs' names, and the shortest way there."""

from __future__ import annotations

_FIXED = "--batch 1 --image_size 640x480"
_TENSORRT = (
    f"TensorRT builds an engine for one GPU: export to .onnx with --nms padded {_FIXED} (and --precision float16, as "
    "precision is the file's), then trtexec --onnx=detector.onnx --stronglyTyped --saveEngine=detector.engine, or let "
    "ONNX Runtime build it: predict --device tensorrt; neither was tried here"
)
_CORE_ML = (
    f"Core ML's files are written by coremltools: export to .pt2 with {_FIXED}, then "
    'coremltools.convert(torch.export.load("detector.pt2")); it was not tried here'
)
_TORCHSCRIPT = "TorchScript is deprecated; .pt2 is PyTorch's own format, which C++ and Python open"
_NCNN = (
    f"ncnn's pnnx converts other files: export to .onnx with --nms none {_FIXED}, then pnnx detector.onnx; it was not "
    "tried here"
)
_SAVED_MODEL = (
    "a SavedModel or a frozen graph needs TensorFlow to write; .onnx has the same names, and `boxwright serve` speaks "
    "TensorFlow Serving's protocol"
)
_KERAS = "Keras's weights are not written; name ckpt-N for a TensorFlow checkpoint"
_LITERT = "LiteRT's files, which were TensorFlow Lite's, end in .tflite; the format is litert"
_EXECUTORCH = "ExecuTorch's accelerated kernels (XNNPACK) give different results; export to .onnx or .pt2"
_WAYS = {
    **dict.fromkeys(("engine", "plan", "trt", "tensorrt"), _TENSORRT),
    **dict.fromkeys(("mlpackage", "mlmodel", "coreml"), _CORE_ML),
    **dict.fromkeys(("torchscript", "ts"), _TORCHSCRIPT),
    **dict.fromkeys(("ncnn", "param"), _NCNN),
    **dict.fromkeys(("pb", "saved_model", "savedmodel"), _SAVED_MODEL),
    **dict.fromkeys(("h5", "keras"), _KERAS),
    **dict.fromkeys(("lite", "tflite"), _LITERT),
    **dict.fromkeys(("pte", "executorch"), _EXECUTORCH),
    "pt": "PyTorch's own format of a whole detector is .pt2, weights alone are .safetensors",
    "pth": "weights are written as .safetensors; a whole detector for PyTorch as .pt2",
    "ckpt": "TensorFlow's checkpoints end in their step: name ckpt-N, as in model.ckpt-0",
    "mnn": "MNN converts other files: export to .onnx, then MNNConvert -f ONNX; it was not tried here",
    "om": "Ascend's ATC converts .onnx; it was not tried here",
    "rknn": "Rockchip's rknn-toolkit2 converts .onnx; export with --nms none; it was not tried here",
    "hef": "Hailo's compiler converts .onnx; export with --nms none; it was not tried here",
    "bin": "OpenVINO's files are .xml with a .bin beside it: name the .xml",
}


def way_to(format: str) -> str:
    """Return how to get a file of a format that is not written; empty if the format is not known.

    Args:
        format: The ending of its files without the dot, or its name in other programs; in any case.
    """
    return _WAYS.get(format.lower(), "")
