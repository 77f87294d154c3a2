"""SSD: Single Shot MultiBox Detector (Liu et al., 2016), and its successors with pyramids and focal loss.

Dimensions: B batch, C channels, H W image, A anchors.
"""

from __future__ import annotations

from torch import Tensor, nn

from boxwright.nn.anchor_grids import AnchorGenerator
from boxwright.nn.anchor_layer import AnchorLayer
from boxwright.nn.heads.convolutional import AnchorHead
from boxwright.nn.layers import padded_to_multiple
from boxwright.nn.network import Backbone, ClassLayer, Network, Parts
from boxwright.types import AnchorPredictions, Targets


class SSD(Network):
    """Backbone, neck, head: one pass over the image predicts every box."""

    def __init__(
        self,
        backbone: Backbone,
        neck: nn.Module,
        head: AnchorHead,
        anchors: AnchorGenerator,
        *,
        pad_to_multiple: int = 1,
    ) -> None:
        """Assemble the network.

        Args:
            head: Those maps to box codes [B, A, …] and class logits [B, A, C].
            anchors: Lays anchors over those maps, in the order of the head's rows.
            pad_to_multiple: Inputs are padded below and right to its multiples; anchors are laid as if they were not.
        """
        super().__init__()
        self.backbone = backbone
        self.neck = neck
        self.head = head
        self.anchors = AnchorLayer(anchors)
        self.pad_to_multiple = pad_to_multiple

    @property
    def parts(self) -> Parts:
        """The network's modules by role."""
        return Parts(
            backbone=("backbone",),
            beyond_classifier=tuple(f"backbone.{name}" for name in self.backbone.beyond_classifier),
            necks=("neck",),
            heads=("head",),
            class_outputs=("head.classes",),
            box_outputs=("head.boxes",),
            class_layers=tuple(ClassLayer(f"head.{name}", self.head.output.columns) for name in self.head.class_layers),
        )

    def feature_maps(self, inputs: Tensor) -> list[Tensor]:
        """Return the head's input maps, finest first."""
        maps: list[Tensor] = self.neck(self.backbone(padded_to_multiple(inputs, self.pad_to_multiple)))
        return maps

    def forward(self, inputs: Tensor, true_sizes: Tensor, targets: Targets | None = None) -> AnchorPredictions:
        """Return box codes and class logits for every anchor, with the anchors."""
        del true_sizes, targets
        maps = self.feature_maps(inputs)
        box_codes, class_logits = self.head(maps)
        size = (inputs.shape[-2], inputs.shape[-1])
        anchors, level_sizes = self.anchors(maps, size)
        return AnchorPredictions(box_codes, class_logits, anchors, tuple(maps), size, level_sizes)
