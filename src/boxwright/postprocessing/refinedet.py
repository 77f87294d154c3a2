"""RefineDet's postprocessor: SSD's, from where the second step started.

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.ops.anchor_refinement import SecondStep
from boxwright.postprocessing.anchor import AnchorPostprocessor
from boxwright.types import Detections, RawDetections, RefineDetPredictions

__all__ = ["RefineDetPostprocessor"]


@dataclass(frozen=True)
class RefineDetPostprocessor:
    """Turn predictions into detections; anchors that the first step filtered out are none.

    Attributes:
        second_step: Says what the second step starts from.
        detection: Decodes and suppresses what it predicts.
    """

    second_step: SecondStep
    detection: AnchorPostprocessor

    @torch.no_grad()
    def __call__(self, predictions: RefineDetPredictions, true_sizes: Tensor) -> list[Detections]:
        """Return B detections, in pixels of the network's input."""
        return self.detection(self.second_step(predictions), true_sizes)

    @torch.no_grad()
    def decode(self, predictions: RefineDetPredictions) -> RawDetections:
        """Return boxes and scores of all anchors."""
        return self.detection.decode(self.second_step(predictions))
