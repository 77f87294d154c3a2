"""Which nodes of an ONNX graph make and read its values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

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
        return _reached(names, self._readers_of)

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
        below = _reached(convolutions, lambda name: maps.intersection(self._readers_of(name)))
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

    def _readers_of(self, name: str) -> list[str]:
        return [one for value in self.nodes[name].output for one in self.read_by(value)]


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
