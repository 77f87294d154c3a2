"""SRN: Selective Refinement Network for High Performance Face Detection (Chi et al., 2019).

Two steps process an image, each on its own maps. The first step's classes filter anchors on fine levels (selective
two-step classification, STC), and its boxes are the second step's anchors on coarse levels (selective two-step
regression, STR). Both rules are in `ops.anchor_refinement.SecondStep`.

Dimensions: B batch, C channels, H W image, A anchors.
"""

from __future__ import annotations

from torch import Tensor

from boxwright.families.srn.head import ReceptiveFieldHead
from boxwright.families.srn.necks import CoarserMaps, FirstStepMaps, SecondStepPyramid
from boxwright.nn.anchor_layer import AnchorLayer
from boxwright.nn.anchors.grid import AnchorGenerator
from boxwright.nn.backbones.backbone import Backbone
from boxwright.nn.network import ClassLayer, Network, Parts
from boxwright.nn.ops.anchor_refinement import SecondStep
from boxwright.types import AnchorPredictions, CascadePredictions, Targets


class SRN(Network):
    """Backbone, six maps for the first step, a pyramid of six for the second, and a head for both.

    Without both rules it is an `SSD` with the second step's pyramid as its neck.
    """

    def __init__(
        self,
        backbone: Backbone,
        coarser: CoarserMaps,
        first_maps: FirstStepMaps,
        pyramid: SecondStepPyramid,
        head: ReceptiveFieldHead,
        anchors: AnchorGenerator,
        second_step: SecondStep,
        *,
        first_head: ReceptiveFieldHead | None = None,
    ) -> None:
        """Assemble the network.

        Args:
            backbone: Images to C2–C5.
            coarser: C2–C5 to C2–C7.
            first_maps: C2–C7 to the first step's maps.
            pyramid: C2–C5 to P2–P7, the second step's maps.
            head: Maps to box codes [B, A, 4] and class logits [B, A, C].
            anchors: Lays anchors over the maps, in the order of the head's rows.
            second_step: Selects the boxes and anchors of the second step.
            first_head: The first step's head; None to share one.
        """
        super().__init__()
        self.backbone = backbone
        self.coarser = coarser
        self.first_maps = first_maps
        self.pyramid = pyramid
        self.head = head
        self.first_head = first_head
        self.anchors = AnchorLayer(anchors)
        self.second_step = second_step

    @property
    def parts(self) -> Parts:
        """The network's modules by role."""
        heads = ("head",) if self.first_head is None else ("head", "first_head")
        return Parts(
            backbone=("backbone",),
            beyond_classifier=tuple(f"backbone.{name}" for name in self.backbone.beyond_classifier),
            necks=("coarser", "first_maps", "pyramid"),
            heads=heads,
            class_outputs=tuple(f"{head}.classes" for head in heads),
            box_outputs=tuple(f"{head}.boxes" for head in heads),
            class_layers=tuple(
                ClassLayer(f"{head}.{name}", self.head.output.columns)
                for head in heads
                for name in self.head.class_layers
            ),
        )

    def feature_maps(self, inputs: Tensor) -> list[Tensor]:
        """Return P2–P7, finest first; the first step's maps have the same sizes."""
        maps: list[Tensor] = self.pyramid(self.backbone(inputs))
        return maps

    def forward(self, inputs: Tensor, true_sizes: Tensor, targets: Targets | None = None) -> CascadePredictions:
        """Return both steps' codes and logits for every anchor, with each step's input boxes."""
        del true_sizes, targets
        stages = self.backbone(inputs)
        first_maps: list[Tensor] = self.first_maps(self.coarser(stages))
        pyramid: list[Tensor] = self.pyramid(stages)
        size = (inputs.shape[-2], inputs.shape[-1])
        anchors, level_sizes = self.anchors(pyramid, size)
        codes, logits = (self.first_head or self.head)(first_maps)
        first = AnchorPredictions(codes, logits, anchors, tuple(first_maps), size, level_sizes)
        start, filtered = self.second_step(first)
        codes, logits = self.head(pyramid)
        second = AnchorPredictions(codes, logits, start, tuple(pyramid), size, level_sizes, filtered=filtered)
        return CascadePredictions((first, second))
