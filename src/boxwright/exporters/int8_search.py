"""Which layers of an 8-bit network stay in float: as few as keep the average precision."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from boxwright.exporters.accuracy import compared_accuracy
from boxwright.exporters.int8 import Quantizer
from boxwright.exporters.int8_errors import measure_errors
from boxwright.exporters.onnx_links import CONVOLUTIONS
from boxwright.exporters.pictures import spread

_LOG = logging.getLogger("boxwright")
# Errors hardly depend on the pictures, and each costs a run of the network for every tensor.
_PICTURES = 4


@dataclass(frozen=True)
class MixedPrecisionModel:
    """A quantized model of which some layers are in float.

    Attributes:
        model: An `onnx.ModelProto`.
        layers: The names of the layers in float.
        accuracy: As `compared_accuracy` returns it.
    """

    model: Any
    layers: tuple[str, ...]
    accuracy: dict[str, Any]


def precise_enough(
    quantizer: Quantizer, whole: Any, before: float, measure: Callable[[Any], float]
) -> MixedPrecisionModel | None:
    """Return a quantized model that keeps the average precision; None if with half of the network in float it does not.

    Tensors are ranked by what rounding each alone does to the outputs. The nodes around the worst 1, 2, 4 … stay in
    float until the precision is kept; then fewer are tried, by halves.

    Args:
        quantizer: Which made the model.
        whole: The model that is quantized whole, an `onnx.ModelProto`.
        before: The detector's average precision.
        measure: Returns a model's.
    """
    images = quantizer.images
    _LOG.info("measuring what each layer costs in 8 bits")
    tensors = measure_errors(quantizer, whole, [images[number] for number in spread(len(images), _PICTURES)])
    # Each has fewer layers in float than the one before.
    passed: list[MixedPrecisionModel] = []

    def good(count: int) -> bool:
        kept = frozenset().union(*(one.nodes for one in tensors[:count]))
        model, layers = quantizer.quantized(kept), float_layers(quantizer, kept)
        found = MixedPrecisionModel(model, layers, compared_accuracy(before, measure(model)))
        _LOG.info("AP %.4f with %d layers in float32 (detector: %.4f)", found.accuracy["export"], len(layers), before)
        if found.accuracy["passed"]:
            passed.append(found)
        return bool(found.accuracy["passed"])

    smallest(good, len(tensors) // 2)
    return passed[-1] if passed else None


def smallest(good: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest count from 1 to `most` that is good, if larger ones are too; None if none tried is."""
    low, high = 0, 1
    while not good(min(high, most)):
        if high >= most:
            return None
        low, high = high, 2 * high
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def float_layers(quantizer: Quantizer, kept: Collection[str]) -> tuple[str, ...]:
    """Return the convolutions among nodes, by the names of their weights."""
    return tuple(
        node.input[1].removeprefix("whole.").removesuffix(".weight")
        for node in quantizer.prepared.graph.node
        if node.name in kept and node.op_type in CONVOLUTIONS
    )
