"""Post-training quantization of an ONNX file to 8 bits, with ONNX Runtime's quantizer, and what it costs.

Convolutions and what lies between them are quantized, weights per channel. Resizing of images, selection of regions,
layers of vectors, decoding and suppression stay in float, and so does pooling over a border of -inf, which has no
scale. Each tensor's range is its minimum and maximum on the calibration pictures.

If average precision falls too far, what rounding each tensor alone does to the network's outputs is measured, and as
few layers as keep the precision stay in float.
"""

from __future__ import annotations

import logging
import platform
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.quiet import quiet
from boxwright.data.dataset import Dataset
from boxwright.evaluation.metrics.coco import CocoMetrics
from boxwright.exporters.graph import INPUT
from boxwright.exporters.pictures import Pictures, spread
from boxwright.runtime.optional import require_library
from boxwright.types import DetectFunction

# From a detect function to its average precision.
Accuracy = Callable[[DetectFunction], float]
ALLOWED_DROP = 0.01
AGREEMENT = "agreement with the detector"
_MOST_SAMPLES = 1000
AVERAGE_PRECISION = "DetectionBoxes_Precision/mAP"


def average_precision(dataset: Dataset) -> Accuracy:
    """Return a measure of a detect function's COCO average precision on up to 1000 evenly spread samples."""

    def measure(find: DetectFunction) -> float:
        metrics = CocoMetrics(dataset.categories)
        for number in spread(len(dataset), _MOST_SAMPLES):
            sample = dataset[number]
            (detections,) = find([sample.image])
            metrics.add(sample, detections)
        return metrics.compute().values[AVERAGE_PRECISION]

    return measure


def compared_accuracy(before: float, after: float, metric: str = AVERAGE_PRECISION) -> dict[str, Any]:
    """Return the accuracies of a detector and its export, the drop, and whether it passes.

    Args:
        before: The detector's average precision, or its agreement with itself.
        after: The export's.
        metric: What was measured.
    """
    drop = before - after
    # A detector that finds nothing loses nothing, which would prove nothing.
    passed = drop <= ALLOWED_DROP and before > 0
    name = "AP" if metric == AVERAGE_PRECISION else metric
    return {
        "metric": metric,
        "detector": before,
        "export": after,
        "drop": drop,
        "allowed": ALLOWED_DROP,
        "passed": passed,
        "problem": "" if passed else f"{name} fell from {before:.4f} to {after:.4f} (allowed: {ALLOWED_DROP:g})",
    }


CONVOLUTIONS = ("Conv", "ConvTranspose")
# What computes maps from maps. Everything else, such as the selection of regions between two stages, is no part of the
# way from one convolution to the next.
_OF_MAPS = {
    *("Add", "Sub", "Mul", "Div", "BatchNormalization", "Concat", "Split", "Slice", "Pad", "Resize"),
    *("Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Swish", "Tanh", "Softplus", "Gelu", "Erf"),
    *("MaxPool", "AveragePool", "GlobalAveragePool", "ReduceMean"),
}


class GraphLinks:
    """The makers and readers of a graph's values; nodes are known by their names."""

    def __init__(self, graph: Any) -> None:
        """Read an `onnx.GraphProto`, whose nodes have names."""
        self.nodes: dict[str, Any] = {node.name: node for node in graph.node}
        self.makers: dict[str, str] = {value: node.name for node in graph.node for value in node.output}
        self.readers: dict[str, list[str]] = {}
        for node in graph.node:
            for value in node.input:
                self.readers.setdefault(value, []).append(node.name)

    def below(self, names: Iterable[str]) -> set[str]:
        """Return the nodes that depend on some nodes, and these."""
        return _reached(names, self._list_readers)

    def made_by(self, name: str) -> list[str]:
        """Return the nodes whose values a node reads."""
        return [self.makers[value] for value in self.nodes[name].input if value in self.makers]

    def read_by(self, value: str) -> list[str]:
        """Return the nodes that read a value."""
        return self.readers.get(value, [])

    def between_convolutions(self) -> set[str]:
        """Return all convolutions, and the nodes on ways between two of them that compute maps from maps."""
        convolutions = {name for name, node in self.nodes.items() if node.op_type in CONVOLUTIONS}
        maps = convolutions | {name for name, node in self.nodes.items() if node.op_type in _OF_MAPS}
        below = _reached(convolutions, lambda name: maps.intersection(self._list_readers(name)))
        return below & _reached(convolutions, lambda name: maps.intersection(self.made_by(name)))

    def leaving(self, inside: Collection[str]) -> list[str]:
        """Return the values that nodes of a part make and others read, in the graph's order."""
        return [
            value
            for name, node in self.nodes.items()
            if name in inside
            for value in node.output
            if any(reader not in inside for reader in self.read_by(value))
        ]

    def _list_readers(self, name: str) -> list[str]:
        return [reader for value in self.nodes[name].output for reader in self.read_by(value)]


