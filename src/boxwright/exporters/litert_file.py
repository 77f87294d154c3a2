"""LiteRT (TensorFlow Lite): a .tflite with TensorFlow's `TFLite_Detection_PostProcess`, made without TensorFlow.

The input is that of `export_tflite_graph_tf2`: float32 [1, H, W, 3], already resized and, except for CenterNet and
D-FINE, scaled. These two have no anchors that the operator could decode, and are whole graphs, from pixels to
detections, as in TF's `CenterNetModule` of its TFLite exporter; the converter turns D-FINE's samples of maps into
gathers. The converter, litert-torch, needs an older PyTorch than Boxwright; so it may run in a separate interpreter,
which takes a program and returns a network. The operator, the labels and the metadata are added here.

Dimensions: H W the network's input, A anchors, cells or queries, C columns of the class head, D detections,
P keypoints.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from boxwright.base.errors import ExportError
from boxwright.base.files import write_whole
from boxwright.base.quiet import quiet
from boxwright.exporters import litert_child
from boxwright.exporters.graph import Suppression, named_outputs
from boxwright.exporters.litert_operator import KEYPOINTS, Lite, model_metadata, with_kept, with_operator, with_outputs
from boxwright.exporters.resizing import PIXEL_CENTERS, refuse_resizer
from boxwright.nn.detector import Detector
from boxwright.nn.ops.boxes import FasterRcnnBoxCoder
from boxwright.nn.ops.resize import resize_antialiased
from boxwright.nn.postprocessing.anchor import AnchorPostprocessor
from boxwright.nn.postprocessing.nms import Nms, PerClass, operator_arguments
from boxwright.nn.postprocessing.postprocessor import Postprocessor
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.runtime.export_file import ExportFile
from boxwright.runtime.litert_session import ANTIALIASED, IN_GRAPH, INPUT, LABELS, LitertSession
from boxwright.runtime.metadata import KEY, Metadata, seal
from boxwright.types.detection_outputs import LITERT_KEPT, LITERT_KEYPOINT_OUTPUTS, LITERT_OUTPUTS


class WholePostprocessor(Postprocessor[Any], Protocol):
    """The postprocessor of a detector without anchors."""

    nms: Nms | None

    def lite_outputs(self, predictions: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the outputs of a graph for LiteRT, and those after them that only its comparison with ours reads."""
        ...


def is_whole(detector: Detector) -> bool:
    """Return whether a detector, which has no anchors, becomes a whole graph."""
    return hasattr(detector.postprocessor, "lite_outputs")


