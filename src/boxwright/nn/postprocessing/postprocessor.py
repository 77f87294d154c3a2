"""The interface of postprocessors: decode everything, then select, both in tensors of fixed shape.

Exported graphs contain these two steps; only `PaddedDetections.to_list`, after them, depends on data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """Return each image's detections, with its raw ones; on the CPU."""
    selected = select_on_device(postprocessor, predictions, true_sizes)
    batch_detections, _ = fetch_detections(postprocessor, selected, true_sizes, categories, ())
    return [replace(detections, raw=selected.raw.image(number)) for number, detections in enumerate(batch_detections)]


@dataclass(frozen=True)
class Selected:
    """What a batch's detections are selected from, and the selection in tensors of fixed shape, all on one device."""

    predictions: Any
    raw: RawDetections
    padded: PaddedDetections


@torch.no_grad()
def select_on_device(postprocessor: Postprocessor[Any], predictions: Any, true_sizes: Tensor) -> Selected:
    """Return what is detected in a batch without waiting for a GPU, if the rules of suppression allow it.

    Args:
        true_sizes: int64 [B, 2]; the (height, width) of each input without its padding.
    """
    raw = postprocessor.decode(predictions)
    return Selected(predictions, raw, postprocessor.select(predictions, raw, true_sizes, Nms.without_wait))


@torch.no_grad()
def fetch_detections(
    postprocessor: Postprocessor[Any],
    selected: Selected,
    true_sizes: Tensor,
    categories: Categories | None,
    others: Sequence[Tensor],
) -> tuple[list[Detections[Tensor]], list[Tensor]]:
    """Return each image's detections and other tensors, on the CPU.

    What was selected is copied once. It comes from the best candidates alone; images for which these are not enough,
    as the copy tells, are suppressed again, on the GPU too.

    Returns:
        B detections, in pixels of the network's input, and the other tensors.
    """
    padded, (sizes, *values) = selected.padded.on_cpu(true_sizes, *others)
    if padded.complete is not None and (rest := incomplete_images(padded.complete)):
        suppress = partial(Nms.image_by_image, indices=rest)
        exact, _ = postprocessor.select(selected.predictions, selected.raw, true_sizes, suppress).on_cpu()
        padded = padded.with_images(rest, exact)
    return padded.to_list(sizes, categories), values
