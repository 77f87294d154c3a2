"""Which layers of an 8-bit network stay in float: as few as keep the average precision."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from boxwright.exporters.int8 import Quantizer
from boxwright.exporters.int8_errors import RoundedTensor, measure_errors
from boxwright.exporters.onnx_links import CONVOLUTIONS
from boxwright.exporters.pictures import spread

_LOG = logging.getLogger("boxwright")
# Errors hardly depend on the pictures, and each costs a run of the network for every tensor.
_PICTURES = 4


def precise_enough(
    quantizer: Quantizer, whole: Any, passes: Callable[[Any, int], bool]
) -> tuple[Any, tuple[str, ...]] | None:
    """Return a quantized model that passes, with the names of its float layers; None if half of the network does not.

    Tensors are ranked by what rounding each alone does to the outputs. The nodes around the worst 1, 2, 4 … stay in
    float until the model passes; then fewer are tried, by halves.

    Args:
        quantizer: Which made the model.
        whole: The model that is quantized whole, an `onnx.ModelProto`.
        passes: From a model, and the number of layers in float, to whether its average precision is good enough.
    """
    images = quantizer.images
    _LOG.info("measuring what each layer costs in 8 bits")
    tensors = measure_errors(quantizer, whole, [images[number] for number in spread(len(images), _PICTURES)])
    known: dict[int, Any] = {}

    def good(count: int) -> bool:
        kept = _around(tensors[:count])
        model = quantizer.quantized(kept)
        if not passes(model, len(float_layers(quantizer, kept))):
            return False
        known[count] = model
        return True

    count = smallest(good, len(tensors) // 2)
    return None if count is None else (known[count], float_layers(quantizer, _around(tensors[:count])))


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


def _around(tensors: Sequence[RoundedTensor]) -> frozenset[str]:
    return frozenset().union(*(one.nodes for one in tensors))
