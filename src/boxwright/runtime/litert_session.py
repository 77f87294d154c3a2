"""A .tflite in LiteRT's interpreter, with the preprocessing that its input needs: the detector's resizing and scaling.

Dimensions: B batch, H W image, A anchors, C columns of the class head, D detections.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ExportError, translated
from boxwright.base.threads import runtime_threads, usable_cpus
from boxwright.runtime.export_file import ExportFile
from boxwright.runtime.metadata import KEY, Metadata
from boxwright.runtime.optional import require_library
from boxwright.types.detection_outputs import LITERT_KEPT, LITERT_RAW

INPUT, ANCHORS = "normalized_input_image_tensor", "anchors"
# The network's own outputs, which the operator takes.
NETWORK_OUTPUTS = ("raw_box_codes", "raw_class_scores")
RAW_OUTPUTS = ("raw_detection_boxes", "raw_detection_scores")
# What the input's "resizer" says where every pixel that a new one covers is weighed.
ANTIALIASED = " and antialiased"
# The value of the input's "scaled" where the graph scales pixels.
IN_GRAPH = "within the graph"
LABELS = "labelmap.txt"
Floats = NDArray[np.float32]


class LitertSession:
    """One of our .tflite files, run one picture at a time."""

    def __init__(self, file: ExportFile, threads: int = 0, *, raw_outputs: bool = False) -> None:
        """Open a file.

        Args:
            threads: How many it may use; 0 for OMP_NUM_THREADS, else one per CPU (LiteRT's own default is one). A file
                with TFLite_Detection_PostProcess uses one.
            raw_outputs: Whether `run` also returns the network's outputs before suppression; all tensors are then kept.

        Raises:
            ExportError: If the file is damaged or not ours.
        """
        library = require_library("ai_edge_litert.interpreter", "litert")
        self._name = file.name
        text, self._scales = _own_metadata(file.data, file.name)
        self.metadata = Metadata.from_json(text, file.name)
        # With more threads the operator skips classes: of four, two threads lose the third (tensorflow issue 56058).
        count = (threads or runtime_threads() or usable_cpus()) if self._is_whole else 1
        with translated(ExportError, f"{file.name} cannot be opened by LiteRT"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns that keeping all tensors takes memory
                self._interpreter = library.Interpreter(
                    model_content=file.data, num_threads=count, experimental_preserve_all_tensors=raw_outputs
                )
            self._interpreter.allocate_tensors()
        self._outputs = tuple(detail["name"] for detail in self._interpreter.get_output_details())
        self._raw = raw_outputs
        self.output_names = tuple(name for name in self._outputs if name not in LITERT_KEPT)

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> dict[str, Floats]:
        """Return the named outputs, or all, for pictures uint8 [B, H, W, 3]; with raw ones, more than `output_names`.

        Boxes are clipped to the picture and classes begin at 1, as in TensorFlow's outputs; the operator does neither.
        """
        inputs = self._fitted(images) if self._is_whole else self.preprocessed(images)
        with translated(ExportError, f"{self._name} cannot be run by LiteRT"):
            outputs = [self._run(image[None]) for image in inputs]
        return {name: np.concatenate([output[name] for output in outputs]) for name in names or outputs[0]}

    @property
    def _is_whole(self) -> bool:
        """Whether the graph scales pixels itself and holds no operator that suppresses."""
        return self.metadata.input.get("scaled") == IN_GRAPH

    def preprocessed(self, images: NDArray[Any]) -> Floats:
        """Return the network's inputs float32 [B, H', W', 3] for pictures [B, H, W, 3]."""
        scaling = self.metadata.input["scaling"]
        scale, offset = (np.array(scaling[name], np.float32) for name in ("scale", "offset"))
        return self._fitted(images) * scale + offset

    def _fitted(self, images: NDArray[Any]) -> Floats:
        """Return pictures of the input's size, float32 [B, H', W', 3]."""
        about = self.metadata.input
        pixels = images.astype(np.float32)
        antialiased = ANTIALIASED in about.get("resizer", "")
        for axis, length in enumerate(about["size"], start=1):
            if antialiased:
                pixels = _antialiased(pixels, axis, length)
            else:
                pixels = _resized(pixels, axis, length, about["pixel centre"])
        return pixels

    def _run(self, inputs: Floats) -> dict[str, Floats]:
        interpreter = self._interpreter
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], inputs)
        interpreter.invoke()
        details = zip(self._outputs, interpreter.get_output_details(), strict=True)
        outputs: dict[str, Floats] = {name: interpreter.get_tensor(detail["index"]) for name, detail in details}
        most = int(outputs["num_detections"][0])  # rows after the last detection are undefined
        for name in self._outputs:
            if name.startswith("detection"):
                outputs[name][:, most:] = 0
        outputs["detection_boxes"] = outputs["detection_boxes"].clip(0, 1)
        outputs["detection_classes"] = outputs["detection_classes"] + 1
        if not self._raw:
            return outputs
        pixels, scores = (outputs.pop(name, None) for name in LITERT_RAW)
        if pixels is None or scores is None:
            return {**outputs, **self._raw_outputs()}
        height, width = self.metadata.input["size"]
        boxes = np.asarray(pixels[..., [1, 0, 3, 2]] / np.array([height, width, height, width]), np.float32)
        return {**outputs, **dict(zip(RAW_OUTPUTS, (boxes, scores), strict=True))}

    def _raw_outputs(self) -> dict[str, Floats]:
        """Return all boxes, decoded as the operator does it, and all scores."""
        places = {detail["name"]: detail["index"] for detail in self._interpreter.get_tensor_details()}
        codes, scores = (self._interpreter.get_tensor(places[name]) for name in NETWORK_OUTPUTS)
        anchors = self._interpreter.get_tensor(places[ANCHORS])
        center = codes[..., :2] / self._scales[:2] * anchors[:, 2:] + anchors[:, :2]
        half = np.exp(codes[..., 2:4] / self._scales[2:]) * anchors[:, 2:] / 2
        return dict(zip(RAW_OUTPUTS, (np.concatenate([center - half, center + half], -1), scores), strict=True))


