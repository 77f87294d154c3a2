"""RefineDet: Single-Shot Refinement Neural Network for Object Detection (Zhang et al., 2018).

Dimensions: B batch, C channels, H W image, A anchors.
"""

from __future__ import annotations

from torch import Tensor, nn

from boxwright.nn.anchor_layer import AnchorLayer
from boxwright.nn.anchors.grid import AnchorGenerator
from boxwright.nn.backbones.backbone import Backbone
from boxwright.nn.heads.aligned import AlignmentConvHead
from boxwright.nn.heads.outputs import AnchorHead
from boxwright.nn.network import ClassLayer, Network, Parts
from boxwright.nn.ops.anchor_refinement import SecondStep
from boxwright.types import AnchorPredictions, CascadePredictions, Targets


class RefineDet(Network):
    """Backbone, anchor refinement, transfer connection, object detection: two steps over one image.

    Without its first step it is an `SSD` with the transfer connection as its neck.
    """

    def __init__(
        self,
        backbone: Backbone,
        neck: nn.Module,
        refinement: AnchorHead,
        transfer: nn.Module,
        head: AnchorHead | AlignmentConvHead,
        anchors: AnchorGenerator,
        second_step: SecondStep,
    ) -> None:
        """Assemble the network.

        Args:
            neck: Backbone maps to the first step's maps.
            refinement: The anchor refinement module's head: those maps to box codes [B, A, 4] and logits of
                background and object, [B, A, 2].
            transfer: The first step's maps to the second's; an identity to share them.
            head: The object detection module's head: box codes [B, A, 4] and class logits [B, A, C]; RefineDet++'s
                also takes the refined boxes.
            anchors: Lays anchors over the maps, in the order of the heads' rows.
            second_step: Selects the boxes and anchors of the second step.
        """
        super().__init__()
        self.backbone = backbone
        self.neck = neck
        self.refinement = refinement
        self.transfer = transfer
        self.head = head
        self.anchors = AnchorLayer(anchors)
        self.second_step = second_step

    @property
    def parts(self) -> Parts:
        """The network's modules by role."""
        return Parts(
            backbone=("backbone",),
            beyond_classifier=tuple(f"backbone.{name}" for name in self.backbone.beyond_classifier),
            necks=("neck", "transfer"),
            heads=("refinement", "head"),
            class_outputs=("head.classes",),
            box_outputs=("head.boxes",),
            class_layers=tuple(ClassLayer(f"head.{name}", self.head.output.columns) for name in self.head.class_layers),
        )

    def feature_maps(self, inputs: Tensor) -> list[Tensor]:
        """Return the first step's maps, finest first."""
        maps: list[Tensor] = self.neck(self.backbone(inputs))
        return maps

    def forward(self, inputs: Tensor, true_sizes: Tensor, targets: Targets | None = None) -> CascadePredictions:
        """Return both steps' codes and logits for every anchor, with each step's input boxes."""
        del true_sizes, targets
        maps = self.feature_maps(inputs)
        size = (inputs.shape[-2], inputs.shape[-1])
        anchors, level_sizes = self.anchors(maps, size)
        codes, logits = self.refinement(maps)
        refinement = AnchorPredictions(codes, logits, anchors, tuple(maps), size, level_sizes)
        start, filtered = self.second_step(refinement)
        # From the maps that the first step saw: conv4_3 and conv5_3 are normalized in both.
        transferred: list[Tensor] = self.transfer(maps)
        plain = isinstance(self.head, AnchorHead)
        boxes = start.expand(inputs.shape[0], -1, -1)
        codes, logits = self.head(transferred) if plain else self.head(transferred, boxes)
        detection = AnchorPredictions(codes, logits, start, tuple(transferred), size, level_sizes, filtered=filtered)
        return CascadePredictions((refinement, detection))
