"""Post-training quantization of an ONNX file to 8 bits, with ONNX Runtime's quantizer.

Nodes between the first and the last convolution are quantized, weights per channel; resizing, decoding and suppression
stay in float. Each tensor's range is its minimum and maximum on the calibration pictures.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.quiet import quiet
from boxwright.exporters.graph import INPUT
from boxwright.runtime.optional import require_library

_CONVOLUTIONS = ("Conv", "ConvTranspose")


class _Pictures:
    """The quantizer's data reader: one picture per call, then None."""

    def __init__(self, images: Sequence[NDArray[np.uint8]]) -> None:
        self._left: Iterator[NDArray[np.uint8]] = iter(images)

    def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
        image = next(self._left, None)
        return None if image is None else {INPUT: image[None]}


def quantized(model: Any, images: Sequence[NDArray[np.uint8]]) -> Any:
    """Return an `onnx.ModelProto` in 8 bits, calibrated on pictures uint8 [H, W, 3], with the same outputs."""
    onnx = require_library("onnx", "onnx")
    quantization = require_library("onnxruntime.quantization", "onnx")
    shapes = require_library("onnxruntime.quantization.shape_inference", "onnx")
    with tempfile.TemporaryDirectory() as folder, quiet():
        source, prepared, target = (Path(folder) / name for name in ("a.onnx", "b.onnx", "c.onnx"))
        onnx.save(model, source)
        shapes.quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared),
            str(target),
            _Pictures(images),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibrate_method=quantization.CalibrationMethod.MinMax,
            # By the names in the prepared file: preparation merges and renames nodes.
            nodes_to_exclude=_outside(onnx.load(prepared).graph),
        )
        return onnx.load(target)


def _outside(graph: Any) -> list[str]:
    """Return the names of the nodes that are not between two convolutions."""
    makers = {output: node for node in graph.node for output in node.output}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for value in node.input:
            readers.setdefault(value, []).append(node)
    convolutions = [node for node in graph.node if node.op_type in _CONVOLUTIONS]
    below = _reached(convolutions, lambda node: [other for out in node.output for other in readers.get(out, [])])
    above = _reached(convolutions, lambda node: [makers[value] for value in node.input if value in makers])
    return [node.name for node in graph.node if not (node.name in below and node.name in above)]


def _reached(start: Sequence[Any], step: Any) -> set[str]:
    """Return the names of nodes reachable from some, including them."""
    names, left = {node.name for node in start}, list(start)
    while left:
        for node in step(left.pop()):
            if node.name not in names:
                names.add(node.name)
                left.append(node)
    return names
