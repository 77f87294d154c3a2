"""TF2's object graph: the variable at each path of attributes in a checkpoint.

A variable with several paths (EfficientDet's backbone is an attribute twice) is stored once, so a path is looked up by
walking the graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from boxwright.nn.tensorflow_names.named_layers import ATTRIBUTE, escaped
from boxwright.weights.tensorflow.protos import ObjectGraphProto

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


def _unescaped(name: str) -> str:
    return re.sub(r"\.([.S])", lambda found: "." if found[1] == "." else "/", name)


class ObjectGraph:
    """A parsed graph."""

    def __init__(self, proto: Any) -> None:
        """Index the children of every node of an `ObjectGraphProto`."""
        self._children = [{escaped(child.local_name): child.node_id for child in node.children} for node in proto.nodes]
        self._keys = [
            next((a.checkpoint_key for a in node.attributes if a.name == "VARIABLE_VALUE"), None)
            for node in proto.nodes
        ]
        self._slots = {
            (slot.original_variable_node_id, slot.slot_name): slot.slot_variable_node_id
            for node in proto.nodes
            for slot in node.slot_variables
        }

    def resolve(self, path: str, slot: str = "") -> str | None:
        """Return the checkpoint's key of a variable; None if there is none.

        Args:
            path: Attribute names from the root, separated by slashes.
            slot: The name of an optimizer's slot of that variable, such as "average"; empty for the variable itself.
        """
        if not self._children:
            return None
        node = 0
        for name in path.split("/"):
            found = self._children[node].get(name)
            if found is None or not 0 <= found < len(self._children):
                return None
            node = found
        if slot:
            found = self._slots.get((node, slot))
            if found is None or not 0 <= found < len(self._keys):
                return None
            node = found
        return self._keys[node]


def build_graph(keys: Iterable[str], aliases: Mapping[str, str]) -> Any:
    """Return the `ObjectGraphProto` of a checkpoint: a tree of its keys' paths, with aliases of some nodes.

    Args:
        keys: Keys of variables, each ending in `ATTRIBUTE`.
        aliases: Additional paths of nodes to their primary paths.
    """
    graph = ObjectGraphProto()
    graph.nodes.add()
    numbers: dict[str, int] = {"": 0}

    def node(path: str) -> int:
        if path not in numbers:
            parent, _, name = path.rpartition("/")
            above = node(parent)
            numbers[path] = len(graph.nodes)
            graph.nodes.add()
            graph.nodes[above].children.add(node_id=numbers[path], local_name=_unescaped(name))
        return numbers[path]

    for key in keys:
        path = key.removesuffix(ATTRIBUTE)
        graph.nodes[node(path)].attributes.add(
            name="VARIABLE_VALUE", full_name=path.rpartition("/")[2], checkpoint_key=key
        )
    for alias, path in aliases.items():
        parent, _, name = alias.rpartition("/")
        if path in numbers and alias not in numbers:
            graph.nodes[node(parent)].children.add(node_id=numbers[path], local_name=name)
    return graph
