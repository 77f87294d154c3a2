"""The object graph: names that hold what separates names."""

from __future__ import annotations

from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.weights.tensorflow.object_graph import ObjectGraph, build_graph


def test_a_name_with_slashes_and_dots() -> None:
    """A key escapes them; the graph's own names, which TF compares, have them as they are."""
    keys = {f"model/heads/{name}/kernel{ATTRIBUTE}": name for name in ("box.Sscale", "a..b", "a...Sb")}
    graph = build_graph(keys, {})
    names = {child.local_name for node in graph.nodes for child in node.children}
    assert names == {"model", "heads", "kernel", "box/scale", "a.b", "a./b"}
    read = ObjectGraph(graph)
    for key in keys:
        assert read.resolve(key.removesuffix(ATTRIBUTE)) == key
