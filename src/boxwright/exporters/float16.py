"""An ONNX graph in mixed precision, and how much its detections agree with the detector's.

Convolutions and layers of vectors compute in float16, with weights of half the size, and so do the activations and
choices between two of them. Preprocessing, normalization, softmax, means, decoding of boxes and suppression stay in
float32: coordinates need more than float16's 11 bits, and sums more than its range. So do the layers that read pixels,
which look for small differences between large, nearly equal values.

Dimensions: D detections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ExportError
from boxwright.evaluation.metrics.matching import overlaps
from boxwright.exporters.graph import PREPROCESSED
from boxwright.exporters.pictures import Pictures
from boxwright.runtime.optional import require_library
from boxwright.types import Array, DetectFunction, Detections

_SUFFIX = ".float16"
_LARGEST = float(np.finfo(np.float16).max)
# A product with one column is a mean weighted by constants, such as a box's side from a distribution over distances.
_FEWEST_COLUMNS = 2
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# What may lie between two layers, with the positions of the inputs that are values; the others are sizes or places.
_BETWEEN: dict[str, Sequence[int]] = {
    **dict.fromkeys(("Relu", "LeakyRelu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Gelu", "MaxPool"), (0,)),
    **dict.fromkeys(("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split"), (0,)),
    **dict.fromkeys(("Add", "Sub", "Mul"), (0, 1)),
    "Concat": range(2**16),
    "Resize": (0,),
    "Clip": (0, 1, 2),
    "Pad": (0, 2),
}
# Those whose values but the first are constants: limits, or what a border is filled with.
_WITH_CONSTANTS = ("Clip", "Pad")


class _Values:
    """The makers, readers and constants of a graph's values; nodes are known by their positions."""

    def __init__(self, graph: Any) -> None:
        """Read an `onnx.GraphProto`, whose nodes are sorted so that each follows what it reads."""
        numpy_helper = require_library("onnx", "onnx").numpy_helper
        self.nodes = list(graph.node)
        self.makers = {value: place for place, node in enumerate(self.nodes) for value in node.output}
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        for node in self.nodes:
            if (made := self._constant(node, numpy_helper)) is not None:
                self.constants[node.output[0]] = made
        self.readers: dict[str, list[int]] = {}
        for place, node in enumerate(self.nodes):
            for value in (*node.input, *_read_inside(node)):
                self.readers.setdefault(value, []).append(place)

    def _constant(self, node: Any, numpy_helper: Any) -> NDArray[Any] | None:
        """Return the value of a constant, or of one that is transposed, as weights of layers are."""
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            return np.asarray(numpy_helper.to_array(node.attribute[0].t))
        if node.op_type == "Transpose" and node.input[0] in self.constants and node.attribute:
            return np.transpose(self.constants[node.input[0]], node.attribute[0].ints)
        return None

    def above(self, value: str) -> set[int]:
        """Return the nodes that a value depends on."""
        left, places = [value], set[int]()
        while left:
            place = self.makers.get(left.pop())
            if place is not None and place not in places:
                places.add(place)
                left += [*self.nodes[place].input, *_read_inside(self.nodes[place])]
        return places


def _read_inside(node: Any) -> list[str]:
    """Return the values that a node's own graphs, those of a loop or a branch, read."""
    return [
        value
        for attribute in node.attribute
        for graph in (attribute.g, *attribute.graphs)
        for inner in graph.node
        for value in (*inner.input, *_read_inside(inner))
    ]


def _is_layer(node: Any, values: _Values) -> bool:
    """Return whether a node is a layer, all of whose weights are constants that float16 can hold."""
    if node.op_type not in _LAYERS:
        return False
    names = [name for name in node.input[1:] if name]
    weights = [values.constants[name] for name in names if name in values.constants]
    if len(weights) < len(names) or not all(_fits(weight) for weight in weights):
        return False
    return node.op_type.startswith("Conv") or bool(min(weights[0].shape[:2]) >= _FEWEST_COLUMNS)


def _fits(weight: NDArray[Any]) -> bool:
    return bool(weight.dtype == np.float32 and weight.size and np.abs(weight).max() <= _LARGEST)


def _value_inputs(node: Any) -> list[int]:
    """Return the positions of the inputs whose type changes with that of a layer, or of a node between layers."""
    places = range(len(node.input)) if node.op_type in _LAYERS else _BETWEEN[node.op_type]
    return [place for place in places if place < len(node.input) and node.input[place]]


def _find_float16_nodes(values: _Values) -> set[int]:
    """Return the positions of all layers but the first, and of the nodes that compute what they read from them."""
    preprocessing = values.above(PREPROCESSED)
    found = {place for place, node in enumerate(values.nodes) if place not in preprocessing and _is_layer(node, values)}
    # The nodes are sorted, so that those that a node reads are known when it is reached.
    after_layer = set[int]()
    for place, node in enumerate(values.nodes):
        read = {values.makers.get(value, -1) for value in (*node.input, *_read_inside(node))}
        if read & found or read & after_layer:
            after_layer.add(place)
    layers = found & after_layer
    fed = set(layers)
    for place, node in enumerate(values.nodes):
        if place not in preprocessing and _can_follow(node, values, fed):
            fed.add(place)
    leading: set[int] = set()
    for place in sorted(fed, reverse=True):
        read_by = {reader for value in values.nodes[place].output for reader in values.readers.get(value, ())}
        if place in layers or read_by & leading:
            leading.add(place)
    return leading


