"""SSD: Single Shot MultiBox Detector (Liu et al., 2016), and its heirs with pyramids and focal loss.

Dimensions: B batch, C channels, H W image, A anchors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.anchors.grid import AnchorGenerator
from boxwright.types import Predictions

__all__ = ["SSD"]


class SSD(nn.Module):
    """Backbone, neck, head: one look at the image predicts every box."""

    def __init__(
        self,
        backbone: nn.Module,
        neck: nn.Module,
        head: nn.Module,
        anchors: AnchorGenerator,
        *,
        pad_to_multiple: int = 1,
    ) -> None:
        """Assemble the network.

        Args:
            backbone: Images to feature maps, finest first.
            neck: Feature maps to the maps that are predicted from.
            head: Those maps to box codes [B, A, …] and class logits [B, A, C].
            anchors: Lays anchors over those maps, in the order of the head's rows.
            pad_to_multiple: Inputs are padded with 0 below and right until both sides are multiples
                of it; anchors are laid as if they were not.
        """
        super().__init__()
        self.backbone = backbone
        self.neck = neck
        self.head = head
        self.anchors = anchors
        self.pad_to_multiple = pad_to_multiple

    def forward(self, inputs: Tensor) -> Predictions:
        """Predict.

        Args:
            inputs: float [B, C, H, W], preprocessed.

        Returns:
            Box codes and class logits for every anchor, with the anchors.
        """
        height, width = inputs.shape[-2:]
        below, right = -height % self.pad_to_multiple, -width % self.pad_to_multiple
        padded = F.pad(inputs, (0, right, 0, below)) if below or right else inputs
        maps = self.neck(self.backbone(padded))
        box_codes, class_logits = self.head(maps)
        sizes = [(level.shape[-2], level.shape[-1]) for level in maps]
        anchors = self.anchors(sizes, (height, width))
        levels = torch.cat([torch.full((len(level),), number) for number, level in enumerate(anchors)])
        device = inputs.device
        return Predictions(
            box_codes,
            class_logits,
            torch.cat(anchors).to(device),
            feature_maps=tuple(maps),
            input_size=(height, width),
            levels=levels.to(device),
        )
