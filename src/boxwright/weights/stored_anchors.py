"""Anchors in a checkpoint's graph against those of a configuration: other ones mean boxes at other places.

The TF Object Detection API's first release had an SSD's interpolated anchor second; since November 2017 it is the last.
Weights do not tell them apart, but graphs store their anchors: a graph of TF1 computes an SSD's at each run. For each
map it holds the scales s and the aspect ratios r of the anchors at one location as vectors, in the order of the
predictor's rows, and divides: s / sqrt(r).
"""

from __future__ import annotations

import copy
import itertools
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from boxwright.base.errors import CheckpointError
from boxwright.base.files import file_size, is_file, read_file, shown
from boxwright.base.limits import CHECKPOINT_BYTES
from boxwright.families.shared.anchor_generator import build_anchor_generator
from boxwright.nn.anchor_grids import SsdAnchorGenerator
from boxwright.nn.ssd import SSD
from boxwright.pipeline import messages as m
from boxwright.weights.tensorflow.checkpoint import FROZEN_GRAPH
from boxwright.weights.tensorflow.object_graph import GraphDef, MetaGraphDef, to_array

# For each map, the (scale, aspect ratio) of each anchor at a location.
Levels = tuple[tuple[tuple[float, float], ...], ...]
_SCOPE = "MultipleGridAnchorGenerator"
_DIVISIONS = ("RealDiv", "Div")  # "Div" in graphs of the first versions
_MOST = 64  # anchors at one location


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
        return [float(number) for number in to_array(tensor, tensor.dtype, shape)]
    except ValueError:
        return []


def anchors_beside(checkpoint: Path) -> Levels:
    """Return the anchors of the graph that belongs to a checkpoint; empty if there is none, or it cannot be read.

    Args:
        checkpoint: A frozen graph, or a checkpoint's prefix: TF1 writes its graph beside it (`.meta`), and the model
            zoo has a frozen one in the same folder.
    """
    if checkpoint.suffix.lower() == ".pb":
        return _read(checkpoint, GraphDef)
    return _read(Path(f"{checkpoint}.meta"), MetaGraphDef) or _read(checkpoint.parent / FROZEN_GRAPH, GraphDef)


def _read(path: Path, kind: Any) -> Levels:
    if not is_file(path) or CHECKPOINT_BYTES.exceeded(file_size(path)):
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


_LOG = logging.getLogger("boxwright")
_SWITCH = "model.ssd.anchor_generator.ssd_anchor_generator.first_release"
# What the names of the zoo's archives of the first release end in.
_FIRST = "_11_06_2017"


def with_stored_anchors(config: m.TrainEvalPipelineConfig, path: Path) -> m.TrainEvalPipelineConfig:
    """Return a configuration whose SSD has its anchors in the order of a checkpoint's graph.

    Args:
        config: The configuration; unchanged if the checkpoint has no graph.
        path: A TensorFlow checkpoint: its prefix, or a frozen graph.

    Raises:
        CheckpointError: If the graph's anchors are others than the configuration's in any order.
    """
    wanted = _ssd_anchors(config)
    stored = () if wanted is None else anchors_beside(path)
    if wanted is None or not (stored or path.parent.name.endswith(_FIRST)):
        return config
    other = copy.deepcopy(config)
    switched: Any = _ssd_anchors(other)
    switched.first_release = not wanted.first_release
    if not stored:
        if wanted.has("first_release"):
            return config
        _tell(path, "its name says so")
        return other
    if are_same(stored, _boxes(wanted)):
        return config
    if wanted.has("first_release") or not are_same(stored, _boxes(switched)):
        switch = switched.first_release if are_same(stored, _boxes(switched)) else None
        raise _differ(path, stored, _boxes(wanted), switch=switch)
    _tell(path, "its graph has them so")
    return other


def has_ssd_anchors(network: object) -> bool:
    """Return whether a network's anchors are those of which TensorFlow has had two orders."""
    return isinstance(network, SSD) and isinstance(network.anchors.generator, SsdAnchorGenerator)


def check_stored_anchors(network: object, stored: Levels, path: Path) -> None:
    """Raise a CheckpointError if a checkpoint's graph has an SSD's anchors in another order; warn if it has others.

    Args:
        network: The network that the checkpoint's predictors are loaded into.
        stored: The graph's anchors; empty if unknown.
        path: The checkpoint, for the error.
    """
    generator = network.anchors.generator if isinstance(network, SSD) else None
    if not (stored and isinstance(generator, SsdAnchorGenerator)) or are_same(stored, generator.boxes):
        return
    if _same_sets(stored, generator.boxes):
        raise _differ(path, stored, generator.boxes, switch=not generator.stretched)
    # Other anchors are meant, as of a configuration that was changed; its predictors adapt to them.
    warnings.warn(str(_differ(path, stored, generator.boxes, switch=None)), stacklevel=2)


def _ssd_anchors(config: m.TrainEvalPipelineConfig) -> m.SsdAnchorGenerator | None:
    ssd = config.model.ssd if config.model is not None else None
    return ssd.anchor_generator.ssd_anchor_generator if ssd is not None and ssd.anchor_generator is not None else None


def _boxes(anchors: m.SsdAnchorGenerator) -> Levels:
    """Return what a configuration describes; empty for what builds no such generator."""
    generator = build_anchor_generator(m.AnchorGenerator(ssd_anchor_generator=anchors))
    return generator.boxes if isinstance(generator, SsdAnchorGenerator) else ()


def _tell(path: Path, reason: str) -> None:
    _LOG.warning("%s: anchors are in the order of the API's first release, as %s (%s=true)", path.name, reason, _SWITCH)


def _same_sets(first: Levels, second: Levels) -> bool:
    """Return whether two layouts have the same anchors at each location, in any order."""
    if [len(level) for level in first] != [len(level) for level in second]:
        return False
    levels = zip(first, second, strict=True)
    return all(
        any(are_same([[pair]], [[other_pair]]) for other_pair in other) for level, other in levels for pair in level
    )


def _differ(path: Path, stored: Levels, wanted: Levels, *, switch: bool | None) -> CheckpointError:
    """Return the error for anchors that differ.

    Args:
        switch: What `first_release` has to be; None if no order makes them the same.
    """
    levels = itertools.zip_longest(stored, wanted, fillvalue=())
    number, actual, expected = next((n, a, b) for n, (a, b) in enumerate(levels, 1) if not are_same([a], [b]))
    hint = "is it of another configuration?" if switch is None else f"set {_SWITCH}={str(switch).lower()}"
    return CheckpointError(
        f"{shown(path)}: boxes would be at other places: on map {number}, its graph lays anchors {_said(actual)} "
        f"(scale:aspect ratio), and the configuration {_said(expected)}; {hint}"
    )


def _said(level: tuple[tuple[float, float], ...]) -> str:
    return " ".join(f"{scale:.4g}:{ratio:.3g}" for scale, ratio in level) or "none"
