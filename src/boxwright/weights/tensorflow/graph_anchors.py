"""The anchors that a TensorFlow graph lays: their scales and aspect ratios, as constants of its anchor generator.

A graph of TF1 computes an SSD's anchors at each run. For each map it holds the scales s and the aspect ratios r
of the anchors at one location as vectors, in the order of the predictor's rows, and divides: s / sqrt(r).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from boxwright.base.errors import CheckpointError
from boxwright.base.files import is_file, read_file, size_of
from boxwright.base.limits import CHECKPOINT_BYTES
from boxwright.weights.tensorflow.object_graph import GraphDef, MetaGraphDef, array_of

# For each map, the (scale, aspect ratio) of each anchor at a location.
Levels = tuple[tuple[tuple[float, float], ...], ...]
_SCOPE = "MultipleGridAnchorGenerator"
_DIVISIONS = ("RealDiv", "Div")  # "Div" in graphs of the first versions
_MOST = 64  # anchors at one location
_GRAPH = "frozen_inference_graph.pb"


def anchors_in(graph: Any) -> Levels:
    """Return the anchors of an SSD's graph, finest map first; empty if it stores none in a known way."""
    nodes = {node.name: node for node in graph.node if _SCOPE in node.name.split("/")}
    # A graph of several clones lays the same anchors in each: the first one's are read.
    first = next((name.split(_SCOPE)[0] for name in nodes), "")
    nodes = {name: node for name, node in nodes.items() if name.split(_SCOPE)[0] == first}
    levels = []
    for node in nodes.values():
        if node.op not in _DIVISIONS or len(node.input) != 2:
            continue
        scales, roots = (_node(nodes, name) for name in node.input)
        ratios = _node(nodes, roots.input[0]) if roots is not None and roots.op == "Sqrt" and roots.input else None
        if scales is None or ratios is None:
            continue
        pair = [_vector(values) for values in (scales, ratios)]
        if not pair[0] or len(pair[0]) != len(pair[1]):
            return ()
        levels.append(tuple(zip(*pair, strict=True)))
    return tuple(levels)


def _node(nodes: Mapping[str, Any], name: str) -> Any:
    return nodes.get(name.split(":")[0])


def _vector(node: Any) -> list[float]:
    """Return the numbers of a constant vector; empty if it is none."""
    tensor = next((attr.value.tensor for attr in node.attr if attr.key == "value"), None)
    if node.op != "Const" or tensor is None:
        return []
    shape = tuple(dim.size for dim in tensor.shape.dim)
    if len(shape) != 1 or not 0 < shape[0] <= _MOST:
        return []
    try:
        return [float(number) for number in array_of(tensor, tensor.dtype, shape)]
    except ValueError:
        return []


def anchors_beside(checkpoint: Path) -> Levels:
    """Return the anchors of the graph that belongs to a checkpoint; empty if there is none, or it cannot be read.

    Args:
        checkpoint: A frozen graph, or a checkpoint's prefix: TF1 writes its graph beside it (`.meta`), and the model
            zoo has a frozen one in the same folder.
    """
    if checkpoint.suffix == ".pb":
        return _read(checkpoint, GraphDef)
    return _read(Path(f"{checkpoint}.meta"), MetaGraphDef) or _read(checkpoint.parent / _GRAPH, GraphDef)


def _read(path: Path, kind: Any) -> Levels:
    if not is_file(path) or CHECKPOINT_BYTES.exceeded(size_of(path)):
        return ()
    try:
        message = kind.FromString(read_file(path, CheckpointError))
    except DecodeError:  # of a frozen graph, reading its weights says so
        return ()
    return anchors_in(message if kind is GraphDef else message.graph)


def are_same(first: Sequence[Sequence[tuple[float, float]]], second: Sequence[Sequence[tuple[float, float]]]) -> bool:
    """Return whether two layouts of anchors are equal to float32 precision, and in the same order at each location."""
    if [len(level) for level in first] != [len(level) for level in second]:
        return False
    return all(np.allclose(pair, other_pair, rtol=1e-3, atol=0) for pair, other_pair in zip(first, second, strict=True))
