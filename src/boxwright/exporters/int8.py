"""Post-training quantization of an ONNX file to 8 bits, with ONNX Runtime's quantizer.

Convolutions and what lies between them are quantized, weights per channel. Resizing of images, selection of regions,
layers of vectors, decoding and suppression stay in float, and so does pooling over a border of -inf, which has no
scale. Each tensor's range is its minimum and maximum on the calibration pictures.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.quiet import quiet
from boxwright.exporters.graph import INPUT
from boxwright.exporters.onnx_links import GraphLinks
from boxwright.exporters.pictures import Pictures
from boxwright.runtime.optional import require_library


class _Reader:
    """The quantizer's data reader: one picture per call, then None."""

    def __init__(self, images: Pictures) -> None:
        self._left: Iterator[NDArray[np.uint8]] = iter(images)

    def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
        image = next(self._left, None)
        return None if image is None else {INPUT: image[None]}


def _of_infinite_borders(graph: Any, links: GraphLinks) -> set[str]:
    """Return the nodes that add a border of infinite values, and those that read it."""
    numpy_helper = require_library("onnx", "onnx").numpy_helper
    # Poolings share a scale with their inputs, so that with an infinite one all that they return becomes 0.
    constants = {one.name: one for one in graph.initializer}
    borders = [
        node
        for node in graph.node
        if node.op_type == "Pad"
        and node.input[2:3]
        and node.input[2] in constants
        and not np.isfinite(numpy_helper.to_array(constants[node.input[2]])).all()
    ]
    return {node.name for node in borders} | {name for node in borders for name in links.read_by(node.output[0])}


class Quantizer:
    """Quantizes one model, all of it or all but some nodes.

    Attributes:
        prepared: What is quantized, an `onnx.ModelProto`; preparation has merged and renamed nodes.
        inside: The names of the nodes that can be quantized.
        images: Calibration pictures, uint8 [H, W, 3].
    """

    def __init__(self, model: Any, images: Pictures) -> None:
        """Prepare an `onnx.ModelProto`."""
        onnx = require_library("onnx", "onnx")
        shapes = require_library("onnxruntime.quantization.shape_inference", "onnx")
        with tempfile.TemporaryDirectory() as folder, quiet():
            source, prepared = Path(folder) / "a.onnx", Path(folder) / "b.onnx"
            onnx.save(model, source)
            shapes.quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
            self.prepared = onnx.load(prepared)
        links = GraphLinks(self.prepared.graph)
        self.inside = links.between_convolutions() - _of_infinite_borders(self.prepared.graph, links)
        self.images = images

    def quantized(self, kept: Collection[str] = ()) -> Any:
        """Return an `onnx.ModelProto` in 8 bits with the same outputs, but for nodes that are kept in float."""
        onnx = require_library("onnx", "onnx")
        quantization = require_library("onnxruntime.quantization", "onnx")
        float_nodes = [node.name for node in self.prepared.graph.node if node.name not in self.inside]
        with tempfile.TemporaryDirectory() as folder, quiet():
            source, target = Path(folder) / "a.onnx", Path(folder) / "b.onnx"
            onnx.save(self.prepared, source)
            quantization.quantize_static(
                str(source),
                str(target),
                _Reader(self.images),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                reduce_range=_products_saturate(),
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                calibrate_method=quantization.CalibrationMethod.MinMax,
                nodes_to_exclude=[*float_nodes, *sorted(kept)],
            )
            return onnx.load(target)


def _products_saturate() -> bool:
    """Return whether sums of two products of 8 bits may exceed the 16 that this processor adds them in.

    So it is on x86 without VNNI, where ONNX Runtime's documentation asks for weights of 7 bits.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    about = Path("/proc/cpuinfo")
    return not (about.is_file() and "vnni" in about.read_text())
