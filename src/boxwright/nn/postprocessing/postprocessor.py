"""The interface of postprocessors: decode everything, then select, both in tensors of fixed shape.

Exported graphs contain these two steps; only `PaddedDetections.to_list`, after them, depends on data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from boxwright.types import Categories, Detections, PaddedDetections, RawDetections
from boxwright.types.packing import each_tensor

P = TypeVar("P", contravariant=True)


class Postprocessor(Protocol[P]):
    """Turns the predictions of one family of detectors into detections."""

    def decode(self, predictions: P) -> RawDetections:
        """Return all boxes and scores, before anything is dropped."""
        ...

    def select(self, predictions: P, raw: RawDetections, true_sizes: Tensor) -> PaddedDetections:
        """Return the detections after suppression, in pixels of the input; `true_sizes` [B, 2] exclude padding."""
        ...


@torch.no_grad()
def compute_detections(
    postprocessor: Postprocessor[Any], predictions: Any, true_sizes: Tensor, categories: Categories | None = None
) -> list[Detections[Tensor]]:
    """Return each image's detections, with its raw ones; as `compute_detections_on_cpu`, without other tensors."""
    raw = postprocessor.decode(predictions)
    batch_detections, _ = _selected(postprocessor, predictions, raw, true_sizes, categories, ())
    return [replace(detections, raw=raw.image(number)) for number, detections in enumerate(batch_detections)]


@torch.no_grad()
def compute_detections_on_cpu(
    postprocessor: Postprocessor[Any],
    predictions: Any,
    true_sizes: Tensor,
    categories: Categories | None,
    others: Sequence[Tensor],
) -> tuple[list[Detections[Tensor]], list[Tensor]]:
    """Return each image's detections and other tensors, on the CPU.

    On a GPU a whole batch is suppressed in tensors of fixed shape and copied once. These hold only the best candidates:
    if more could matter, which the copy tells, the batch is suppressed again on the CPU.

    Args:
        true_sizes: int64 [B, 2]; the (height, width) of each input without its padding.

    Returns:
        B detections, in pixels of the network's input, and the other tensors.
    """
    raw = postprocessor.decode(predictions)
    return _selected(postprocessor, predictions, raw, true_sizes, categories, others)


def _selected(
    postprocessor: Postprocessor[Any],
    predictions: Any,
    raw: RawDetections,
    true_sizes: Tensor,
    categories: Categories | None,
    others: Sequence[Tensor],
) -> tuple[list[Detections[Tensor]], list[Tensor]]:
    padded, (sizes, *values) = postprocessor.select(predictions, raw, true_sizes).on_cpu(true_sizes, *others)
    if padded.complete is not None and not bool(padded.complete.all()):
        # The whole batch, not single images: incomplete ones are rare, and predictions are of a batch.
        predicted, decoded = each_tensor(predictions, Tensor.cpu), each_tensor(raw, Tensor.cpu)
        padded = postprocessor.select(predicted, decoded, sizes)
    return padded.to_list(sizes, categories), values
