"""The postprocessor of multi-step detectors (RefineDet, SRN, AlignDet): SSD's on the last step.

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.nn.postprocessing.anchor import AnchorPostprocessor
from boxwright.nn.postprocessing.nms import Nms
from boxwright.types import CascadePredictions, PaddedDetections, RawDetections


@dataclass(frozen=True)
class CascadePostprocessor:
    """Turn predictions into detections, without anchors that an earlier step filtered out.

    Attributes:
        detection: Decodes and suppresses the last step's predictions.
    """

    detection: AnchorPostprocessor

    @property
    def suppression(self) -> Nms:
        """The suppression, which an exported graph may hold as one operator."""
        return self.detection.nms

    @torch.no_grad()
    def decode(self, predictions: CascadePredictions) -> RawDetections:
        """Return boxes and scores of all anchors."""
        return self.detection.decode(predictions.detection)

    @torch.no_grad()
    def select(self, predictions: CascadePredictions, raw: RawDetections, true_sizes: Tensor) -> PaddedDetections:
        """Return the padded detections after suppression, clipped to the true sizes."""
        return self.detection.select(predictions.detection, raw, true_sizes)
