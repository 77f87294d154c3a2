"""AlignDet: Revisiting Feature Alignment for One-stage Object Detection (Chen et al., 2019).

A RetinaNet predicts one box per cell; later steps sample that box's features by RoIConv, on the same maps, and refine
its class and position. Its pyramid computes the coarser maps from the backbone's last (Focal Loss for Dense Object
Detection, section 4).

Dimensions: B batch, C channels, H W image or grid, A anchors, S anchors a location.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.anchor_grids import AnchorGenerator
from boxwright.nn.anchor_layer import AnchorLayer
from boxwright.nn.heads.aligned import AlignedHead
from boxwright.nn.heads.convolutional import AnchorHead
from boxwright.nn.layers import ConvSettings, make_conv
from boxwright.nn.necks.fpn import PaperFeaturePyramid
from boxwright.nn.network import Backbone, ClassLayer, Network, Parts
from boxwright.nn.ops.boxes import RefinedStart, clip_boxes
from boxwright.types import AnchorPredictions, CascadePredictions, Targets


class RetinaNetPyramid(nn.Module):
    """P3–P5 as in the paper's pyramid; P6 from C5, and P7 from P6 after a ReLU, each of half the size."""

    def __init__(self, in_channels: Sequence[int], depth: int, settings: ConvSettings) -> None:
        """Build the pyramid."""
        super().__init__()
        rule = settings.kernel
        self.pyramid = PaperFeaturePyramid(in_channels, depth, settings)
        self.sixth = make_conv(in_channels[-1], depth, 3, rule, stride=2, bias=True, padding=1)
        self.seventh = make_conv(depth, depth, 3, rule, stride=2, bias=True, padding=1)
        self.channels = (depth,) * (len(in_channels) + 2)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return all levels, finest first."""
        levels: list[Tensor] = self.pyramid(features)
        sixth = self.sixth(features[-1])
        return [*levels, sixth, self.seventh(F.relu(sixth))]


class AlignDet(Network):
    """Backbone, pyramid, a dense head, and heads aligned with the boxes of the previous step."""

    def __init__(
        self,
        backbone: Backbone,
        neck: nn.Module,
        head: AnchorHead,
        aligned: Sequence[AlignedHead],
        anchors: AnchorGenerator,
        start: RefinedStart,
        *,
        anchors_per_location: int = 1,
    ) -> None:
        """Assemble the network.

        Args:
            neck: Backbone maps to the maps that all steps share.
            head: The first step's head: maps to box codes [B, A, 4] and class logits [B, A, C].
            anchors: Lays anchors over the maps, in the order of the head's rows.
            anchors_per_location: S; later steps refine only the most confident of them.
        """
        super().__init__()
        self.backbone = backbone
        self.neck = neck
        self.head = head
        self.aligned = nn.ModuleList(aligned)
        self.anchors = AnchorLayer(anchors)
        self.start = start
        self.anchors_per_location = anchors_per_location

    @property
    def parts(self) -> Parts:
        """The network's modules by role."""
        heads = ("head", *(f"aligned.{number}" for number in range(len(self.aligned))))
        names = (self.head.class_layers, *(head.class_layers for head in self._aligned()))
        columns = self.head.output.columns
        return Parts(
            backbone=("backbone",),
            beyond_classifier=tuple(f"backbone.{name}" for name in self.backbone.beyond_classifier),
            necks=("neck",),
            heads=heads,
            class_outputs=tuple(f"{head}.classes" for head in heads),
            box_outputs=tuple(f"{head}.boxes" for head in heads),
            class_layers=tuple(
                ClassLayer(f"{head}.{name}", columns)
                for head, layers in zip(heads, names, strict=True)
                for name in layers
            ),
        )

    def _aligned(self) -> list[AlignedHead]:
        return [head for head in self.aligned if isinstance(head, AlignedHead)]

    def feature_maps(self, inputs: Tensor) -> list[Tensor]:
        """Return the maps that all steps share, finest first."""
        maps: list[Tensor] = self.neck(self.backbone(inputs))
        return maps

    def forward(self, inputs: Tensor, true_sizes: Tensor, targets: Targets | None = None) -> CascadePredictions:
        """Return every step's codes and logits, with its input boxes, clipped to the true sizes."""
        del targets
        maps = self.feature_maps(inputs)
        size = (inputs.shape[-2], inputs.shape[-1])
        anchors, level_sizes = self.anchors(maps, size)
        codes, logits = self.head(maps)
        steps = [AnchorPredictions(codes, logits, anchors, tuple(maps), size, level_sizes)]
        height, width = true_sizes[:, :1], true_sizes[:, 1:]
        previous = steps[0] if self.anchors_per_location == 1 else _top_anchors(steps[0], self.anchors_per_location)
        for head in self._aligned():
            # No suppression and no sampling: the next head reads one box per cell, as in the release.
            boxes = clip_boxes(self.start(previous), height, width)
            codes, logits = head(maps, boxes)
            previous = AnchorPredictions(codes, logits, boxes, tuple(maps), size, previous.level_sizes)
            steps.append(previous)
        return CascadePredictions(tuple(steps))


def _top_anchors(first: AnchorPredictions, count: int) -> AnchorPredictions:
    """Return the predictions of the most confident of the `count` anchors of each cell."""
    batch = first.class_logits.shape[0]
    likeliest = first.class_logits.detach().amax(-1).view(batch, -1, count).argmax(-1)[..., None, None]

    def chosen(rows: Tensor) -> Tensor:
        by_cell = rows.view(rows.shape[0], -1, count, rows.shape[-1])
        return by_cell.gather(2, likeliest.expand(-1, -1, 1, rows.shape[-1])).squeeze(2)

    return replace(
        first,
        box_codes=chosen(first.box_codes),
        class_logits=chosen(first.class_logits),
        anchors=chosen(first.anchors.expand(batch, -1, -1)),
        level_sizes=tuple(size // count for size in first.level_sizes),
    )
