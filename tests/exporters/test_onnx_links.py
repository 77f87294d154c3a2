from __future__ import annotations

from typing import Any

from onnx import helper

from boxwright.exporters.int8 import GraphLinks


def graph(*nodes: tuple[str, str, str, str]) -> Any:
    """Return an `onnx.GraphProto` of nodes: operator, name, inputs, outputs."""
    made = [helper.make_node(kind, ins.split(), outs.split(), name=name) for kind, name, ins, outs in nodes]
    return helper.make_graph(made, "g", [], [])


TWO_STAGES = graph(
    ("Cast", "cast", "image", "pixels"),
    ("Conv", "first", "pixels w1", "a"),
    ("Relu", "relu", "a", "b"),
    ("Conv", "second", "b w2", "c"),
    ("Add", "skip", "c b", "d"),
    ("Conv", "objectness", "d w3", "e"),
    ("Reshape", "rows", "e shape", "f"),
    ("Mul", "decode", "f scales", "g"),
    ("NonMaxSuppression", "select", "g f", "h"),
    ("Gather", "crop", "d h", "i"),
    ("Conv", "mask", "i w4", "j"),
    ("Sigmoid", "probability", "j", "k"),
)


def test_what_lies_between_convolutions() -> None:
    """Decoding and selecting regions lie between two convolutions, too, but compute no maps."""
    found = GraphLinks(TWO_STAGES).between_convolutions()
    assert found == {"first", "relu", "second", "skip", "objectness", "mask"}


def test_what_depends_on_nodes() -> None:
    links = GraphLinks(TWO_STAGES)
    assert links.below(["crop"]) == {"crop", "mask", "probability"}
    assert links.below(["decode", "select"]) == {"decode", "select", "crop", "mask", "probability"}
    assert links.read_by("b") == ["second", "skip"]
    assert links.read_by("k") == []


def test_what_leaves_a_part() -> None:
    links = GraphLinks(TWO_STAGES)
    assert links.leaving(links.between_convolutions()) == ["d", "e", "j"]
