"""LiteRT (TensorFlow Lite): a .tflite with TensorFlow's `TFLite_Detection_PostProcess`, made without TensorFlow.

What goes in is as `export_tflite_graph_tf2` has it: float32 [1, H, W, 3], resized and scaled already. The converter,
litert-torch, needs an older PyTorch than this one; so it may run in an interpreter of its own, which is handed a
program and gives back a network. The operator, the labels and what the file says of itself are added here.

Dimensions: H W the network's input, A anchors, C columns of the class head, D detections.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.base.errors import ExportError
from boxwright.base.files import write_whole
from boxwright.base.quiet import quiet
from boxwright.exporters import litert_child
from boxwright.exporters.litert_labels import model_metadata
from boxwright.exporters.litert_operator import Lite, with_operator
from boxwright.exporters.program import Suppression
from boxwright.exporters.resizing import PIXEL_CENTRES, refuse_resizer
from boxwright.models.detector import Detector
from boxwright.ops.box_coder import FasterRcnnBoxCoder
from boxwright.postprocessing.anchor import AnchorPostprocessor
from boxwright.postprocessing.nms import PerClass, operator_arguments
from boxwright.preprocessing.image_resizer import FixedShapeResizer
from boxwright.runtime.litert_session import INPUT, LABELS
from boxwright.runtime.metadata import KEY, Metadata
from boxwright.runtime.seal import seal

# Names the interpreter that has litert-torch.
PYTHON = "BOXWRIGHT_LITERT_PYTHON"
_PLACED = 2  # dimensions of anchors that are the same in every picture
_MAKE = "uv venv litert && uv pip install --python litert 'litert-torch>=0.10'"
_HOW = f"make an interpreter for it by `{_MAKE}` and name its python by {PYTHON}"


class LiteNetwork(nn.Module):
    """The part of a detector that becomes LiteRT's: between scaled pixels and suppression."""

    def __init__(self, detector: Detector, post: AnchorPostprocessor, size: tuple[int, int]) -> None:
        """Take the detector apart.

        Args:
            detector: In evaluation mode; its anchors are laid.
        """
        super().__init__()
        self.network, self.converter = detector.network, post.score_converter
        self.sizes: Tensor
        self.register_buffer("sizes", torch.tensor([size]), persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return box codes [1, A, 4] and scores [1, A, C] of scaled pixels [1, H, W, 3]."""
        found = self.network(images.permute(0, 3, 1, 2).contiguous(), self.sizes)
        return found.box_codes, self.converter(found.class_logits)


def litert_model(detector: Detector, suppression: Suppression, times: int, dtype: torch.dtype) -> Lite:
    """Return a detector as LiteRT's model.

    Args:
        detector: In evaluation mode, on the CPU.
        times: Without meaning here: the operator looks at all anchors.
        dtype: Without meaning here: what goes in is float32.

    Returns:
        The model, whose file `save_litert` writes.

    Raises:
        ExportError: For a detector that the operator cannot serve, or where there is no converter.
    """
    del times, dtype
    post, coder, resizer = _parts(detector, suppression)
    size = (resizer.height, resizer.width)
    detector.network.lay_anchors(size, 3)
    network = LiteNetwork(detector, post, size).eval()
    example = torch.zeros(1, *size, 3)
    with torch.no_grad(), quiet():
        predictions = network.network(example.permute(0, 3, 1, 2), network.sizes)
        if predictions.anchors.ndim != _PLACED or predictions.filtered is not None:
            raise ExportError("litert: the operator decodes anchors that are the same in every picture; use onnx")
        program = torch.export.export(network, (example,), strict=False)
    rules = operator_arguments(post.nms)
    options = {
        "max_detections": rules["max_total"],
        "max_classes_per_detection": 1,
        "detections_per_class": rules["max_per_class"],
        "use_regular_nms": True,
        "nms_score_threshold": float(rules["score_threshold"]),
        "nms_iou_threshold": float(rules["iou_threshold"]),
        "num_classes": detector.num_classes,
        "y_scale": float(coder.y_scale),
        "x_scale": float(coder.x_scale),
        "h_scale": float(coder.height_scale),
        "w_scale": float(coder.width_scale),
    }
    return with_operator(_converted(program), _centred(predictions.anchors, size), options)


def litert_input(detector: Detector) -> dict[str, Any]:
    """Return what a .tflite says of its input: what its user has to do with a picture before."""
    resizer = detector.preprocessor.resizer
    centre = PIXEL_CENTRES.get(resizer.resize, 0.0) if isinstance(resizer, FixedShapeResizer) else 0.0
    size = list(resizer.output_size or ())
    return {
        "dtype": f"float32 [1, {', '.join(map(str, size))}, 3]",
        "resizer": "stretched bilinearly, before the graph",
        "size": size,
        "pixel centre": centre,
        "name": INPUT,
    }


def save_litert(model: Lite, metadata: Metadata, path: Path) -> None:
    """Write a .tflite.

    Args:
        model: As `litert_model` returned it.
        metadata: What it says of itself; also in the form that TensorFlow Lite's libraries read.

    Raises:
        OutputError: Where the disk is full or the folder cannot be written.
    """
    names = [item["name"] for item in sorted(metadata.categories, key=lambda item: item["label"])]
    scale, offset = metadata.input["scaling"]["scale"], metadata.input["scaling"]["offset"]
    height, width = metadata.input["size"]
    described = model_metadata((height, width), scale, offset, LABELS if names else "")
    content = {KEY.upper(): metadata.to_json().encode(), "TFLITE_METADATA": described}
    packed = model.packed(content, {LABELS: "\n".join(names) + "\n"} if names else {})
    write_whole(path, seal([packed])[0])


def _parts(
    detector: Detector, suppression: Suppression
) -> tuple[AnchorPostprocessor, FasterRcnnBoxCoder, FixedShapeResizer]:
    """Return what the operator needs, where it can do what the detector does."""
    post, resizer = detector.postprocessor, detector.preprocessor.resizer
    if suppression != "operator":
        raise ExportError("litert: suppression is TFLite_Detection_PostProcess; leave --nms out")
    if not isinstance(post, AnchorPostprocessor) or type(post.box_coder) is not FasterRcnnBoxCoder:
        raise ExportError("litert: for detectors of one step with TensorFlow's box coder, as SSD; use --format onnx")
    if reason := refuse_resizer(resizer):
        raise ExportError(f"image_resizer: {reason}")
    if not isinstance(resizer, FixedShapeResizer) or resizer.convert_to_grayscale:
        raise ExportError("litert: image_resizer: as in TensorFlow, only fixed_shape_resizer, in colour; use onnx")
    nms = post.nms
    plain = post.candidates is None and nms.candidates is None and nms.lowering is None and nms.outside == "drop"
    if not isinstance(nms.suppression, PerClass) or not plain:
        raise ExportError("litert: post_processing: the operator suppresses class by class, and nothing else; use onnx")
    return post, post.box_coder, resizer


def _centred(anchors: Tensor, size: tuple[int, int]) -> Any:
    """Return anchors as y and x of the centre, height and width, in 0..1: float32 [A, 4]."""
    height, width = size
    x0, y0, x1, y1 = (anchors / anchors.new_tensor([width, height, width, height])).unbind(-1)
    return torch.stack([(y0 + y1) / 2, (x0 + x1) / 2, y1 - y0, x1 - x0], -1).numpy()


def _converted(program: torch.export.ExportedProgram) -> bytes:
    """Return the program's network as a .tflite, made by whatever interpreter has the converter."""
    python = os.environ.get(PYTHON) or (sys.executable if find_spec("litert_torch") else "")
    if not python:
        raise ExportError(f"litert: its converter, litert-torch, is not here, as it needs an older PyTorch; {_HOW}")
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "network.pt2", Path(folder) / "network.tflite"
        torch.export.save(program, source)
        words = [python, litert_child.__file__, str(source), str(target)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, cwd=folder)
        except OSError as error:
            raise ExportError(f"litert: {python} cannot be run: {error.strerror}; {_HOW}") from None
        if done.returncode or not target.is_file():
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["nothing was said"]
            raise ExportError(f"litert: {python} could not convert the network: {last[0][:400]}")
        return target.read_bytes()