class LiteDetector(nn.Module):
    """A detector whose input is pixels of the right size, and whose outputs are TensorFlow's, and `LITERT_KEPT`."""

    sizes: Tensor

    def __init__(self, detector: Detector, size: tuple[int, int]) -> None:
        """Take a detector in evaluation mode."""
        super().__init__()
        self.preprocessor, self.network = detector.preprocessor, detector.network
        self.post = detector.postprocessor
        self.register_buffer("sizes", torch.tensor([size]), persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return float32 outputs of pixels float32 [1, H, W, 3] in 0..255.

        Returns:
            Boxes [1, D, 4] as ymin, xmin, ymax, xmax in 0..1, classes from 0 [1, D], scores [1, D], their number [1];
            if it learns keypoints, these [1, D, P, 2] as y, x in 0..1, and their scores [1, D, P]; then what the gate
            compares: cells of detections [1, D], boxes in cells [1, D, 4] if boxes are learned, and of all cells boxes
            [1, A, 4], xyxy in pixels of the input, and scores [1, A, C].
        """
        inputs = self.preprocessor.normalize(images.permute(0, 3, 1, 2), self.sizes).contiguous()
        predictions = self.network(inputs, self.sizes)
        raw = self.post.decode(predictions)
        outputs = named_outputs(inputs, raw, self.post.select(predictions, raw, self.sizes), self.sizes)
        outputs["detection_classes"] = outputs["detection_classes"] - 1
        outputs |= {"raw_boxes": raw.boxes, "raw_scores": raw.scores}
        return tuple(
            outputs[name] for name in (*LITERT_OUTPUTS, *LITERT_KEYPOINT_OUTPUTS, *LITERT_KEPT) if name in outputs
        )


def whole_program(
    detector: Detector, size: tuple[int, int]
) -> tuple[torch.export.ExportedProgram, tuple[str, ...], tuple[str, ...]]:
    """Return a detector as a program, the names of its outputs, and of those after them that only the gate reads.

    Raises:
        ExportError: If it is a CenterNet that learns more than boxes and keypoints, or if it suppresses.
    """
    post = cast(WholePostprocessor, detector.postprocessor)
    if not is_whole(detector):
        raise TypeError(f"expected a detector without anchors, found {type(post).__name__}")
    if post.nms is not None:
        raise ExportError("litert: post_processing: of a detector without anchors only without; use --format onnx")
    network = LiteDetector(detector, size).eval()
    example = torch.zeros(1, *size, detector.image_channels)
    with torch.no_grad(), quiet():
        named, kept = post.lite_outputs(network.network(example.permute(0, 3, 1, 2), network.sizes))
        table = torch.export.default_decompositions()
        table[torch.ops.aten.split_with_sizes.default] = _slices
        program = torch.export.export(network, (example,), strict=False).run_decompositions(table)
    return program, named, kept


def _slices(tensor: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    """Return what splitting returns, as the converter does not split a tensor into one part."""
    starts = itertools.accumulate(sizes, initial=0)
    return [tensor.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=False)]


# Names the interpreter that has litert-torch.
PYTHON = "BOXWRIGHT_LITERT_PYTHON"
_COLORS = 3
_PLACED = 2  # dimensions of anchors that all pictures share
_MAKE = "uv venv litert && uv pip install --python litert 'litert-torch>=0.10'"
_ERROR = re.compile(r"[\w.]*(Error|Exception): ")
_HOW = f"create an interpreter for it with `{_MAKE}` and set {PYTHON} to its python"


class LiteNetwork(nn.Module):
    """The part of a detector that LiteRT runs: from scaled pixels to the input of suppression."""

    def __init__(self, detector: Detector, post: AnchorPostprocessor, size: tuple[int, int]) -> None:
        """Take a detector in evaluation mode, whose anchors are laid."""
        super().__init__()
        self.network, self.converter = detector.network, post.score_converter
        self.sizes: Tensor
        self.register_buffer("sizes", torch.tensor([size]), persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return box codes [1, A, 4] and scores [1, A, C] of scaled pixels [1, H, W, 3]."""
        predictions = self.network(images.permute(0, 3, 1, 2).contiguous(), self.sizes)
        return predictions.box_codes, self.converter(predictions.class_logits)


def litert_model(detector: Detector, suppression: Suppression, times: int, dtype: torch.dtype) -> Lite:
    """Return a detector as LiteRT's model, whose file `save_litert` writes.

    Args:
        dtype: Ignored: the input is float32.

    Raises:
        ExportError: If the operator cannot represent the detector's suppression, or there is no converter.
    """
    del times, dtype
    if is_whole(detector):
        whole, outputs, kept = whole_program(detector, _input_size(detector, suppression))
        return with_outputs(_converted(whole, _converter()), outputs, kept)
    post, coder = _parts(detector)
    size, python = _input_size(detector, suppression), _converter()
    detector.network.lay_anchors(size, 3)
    network = LiteNetwork(detector, post, size).eval()
    example = torch.zeros(1, *size, 3)
    with torch.no_grad(), quiet():
        predictions = network.network(example.permute(0, 3, 1, 2), network.sizes)
        if predictions.anchors.ndim != _PLACED or predictions.filtered is not None:
            raise ExportError("litert: the operator only decodes anchors that all pictures share; use onnx")
        program = torch.export.export(network, (example,), strict=False)
    rules = operator_arguments(post.nms)
    options = {
        "max_detections": rules["max_total"],
        # Only the fast kind reads this one; that kind suppresses across classes, so it is not used.
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
    return with_operator(_converted(program, python), _centered(predictions.anchors, size), options)


def litert_input(detector: Detector) -> dict[str, Any]:
    """Return the metadata of a .tflite's input: how its user must preprocess a picture."""
    resizer = detector.preprocessor.resizer
    center = PIXEL_CENTERS.get(resizer.resize, 0.0) if isinstance(resizer, FixedShapeResizer) else 0.0
    size = list(resizer.output_size or ())
    whole = is_whole(detector)
    antialiased = isinstance(resizer, FixedShapeResizer) and resizer.resize is resize_antialiased
    return {
        "dtype": f"float32 [1, {', '.join(map(str, size))}, 3]",
        "resizer": f"stretched bilinearly{ANTIALIASED if antialiased else ''}, before the graph",
        "size": size,
        "pixel centre": center,
        "scaled": IN_GRAPH if whole else "before the graph",
        "name": INPUT,
    }


def litert_session(file: ExportFile) -> LitertSession:
    """Return a session for the comparison, which also returns what comes before suppression."""
    return LitertSession(replace(file, data=with_kept(file.data)), raw_outputs=True)


def save_litert(model: Lite, metadata: Metadata, path: Path) -> None:
    """Write a .tflite; OutputError if the disk is full or the folder cannot be written.

    Args:
        model: From `litert_model`.
        metadata: Written as our own and in the form that TensorFlow Lite's libraries read.
    """
    names = [item["name"] for item in sorted(metadata.categories, key=lambda item: item["label"])]
    scale, offset = metadata.input["scaling"]["scale"], metadata.input["scaling"]["offset"]
    if metadata.input.get("scaled") == IN_GRAPH:
        scale, offset = (1.0,) * _COLORS, (0.0,) * _COLORS
    height, width = metadata.input["size"]
    further = len(model.output_names) - len(LITERT_OUTPUTS)
    described = model_metadata((height, width), scale, offset, LABELS if names else "", KEYPOINTS[:further])
    content = {KEY.upper(): metadata.to_json().encode(), "TFLITE_METADATA": described}
    packed = model.packed(content, {LABELS: "\n".join(names) + "\n"} if names else {})
    write_whole(path, seal([packed])[0])


def _input_size(detector: Detector, suppression: Suppression) -> tuple[int, int]:
    """Return the (height, width) of the network's input, if LiteRT can have a detector's resizer and channels."""
    resizer = detector.preprocessor.resizer
    if suppression != "operator":
        raise ExportError("litert: suppression is always TFLite_Detection_PostProcess; omit --nms")
    if detector.image_channels != _COLORS:
        raise ExportError("litert: pictures have red, green and blue alone; use --format onnx")
    if reason := refuse_resizer(resizer):
        raise ExportError(f"image_resizer: {reason}")
    if not isinstance(resizer, FixedShapeResizer) or resizer.convert_to_grayscale:
        raise ExportError("litert: image_resizer: only fixed_shape_resizer, in color, as in TensorFlow; use onnx")
    return resizer.height, resizer.width


def _parts(detector: Detector) -> tuple[AnchorPostprocessor, FasterRcnnBoxCoder]:
    """Return the parts that the operator needs, if it can do what the detector does."""
    post = detector.postprocessor
    if not isinstance(post, AnchorPostprocessor) or type(post.box_coder) is not FasterRcnnBoxCoder:
        raise ExportError(
            "litert: only for one-stage detectors with TensorFlow's box coder, as SSD, CenterNet, and D-FINE and "
            "RF-DETR without masks; use --format onnx"
        )
    nms = post.nms
    plain = post.candidates is None and nms.candidates is None and nms.lowering is None and nms.outside == "drop"
    if not isinstance(nms.suppression, PerClass) or not plain:
        raise ExportError("litert: post_processing: the operator only supports per-class suppression; use onnx")
    return post, post.box_coder


def _centered(anchors: Tensor, size: tuple[int, int]) -> Any:
    """Return anchors as y and x of the center, height and width, in 0..1: float32 [A, 4]."""
    height, width = size
    x0, y0, x1, y1 = (anchors / anchors.new_tensor([width, height, width, height])).unbind(-1)
    return torch.stack([(y0 + y1) / 2, (x0 + x1) / 2, y1 - y0, x1 - x0], -1).numpy()


def _converter() -> str:
    """Return the interpreter that has the converter."""
    python = os.environ.get(PYTHON) or (sys.executable if find_spec("litert_torch") else "")
    if not python:
        raise ExportError(f"litert: litert-torch, its converter, is not installed (it needs an older PyTorch); {_HOW}")
    return python


def _converted(program: torch.export.ExportedProgram, python: str) -> bytes:
    """Return the program's network as a .tflite."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "network.pt2", Path(folder) / "network.tflite"
        with quiet():  # it warns of constants that share memory
            torch.export.save(program, source)
        # As text, not as a file: Python would find our modules beside it, one of which is called as PyTorch's Triton.
        script = Path(litert_child.__file__).read_text(encoding="utf-8")
        words = [python, "-c", script, str(source), str(target)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, cwd=folder)
        except OSError as error:
            raise ExportError(f"litert: {python} cannot be run: {error.strerror}; {_HOW}") from None
        if done.returncode or not target.is_file():
            printed = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no output"]
            # After its error PyTorch prints where in the graph it was.
            reason = next((line for line in reversed(printed) if _ERROR.match(line)), printed[-1])
            raise ExportError(f"litert: {python} could not convert the network: {reason[:400]}")
        return target.read_bytes()
