"""Anchors in graphs of TensorFlow's."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxwright.weights.stored_anchors import anchors_beside, anchors_in, are_same
from boxwright.weights.tensorflow.object_graph import GraphDef, MetaGraphDef
from tests.weights.tensorflow.graphs import SCOPE, constant, graph_of

LEVELS = (((0.1, 1.0), (0.2, 2.0), (0.2, 0.5)), ((0.35, 1.0), (0.418, 1.0), (0.35, 2.0)))


@pytest.mark.parametrize("scope", [SCOPE, f"clone_0/{SCOPE}"])
@pytest.mark.parametrize("division", ["RealDiv", "Div"])
def test_each_maps_scales_and_ratios_in_order(scope: str, division: str) -> None:
    assert are_same(anchors_in(graph_of(LEVELS, scope=scope, division=division)), LEVELS)


def test_the_order_at_a_location_counts() -> None:
    second = (LEVELS[0], (LEVELS[1][0], LEVELS[1][2], LEVELS[1][1]))
    assert not are_same(LEVELS, second)
    assert not are_same(LEVELS, LEVELS[:1])


def test_other_graphs_have_none() -> None:
    assert anchors_in(GraphDef()) == ()
    assert anchors_in(graph_of(LEVELS, scope="GridAnchorGenerator")) == ()
    broken = graph_of(LEVELS)
    broken.node[2].attr[0].value.tensor.content = b"odd"
    assert anchors_in(broken) == ()
    longer = graph_of(LEVELS)
    constant(longer, f"{SCOPE}/a", [1.0] * 100)
    longer.node.add(name=f"{SCOPE}/r", op="Sqrt", input=[f"{SCOPE}/a"])
    longer.node.add(name=f"{SCOPE}/d", op="RealDiv", input=[f"{SCOPE}/a", f"{SCOPE}/r"])
    assert anchors_in(longer) == ()


def test_where_a_checkpoints_graph_is(tmp_path: Path) -> None:
    prefix, frozen = tmp_path / "model.ckpt", tmp_path / "frozen_inference_graph.pb"
    assert anchors_beside(prefix) == ()
    frozen.write_bytes(graph_of(LEVELS).SerializeToString())
    assert are_same(anchors_beside(prefix), LEVELS)
    assert are_same(anchors_beside(frozen), LEVELS)
    meta = MetaGraphDef()
    meta.graph.CopyFrom(graph_of(LEVELS[:1]))
    (tmp_path / "model.ckpt.meta").write_bytes(meta.SerializeToString())
    assert are_same(anchors_beside(prefix), LEVELS[:1])
    (tmp_path / "model.ckpt.meta").write_bytes(b"\xff damaged")
    assert are_same(anchors_beside(prefix), LEVELS)
