"""RefineDet: Single-Shot Refinement Neural Network for Object Detection (Zhang et al., 2018).

Dimensions: B batch, C channels, H W image, A anchors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from boxwright.anchors.grid import AnchorGenerator
from boxwright.types import Predictions, Refinement

__all__ = ["RefineDet"]


class RefineDet(nn.Module):
    """Backbone, anchor refinement, transfer connection, object detection: two looks at one image.

    Without its first step it would be an `SSD`, with the transfer connection as its neck.
    """

    def __init__(
        self,
        backbone: nn.Module,
        neck: nn.Module,
        refinement: nn.Module,
        transfer: nn.Module,
        head: nn.Module,
        anchors: AnchorGenerator,
    ) -> None:
        """Assemble the network.

        Args:
            backbone: Images to feature maps, finest first.
            neck: Those to the maps that the first step sees.
            refinement: The anchor refinement module's head: those maps to box codes [B, A, 4] and logits of
                no object and object, [B, A, 2].
            transfer: The same maps to those that the second step sees; an identity to share them.
            head: The object detection module's head: box codes [B, A, 4] and class logits [B, A, C].
            anchors: Lays anchors over the maps, in the order of the heads' rows.
        """
        super().__init__()
        self.backbone = backbone
        self.neck = neck
        self.refinement = refinement
        self.transfer = transfer
        self.head = head
        self.anchors = anchors

    def forward(self, inputs: Tensor) -> Predictions:
        """Predict.

        Args:
            inputs: float [B, C, H, W], preprocessed.

        Returns:
            Both steps' codes and logits for every anchor, with the anchors as they were laid.
        """
        maps = self.neck(self.backbone(inputs))
        refinement = Refinement(*self.refinement(maps))
        transferred = self.transfer(maps)
        box_codes, class_logits = self.head(transferred)
        height, width = inputs.shape[-2:]
        anchors = self.anchors([(level.shape[-2], level.shape[-1]) for level in maps], (height, width))
        levels = torch.cat([torch.full((len(level),), number) for number, level in enumerate(anchors)])
        return Predictions(
            box_codes,
            class_logits,
            torch.cat(anchors).to(inputs.device),
            feature_maps=tuple(transferred),
            input_size=(height, width),
            levels=levels.to(inputs.device),
            refinement=refinement,
        )