def _reached(start: Iterable[str], step: Callable[[str], Iterable[str]]) -> set[str]:
    """Return the names that steps from some names lead to, and these."""
    left = list(start)
    names = set(left)
    while left:
        for name in step(left.pop()):
            if name not in names:
                names.add(name)
                left.append(name)
    return names


class _Reader:
    """The quantizer's data reader: one picture per call, then None."""

    def __init__(self, images: Pictures) -> None:
        self._left: Iterator[NDArray[np.uint8]] = iter(images)

    def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
        image = next(self._left, None)
        return None if image is None else {INPUT: image[None]}


def _infinite_border_nodes(graph: Any, links: GraphLinks) -> set[str]:
    """Return the nodes that add a border of infinite values, and those that read it."""
    numpy_helper = require_library("onnx", "onnx").numpy_helper
    # Poolings share a scale with their inputs, so that with an infinite one all that they return becomes 0.
    constants = {initializer.name: initializer for initializer in graph.initializer}
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
        self.inside = links.between_convolutions() - _infinite_border_nodes(self.prepared.graph, links)
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


_FLAGS = "boxwright_rounded"
# ONNX Runtime's quantizer removes these where the range of 8 bits already cuts values off.
_REMOVED = ("Relu", "Clip")
# A network may round 600 tensors, and each takes a run of it for a picture; the quiet half never mattered.
_MOST = 64


@dataclass(frozen=True)
class RoundedTensor:
    """A tensor that the quantized network rounds.

    Attributes:
        name: In the float network.
        nodes: Those that make and read it; it is rounded unless all of them stay in float.
        scale: The names of its scale and zero point in the quantized network.
        error: The mean square of what rounding it alone changes in what leaves the quantized part, relative to the
            variance there, summed over these outputs.
    """

    name: str
    nodes: frozenset[str]
    scale: tuple[str, str]
    error: float = 0.0


def measure_errors(quantizer: Quantizer, whole: Any, images: Pictures) -> list[RoundedTensor]:
    """Return the tensors that a quantized model rounds, with their errors on some pictures, the largest first.

    The float network is run with one tensor rounded at a time, the 64 whose own rounding errors are largest relative to
    their variance. Outputs that depend on others by way of suppression
    count only for tensors that do not change these others: other regions are other crops, whatever their errors.

    Args:
        quantizer: Which made the model.
        whole: The quantized `onnx.ModelProto`.
        images: uint8 [H, W, 3].
    """
    links = GraphLinks(quantizer.prepared.graph)
    outputs = links.leaving(quantizer.inside)
    tensors = _noisiest(quantizer.prepared, whole, list(_rounded(quantizer, links, whole.graph)), images)
    session = _session(_switched(quantizer.prepared, whole, tensors, outputs))
    changed = [_first_changed(links, quantizer.inside, tensor, outputs) for tensor in tensors]
    errors = np.zeros(len(tensors))
    for image in images:
        expected = _run(session, image, np.zeros(len(tensors), np.bool_))
        variances = [max(float(np.var(value)), 1e-12) for value in expected]
        for number in range(len(tensors)):
            rounded = _run(session, image, np.arange(len(tensors)) == number)
            errors[number] += sum(
                float(np.mean(np.square(rounded[place] - expected[place]))) / variances[place]
                for place in changed[number]
                if rounded[place].size and rounded[place].shape == expected[place].shape
            )
    measured = [
        RoundedTensor(tensor.name, tensor.nodes, tensor.scale, float(error) / len(images))
        for tensor, error in zip(tensors, errors, strict=True)
    ]
    return sorted(measured, key=lambda tensor: -tensor.error)


