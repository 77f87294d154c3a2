"""Graphs that lay an SSD's anchors as TensorFlow's do: the operations and constants of a TF1 inference graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from boxwright.weights.tensorflow.object_graph import GraphDef

Levels = Sequence[Sequence[tuple[float, float]]]
SCOPE = "MultipleGridAnchorGenerator"


def constant(graph: Any, name: str, values: Sequence[float]) -> str:
    """Add a vector, and return its name."""
    tensor = graph.node.add(name=name, op="Const").attr.add(key="value").value.tensor
    tensor.dtype = 1
    tensor.shape.dim.add(size=len(values))
    tensor.content = np.asarray(values, np.float32).tobytes()
    return name


def add_anchors(graph: Any, levels: Levels, *, scope: str = SCOPE, division: str = "RealDiv") -> Any:
    """Add what divides the scales of each map by the roots of its ratios, among divisions of other things."""
    other = constant(graph, f"{scope}/truediv_100/x", [1.0])
    graph.node.add(name=f"{scope}/truediv_100", op=division, input=[other, "Cast"])
    for number, level in enumerate(levels):
        scales, ratios = zip(*level, strict=True)
        root = f"{scope}/Sqrt_{number}"
        graph.node.add(name=root, op="Sqrt", input=[constant(graph, f"{root}/x", ratios)])
        name = f"{scope}/truediv_{number}"
        graph.node.add(name=name, op=division, input=[constant(graph, f"{name}/x", scales), root])
    return graph


def graph_of(levels: Levels, **more: Any) -> Any:
    """Return a graph of nothing but anchors."""
    return add_anchors(GraphDef(), levels, **more)