def _resized(pixels: Floats, axis: int, length: int, center: float) -> Floats:
    """Resize bilinearly along an axis; `center` is where in a pixel its value lies (0 in TensorFlow)."""
    old = pixels.shape[axis]
    places = np.arange(length, dtype=np.float32)
    source = ((places + np.float32(center)) * np.float32(old / length) - np.float32(center)).clip(0)
    low = np.floor(source).astype(np.int64).clip(max=old - 1)
    high = (low + 1).clip(max=old - 1)
    share = (source - np.floor(source)).reshape([-1 if number == axis else 1 for number in range(pixels.ndim)])
    first = pixels.take(low, axis)
    return np.asarray(first + (pixels.take(high, axis) - first) * share)


def _antialiased(pixels: Floats, axis: int, length: int) -> Floats:
    """Resize along an axis, bilinearly where it grows; where it shrinks, weigh all pixels that a new one covers."""
    old = pixels.shape[axis]
    scale = old / length
    places = (np.arange(length) + 0.5) * scale - 0.5
    away = np.abs(np.arange(old) - places[:, None]) / max(scale, 1.0)
    weights = (1 - away).clip(0)
    weights = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return np.moveaxis(np.tensordot(pixels, weights, (axis, 1)), -1, axis)


def _own_metadata(data: bytes, where: str) -> tuple[str | None, NDArray[np.float32]]:
    """Return a file's metadata (None if it is not ours), and the scales by which its operator divides box codes."""
    schema = require_library("ai_edge_litert.schema_py_generated", "litert")
    from flatbuffers import flexbuffers

    text, scales = None, np.ones(4, np.float32)
    with translated(ExportError, f"{where} is not a .tflite, or damaged"):
        model = schema.ModelT.InitFromPackedBuf(data, 0)
        for entry in model.metadata or []:
            if entry.name == KEY.upper().encode():
                text = bytes(model.buffers[entry.buffer].data).decode()
        packed = model.subgraphs[0].operators[-1].customOptions
        if text is not None and packed is not None:
            options = flexbuffers.Loads(bytes(packed))
            scales = np.array([options[f"{side}_scale"] for side in "yxhw"], np.float32)
    return text, scales
