"""What rounding one tensor of a network to 8 bits does to the network's outputs, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.exporters.graph import INPUT
from boxwright.exporters.int8 import Quantizer
from boxwright.exporters.onnx_links import GraphLinks
from boxwright.exporters.pictures import Pictures
from boxwright.runtime.optional import require_library

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
    changed = [_first_changed(links, quantizer.inside, one, outputs) for one in tensors]
    errors = np.zeros(len(tensors))
    for image in images:
        expected = _run(session, image, np.zeros(len(tensors), np.bool_))
        variances = [max(float(np.var(value)), 1e-12) for value in expected]
        for number in range(len(tensors)):
            found = _run(session, image, np.arange(len(tensors)) == number)
            errors[number] += sum(
                float(np.mean(np.square(found[place] - expected[place]))) / variances[place]
                for place in changed[number]
                if found[place].size and found[place].shape == expected[place].shape
            )
    measured = [
        RoundedTensor(one.name, one.nodes, one.scale, float(error) / len(images))
        for one, error in zip(tensors, errors, strict=True)
    ]
    return sorted(measured, key=lambda one: -one.error)


def _noisiest(prepared: Any, whole: Any, tensors: Sequence[RoundedTensor], images: Pictures) -> list[RoundedTensor]:
    """Return the tensors with the largest rounding errors, relative to their variance."""
    onnx = require_library("onnx", "onnx")
    model = onnx.ModelProto()
    model.CopyFrom(prepared)
    del model.graph.output[:]
    for one in tensors:
        model.graph.output.append(onnx.helper.make_tensor_value_info(one.name, onnx.TensorProto.FLOAT, None))
    values = {one.name: onnx.numpy_helper.to_array(one) for one in whole.graph.initializer}
    session, noise = _session(model), np.zeros(len(tensors))
    for image in images:
        for number, (one, value) in enumerate(zip(tensors, session.run(None, {INPUT: image[None]}), strict=True)):
            step = float(values[one.scale[0]])
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
        makers |= {one for maker in makers if links.nodes[maker].op_type in _REMOVED for one in links.made_by(maker)}
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
    scales = {name for one in tensors for name in one.scale}
    graph.initializer.extend(one for one in whole.graph.initializer if one.name in scales)
    graph.input.append(helper.make_tensor_value_info(_FLAGS, onnx.TensorProto.BOOL, [len(tensors)]))
    numbers = {one.name: number for number, one in enumerate(tensors)}
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
    found: list[NDArray[np.float32]] = session.run(None, {INPUT: image[None], _FLAGS: flags})
    return found
