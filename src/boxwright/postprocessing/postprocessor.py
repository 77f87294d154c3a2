"""What every postprocessor does: decode everything, select what stays, both in tensors of fixed shape.

Graphs that are exported hold these two steps; only `PaddedDetections.to_list`, behind them, looks at data.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from boxwright.types import Categories, Detections, PaddedDetections, RawDetections

__all__ = ["Postprocessor", "detections_of"]

P = TypeVar("P", contravariant=True)


class Postprocessor(Protocol[P]):
    """Turns the predictions of one family of detectors into detections."""

    def decode(self, predictions: P) -> RawDetections:
        """Return boxes and scores of everything that was looked at, before anything is dropped."""
        ...

    def select(self, predictions: P, raw: RawDetections, true_sizes: Tensor) -> PaddedDetections:
        """Return what is left after suppression, in pixels of the input; `true_sizes` [B, 2] are without padding."""
        ...


@torch.no_grad()
def detections_of(
    postprocessor: Postprocessor[Any], predictions: Any, true_sizes: Tensor, categories: Categories | None = None
) -> list[Detections]:
    """Return what was found in each image.

    Args:
        postprocessor: The family's.
        predictions: The network's.
        true_sizes: int64 [B, 2]; the (height, width) of each input without its padding.
        categories: The classes, for detections to carry.

    Returns:
        B detections, in pixels of the network's input.
    """
    raw = postprocessor.decode(predictions)
    return postprocessor.select(predictions, raw, true_sizes).to_list(true_sizes, categories)