def _noisiest(prepared: Any, whole: Any, tensors: Sequence[RoundedTensor], images: Pictures) -> list[RoundedTensor]:
    """Return the tensors with the largest rounding errors, relative to their variance."""
    onnx = require_library("onnx", "onnx")
    model = onnx.ModelProto()
    model.CopyFrom(prepared)
    del model.graph.output[:]
    for tensor in tensors:
        model.graph.output.append(onnx.helper.make_tensor_value_info(tensor.name, onnx.TensorProto.FLOAT, None))
    values = {initializer.name: onnx.numpy_helper.to_array(initializer) for initializer in whole.graph.initializer}
    session, noise = _session(model), np.zeros(len(tensors))
    for image in images:
        for number, (tensor, value) in enumerate(zip(tensors, session.run(None, {INPUT: image[None]}), strict=True)):
            step = float(values[tensor.scale[0]])
            noise[number] += step**2 / 12 / max(float(np.var(value)), 1e-12) if value.size else 0.0
    chosen = sorted(np.argsort(-noise, kind="stable")[:_MOST].tolist())
    return [tensors[number] for number in chosen]


def _rounded(quantizer: Quantizer, links: GraphLinks, quantized: Any) -> Iterator[RoundedTensor]:
    known = {value for node in quantized.node if node.op_type == "QuantizeLinear" for value in node.input[:1]}
    for node in quantized.node:
        if node.op_type != "QuantizeLinear" or node.input[0] not in {*links.makers, *links.readers}:
            continue
        name = node.input[0]
        readers = links.read_by(name)
        if len(readers) == 1 and links.nodes[readers[0]].op_type in _REMOVED:
            after = links.nodes[readers[0]].output[0]
            name = name if after in known else after
        makers = {links.makers[name]} if name in links.makers else set()
        # Such an activation and the convolution before it are one in 8 bits.
        makers |= {
            producer for maker in makers if links.nodes[maker].op_type in _REMOVED for producer in links.made_by(maker)
        }
        yield RoundedTensor(
            name, frozenset(quantizer.inside & {*makers, *links.read_by(name)}), (node.input[1], node.input[2])
        )


def _first_changed(links: GraphLinks, inside: set[str], tensor: RoundedTensor, outputs: Sequence[str]) -> list[int]:
    """Return the places of the outputs that a tensor changes, but those that depend on another one of them."""
    readers = links.read_by(tensor.name)
    below = links.below(readers)
    changed = [place for place, value in enumerate(outputs) if value == tensor.name or links.makers[value] in below]
    behind: set[str] = set()
    for place in changed:
        behind |= links.below(reader for reader in links.read_by(outputs[place]) if reader not in inside)
    return [place for place in changed if links.makers[outputs[place]] not in behind]


def _switched(prepared: Any, whole: Any, tensors: Sequence[RoundedTensor], outputs: Sequence[str]) -> Any:
    """Return the float model with a switch at each tensor, which rounds it, and with other outputs."""
    onnx = require_library("onnx", "onnx")
    helper = onnx.helper
    model = onnx.ModelProto()
    model.CopyFrom(prepared)
    graph = model.graph
    scales = {name for tensor in tensors for name in tensor.scale}
    graph.initializer.extend(initializer for initializer in whole.graph.initializer if initializer.name in scales)
    graph.input.append(helper.make_tensor_value_info(_FLAGS, onnx.TensorProto.BOOL, [len(tensors)]))
    numbers = {tensor.name: number for number, tensor in enumerate(tensors)}
    nodes = list(graph.node)
    del graph.node[:]
    for name in (value.name for value in prepared.graph.input if value.name in numbers):
        graph.node.extend(_switch(onnx, graph, name, tensors[numbers[name]].scale, numbers[name]))
    for node in nodes:
        for place, name in enumerate(node.input):
            if name in numbers:
                node.input[place] = _rounded_name(name)
        graph.node.append(node)
        for name in node.output:
            if name in numbers:
                graph.node.extend(_switch(onnx, graph, name, tensors[numbers[name]].scale, numbers[name]))
    del graph.output[:]
    for name in outputs:
        chosen = _rounded_name(name) if name in numbers else name
        graph.output.append(helper.make_tensor_value_info(chosen, onnx.TensorProto.FLOAT, None))
    return model


