"""The interface of postprocessors: decode everything, then select, both in tensors of fixed shape.

Exported graphs contain these two steps; only `PaddedDetections.to_list`, after them, depends on data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from boxwright.nn.postprocessing.nms import Nms, Suppress
from boxwright.nn.suppression.image_by_image import incomplete_images
from boxwright.types import Categories, Detections, PaddedDetections, RawDetections

P = TypeVar("P", contravariant=True)


class Postprocessor(Protocol[P]):
    """Turns the predictions of one family of detectors into detections."""

    def decode(self, predictions: P) -> RawDetections:
        """Return all boxes and scores, before anything is dropped."""
        ...

    def select(
        self, predictions: P, raw: RawDetections, true_sizes: Tensor, suppress: Suppress = Nms.without_wait
    ) -> PaddedDetections:
        """Return the detections after suppression, in pixels of the input; `true_sizes` [B, 2] exclude padding."""
        ...

    def above(self, score: float) -> Self:
        """Return a postprocessor that may leave out detections below a score, and changes no other."""
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

    On a GPU a whole batch is suppressed in tensors of fixed shape and copied once. These hold only the best candidates;
    the images for which that is not enough, as the copy tells, are suppressed again, on the GPU too.

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
    selected = postprocessor.select(predictions, raw, true_sizes, Nms.without_wait)
    padded, (sizes, *values) = selected.on_cpu(true_sizes, *others)
    if padded.complete is not None and (rest := incomplete_images(padded.complete)):
        exact, _ = postprocessor.select(
            predictions, raw, true_sizes, partial(Nms.image_by_image, indices=rest)
        ).on_cpu()
        padded = padded.with_images(rest, exact)
    return padded.to_list(sizes, categories), values
