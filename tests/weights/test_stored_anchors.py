"""Detectors of the API's first release, whose interpolated anchor came second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.base.errors import CheckpointError, ConfigError
from boxwright.config.load import parse_message
from boxwright.nn.anchor_grids import SsdAnchorGenerator
from boxwright.nn.detector import Detector
from boxwright.nn.ssd import SSD
from boxwright.weights.stored_anchors import Levels, anchors_beside, anchors_in, are_same
from boxwright.weights.tensorflow.object_graph import GraphDef, MetaGraphDef
from tests.weights.tensorflow.graphs import SCOPE, add_anchors, constant, graph_of
from tests.weights.tensorflow.test_first_formats import CONFIG, WEIGHTS, archive, frozen_graph, write

FIRST = CONFIG.replace("ssd_anchor_generator {", "ssd_anchor_generator { first_release: true")
LAST = CONFIG.replace("ssd_anchor_generator {", "ssd_anchor_generator { first_release: false")
SCALES, RATIOS = (0.2, 0.3875, 0.575, 0.7625, 0.95), (1.0, 2.0, 0.5, 3.0, 0.3333)


def layout(*, first: bool, scales: tuple[float, ...] = SCALES) -> Levels:
    return SsdAnchorGenerator.from_scales(scales, RATIOS, first_release=first).boxes


def graph(levels: Levels) -> bytes:
    return bytes(add_anchors(GraphDef.FromString(frozen_graph(WEIGHTS)), levels).SerializeToString())


def boxes(detector: Detector) -> Levels:
    assert isinstance(detector.network, SSD)
    assert isinstance(detector.network.anchors.generator, SsdAnchorGenerator)
    return detector.network.anchors.generator.boxes


def folder(path: Path, levels: Levels | None, *, config: str = CONFIG, kind: str = "graph") -> Path:
    """Write a folder as the zoo's of TF1: a frozen graph, or a checkpoint with its `.meta`."""
    write(WEIGHTS, kind, path)
    if levels is not None and kind == "graph":
        (path / "frozen_inference_graph.pb").write_bytes(graph(levels))
    elif levels is not None:
        meta = MetaGraphDef()
        meta.graph.CopyFrom(graph_of(levels))
        (path / "model.ckpt-200.meta").write_bytes(meta.SerializeToString())
    (path / "pipeline.config").write_text(config)
    return path


def test_the_orders() -> None:
    first, last = layout(first=True), layout(first=False)
    assert first[0] == last[0] == ((0.1, 1.0), (0.2, 2.0), (0.2, 0.5))
    assert [ratio for _, ratio in first[1]] == [1.0, 1.0, 2.0, 0.5, 3.0, 0.3333]
    assert [ratio for _, ratio in last[1]] == [1.0, 2.0, 0.5, 3.0, 0.3333, 1.0]
    assert first[1][1] == last[1][5] == (pytest.approx((0.3875 * 0.575) ** 0.5), 1.0)
    # Of ratios without a square there was none between.
    assert SsdAnchorGenerator.from_scales((0.2, 0.9), (2.0,), first_release=True).boxes[1] == ((0.9, 2.0),)


def test_sizes_were_shares_of_the_inputs_own_sides() -> None:
    generator = SsdAnchorGenerator.from_scales((0.5,), (1.0,), reduce_boxes_in_lowest_layer=False, first_release=True)
    np.testing.assert_allclose(generator([(1, 1)], (100, 200))[0][0], [50, 25, 150, 75])


@pytest.mark.parametrize("kind", ["graph", "bundle"])
def test_a_graph_of_the_first_release_is_recognized(kind: str, tmp_path: Path) -> None:
    for first in (True, False):
        detector, config, _ = bw.restore_detector(folder(tmp_path / str(first), layout(first=first), kind=kind))
        assert boxes(detector) == layout(first=first)
        assert config.model.ssd.anchor_generator.ssd_anchor_generator.first_release is first  # type: ignore[union-attr]


def test_boxes_are_those_of_the_switch(tmp_path: Path) -> None:
    """Anchors of the other order are elsewhere by up to a third of the picture, before any box is decoded from them."""
    recognized, _, _ = bw.restore_detector(folder(tmp_path / "a", layout(first=True)))
    asked, _, _ = bw.restore_detector(folder(tmp_path / "b", None, config=FIRST))
    wrong, _, _ = bw.restore_detector(folder(tmp_path / "c", None))
    found = [one.network.anchors.anchors for one in (recognized, asked, wrong)]
    assert torch.equal(found[0], found[1])
    assert float((found[0] - found[2]).abs().max()) > 80


def test_an_archive_and_its_name(tmp_path: Path) -> None:
    inside = folder(tmp_path / "ssd_zoo", layout(first=True), kind="bundle")
    path = tmp_path / "ssd_zoo.tar.gz"
    path.write_bytes(archive({f"ssd_zoo/{file.name}": file.read_bytes() for file in inside.iterdir()}))
    assert boxes(bw.restore_detector(path)[0]) == layout(first=True)
    # The zoo's archives of the first release have no configuration: a given one says nothing of the order.
    named = folder(tmp_path / "ssd_mobilenet_v1_coco_11_06_2017", None, kind="bundle")
    assert boxes(bw.restore_detector(named)[0]) == layout(first=True)
    (named / "pipeline.config").write_text(LAST)
    assert boxes(bw.restore_detector(named)[0]) == layout(first=False)


def test_what_contradicts_the_graph_is_refused(tmp_path: Path) -> None:
    contradicted = folder(tmp_path / "a", layout(first=True), config=LAST)
    with pytest.raises(CheckpointError, match=r"on map 2, .* 0.3875:1 0.472:1 0.3875:2 .*first_release=true"):
        bw.restore_detector(contradicted)
    other = folder(tmp_path / "b", layout(first=False, scales=(0.3, 0.3875, 0.575, 0.7625, 0.95)))
    with pytest.raises(CheckpointError, match=r"on map 1, .*; is it of another configuration"):
        bw.restore_detector(other)


@pytest.mark.parametrize("scope", ["full", "transfer", "detection"])
def test_loading_into_a_detector_of_the_other_order(scope: str, tmp_path: Path) -> None:
    path = folder(tmp_path, layout(first=True))
    detector = bw.build_detector(parse_message(CONFIG, bw.Pipeline))
    if scope == "detection":  # the predictors, whose rows follow the anchors, are not loaded
        bw.load_weights(detector, path, scope)
        return
    before = {name: value.clone() for name, value in detector.network.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"first_release=true"):
        bw.load_weights(detector, path, scope)  # type: ignore[arg-type]
    assert all(torch.equal(value, before[name]) for name, value in detector.network.state_dict().items())
    bw.load_weights(bw.build_detector(parse_message(FIRST, bw.Pipeline)), path, scope)  # type: ignore[arg-type]


def test_the_switch_excludes_other_shapes() -> None:
    text = FIRST.replace("first_release: true", "first_release: true interpolated_scale_aspect_ratio: 2")
    with pytest.raises(ConfigError, match="interpolates squares alone"):
        bw.build_detector(parse_message(text, bw.Pipeline))


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