def _switch(onnx: Any, graph: Any, name: str, scale: tuple[str, str], number: int) -> Iterator[Any]:
    """Yield nodes that round a tensor where its flag is set."""
    node, place = onnx.helper.make_node, f"{name}/number"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(number, np.int64), place))
    yield node("QuantizeLinear", [name, *scale], [f"{name}/quantized"])
    yield node("DequantizeLinear", [f"{name}/quantized", *scale], [f"{name}/dequantized"])
    yield node("Gather", [_FLAGS, place], [f"{name}/flag"])
    yield node("Where", [f"{name}/flag", f"{name}/dequantized", name], [_rounded_name(name)])


def _rounded_name(name: str) -> str:
    return f"{name}/switched"


def _session(model: Any) -> Any:
    runtime = require_library("onnxruntime", "onnx")
    return runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def _run(session: Any, image: NDArray[np.uint8], flags: NDArray[np.bool_]) -> list[NDArray[np.float32]]:
    outputs: list[NDArray[np.float32]] = session.run(None, {INPUT: image[None], _FLAGS: flags})
    return outputs


_LOG = logging.getLogger("boxwright")
# Errors hardly depend on the pictures, and each costs a run of the network for every tensor.
_PICTURES = 4


@dataclass(frozen=True)
class MixedPrecisionModel:
    """A quantized model of which some layers are in float.

    Attributes:
        model: An `onnx.ModelProto`.
        layers: The names of the layers in float.
        accuracy: As `compared_accuracy` returns it.
    """

    model: Any
    layers: tuple[str, ...]
    accuracy: dict[str, Any]


def precise_enough(
    quantizer: Quantizer, whole: Any, before: float, measure: Callable[[Any], float]
) -> MixedPrecisionModel | None:
    """Return a quantized model that keeps the average precision; None if with half of the network in float it does not.

    Tensors are ranked by what rounding each alone does to the outputs. The nodes around the worst 1, 2, 4 … stay in
    float until the precision is kept; then fewer are tried, by halves.

    Args:
        quantizer: Which made the model.
        whole: The model that is quantized whole, an `onnx.ModelProto`.
        before: The detector's average precision.
        measure: Returns a model's.
    """
    images = quantizer.images
    _LOG.info("measuring what each layer costs in 8 bits")
    tensors = measure_errors(quantizer, whole, [images[number] for number in spread(len(images), _PICTURES)])
    # Each has fewer layers in float than the one before.
    passed: list[MixedPrecisionModel] = []

    def good(count: int) -> bool:
        kept = frozenset().union(*(tensor.nodes for tensor in tensors[:count]))
        model = quantizer.quantized(kept)
        # Convolutions, by the names of their weights.
        layers = tuple(
            node.input[1].removeprefix("whole.").removesuffix(".weight")
            for node in quantizer.prepared.graph.node
            if node.name in kept and node.op_type in CONVOLUTIONS
        )
        candidate = MixedPrecisionModel(model, layers, compared_accuracy(before, measure(model)))
        average = candidate.accuracy["export"]
        _LOG.info("AP %.4f with %d layers in float32 (detector: %.4f)", average, len(layers), before)
        if candidate.accuracy["passed"]:
            passed.append(candidate)
        return bool(candidate.accuracy["passed"])

    smallest(good, len(tensors) // 2)
    return passed[-1] if passed else None


def smallest(good: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest count from 1 to `most` that is good, if larger ones are too; None if none tried is."""
    low, high = 0, 1
    while not good(min(high, most)):
        if high >= most:
            return None
        low, high = high, 2 * high
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high
