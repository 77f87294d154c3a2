"""SSD: Single Shot MultiBox Detector (Liu et al., 2016), and its heirs with pyramids and focal loss.

Dimensions: B batch, C channels, H W image, A anchors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from boxwright.anchors.grid import AnchorGenerator
from boxwright.types import Predictions

__all__ = ["SSD"]


class SSD(nn.Module):
    """Backbone, neck, head: one look at the image predicts every box."""

    def __init__(self, backbone: nn.Module, neck: nn.Module, head: nn.Module, anchors: AnchorGenerator) -> None:
        """Assemble the network.

        Args:
            backbone: Images to feature maps, finest first.
            neck: Feature maps to the maps that are predicted from.
            head: Those maps to box codes [B, A, …] and class logits [B, A, C].
            anchors: Lays anchors over those maps, in the order of the head's rows.
        """
        super().__init__()
        self.backbone = backbone
        self.neck = neck
        self.head = head
        self.anchors = anchors

    def forward(self, inputs: Tensor) -> Predictions:
        """Predict.

        Args:
            inputs: float [B, C, H, W], preprocessed.

        Returns:
            Box codes and class logits for every anchor, with the anchors.
        """
        maps = self.neck(self.backbone(inputs))
        box_codes, class_logits = self.head(maps)
        sizes = [(level.shape[-2], level.shape[-1]) for level in maps]
        anchors = torch.cat(self.anchors(sizes, (inputs.shape[-2], inputs.shape[-1])))
        return Predictions(box_codes, class_logits, anchors.to(inputs.device), tuple(maps))