def _can_follow(node: Any, values: _Values, fed: set[int]) -> bool:
    """Return whether a node can compute in float16 with what the nodes of `fed` make."""
    if node.op_type not in _BETWEEN:
        return False
    if node.op_type == "Resize" and not any(attribute.s == b"nearest" for attribute in node.attribute):
        return False
    if node.op_type == "MaxPool" and len(node.output) > 1:  # the second output has places
        return False
    first, *others = (node.input[place] for place in _value_inputs(node))
    # What is added or multiplied by a constant elsewhere may be a coordinate.
    others_fit = (
        all(name in values.constants for name in others)
        if node.op_type in _WITH_CONSTANTS
        else all(values.makers.get(name, -1) in fed for name in others)
    )
    return values.makers.get(first, -1) in fed and others_fit


def to_float16(model: Any) -> Any:
    """Return an `onnx.ModelProto` whose layers compute in float16; inputs and outputs have the types of the given one.

    Args:
        model: In float32, with the network's input under the name `PREPROCESSED`.

    Raises:
        ExportError: If it has no layer with constant weights.
    """
    onnx = require_library("onnx", "onnx")
    values = _Values(model.graph)
    places = _find_float16_nodes(values)
    if not places:
        raise ExportError("--precision float16: the network has no layer that could compute in float16")
    converted = onnx.ModelProto()
    converted.CopyFrom(model)
    del converted.graph.node[:]
    writer = _Writer(converted.graph, values, places, {output.name for output in model.graph.output})
    for place in range(len(values.nodes)):
        writer.add(place)
    writer.drop_unread_weights()
    onnx.checker.check_model(converted)
    return converted


class _Writer:
    """Writes a graph's nodes again, some of them in float16, with casts where the type changes."""

    def __init__(self, graph: Any, values: _Values, places: set[int], outputs: set[str]) -> None:
        """Take the graph to write to, without nodes, and the positions of those in float16."""
        self._helper = require_library("onnx", "onnx").helper
        self._types = require_library("onnx", "onnx").TensorProto
        self._graph, self._values, self._places, self._outputs = graph, values, places, outputs
        self._made: set[str] = set()

    def add(self, place: int) -> None:
        """Write a node, and the casts that it needs."""
        node = self._values.nodes[place]
        if place not in self._places:
            self._graph.node.append(node)
            return
        inputs = {position: self._half(node.input[position]) for position in _value_inputs(node)}
        written = self._graph.node.add()
        written.CopyFrom(node)
        for position, name in inputs.items():
            written.input[position] = name
        for number, name in enumerate(node.output):
            written.output[number] = f"{name}{_SUFFIX}"
        for name in node.output:
            self._made.add(f"{name}{_SUFFIX}")
            if name in self._outputs or not set(self._values.readers.get(name, ())) <= self._places:
                self._cast(f"{name}{_SUFFIX}", name, self._types.FLOAT)

    def _half(self, name: str) -> str:
        """Return the name of a value in float16, made if it is not there yet."""
        half = f"{name}{_SUFFIX}"
        if half not in self._made:
            self._made.add(half)
            if name in self._values.constants:
                numpy_helper = require_library("onnx", "onnx").numpy_helper
                with np.errstate(over="ignore"):  # a limit that is none, such as the largest float32, becomes infinite
                    constant = np.ascontiguousarray(self._values.constants[name].astype(np.float16))
                self._graph.initializer.append(numpy_helper.from_array(constant, half))
            else:
                self._cast(name, half, self._types.FLOAT16)
        return half

    def _cast(self, source: str, target: str, kind: int) -> None:
        self._graph.node.append(self._helper.make_node("Cast", [source], [target], name=f"cast {target}", to=kind))

    def drop_unread_weights(self) -> None:
        """Remove the weights and constants that only layers read, which have their own in float16."""
        while True:
            read = {name for node in self._graph.node for name in (*node.input, *_read_inside(node))} | self._outputs
            nodes = [node for node in self._graph.node if read.intersection(node.output)]
            if len(nodes) == len(self._graph.node):
                break
            kept = [node.SerializeToString() for node in nodes]
            del self._graph.node[:]
            for data in kept:
                self._graph.node.add().ParseFromString(data)
        for number in reversed(range(len(self._graph.initializer))):
            if self._graph.initializer[number].name not in read:
                del self._graph.initializer[number]


_LEAST_SCORE, _SCORE_CHANGE, _SAME_BOX = 0.1, 0.05, 0.9


def measure_agreement(detector: DetectFunction, images: Pictures) -> Callable[[DetectFunction], float]:
    """Return a measure of how much a detect function agrees with a detector on some pictures, from 0 to 1.

    It is the share of both's detections that the other has, too: of the same class, an IoU of at least 0.9, and a score
    that differs by at most 0.05. Detections that score below 0.1 are not counted. Where the detector has none, it is 0,
    as nothing was compared.
    """
    expected = detector(images)

    def measure(detect: DetectFunction) -> float:
        pairs = list(zip(expected, detect(images), strict=True))
        agreeing = [_count_agreeing(first, other) + _count_agreeing(other, first) for first, other in pairs]
        total = sum(len(detections.above(_LEAST_SCORE)) for pair in pairs for detections in pair)
        is_empty = not any(len(detections.above(_LEAST_SCORE)) for detections in expected)
        return 0.0 if is_empty else sum(agreeing) / total

    return measure


def _count_agreeing(detections: Detections[Array], others: Detections[Array]) -> int:
    """Return how many of the detections that score enough the others have, too."""
    counted = detections.above(_LEAST_SCORE)
    same = (
        (overlaps(_as_float64(counted.boxes), _as_float64(others.boxes)) >= _SAME_BOX)
        & (counted.labels[:, None] == others.labels)
        & (np.abs(counted.scores[:, None] - others.scores) <= _SCORE_CHANGE)
    )
    return int(same.any(1).sum())


def _as_float64(boxes: Array) -> NDArray[np.float64]:
    return boxes.astype(np.float64)
