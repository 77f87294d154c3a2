"""RefineDet: Single-Shot Refinement Neural Network for Object Detection (Zhang et al., 2018).

Transfer connection blocks pass the first step's features to the second (section 3.1, figure 2). With ResNet-101 a
bottleneck adds one coarser level (section 4: `res6`).

Dimensions: B batch, C channels, H W image or grid, A anchors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from boxwright.base.errors import DataError
from boxwright.nn.anchor_grids import AnchorGenerator
from boxwright.nn.anchor_layer import AnchorLayer
from boxwright.nn.backbones.resnet_v1 import Bottleneck
from boxwright.nn.batch_norm import make_norm
from boxwright.nn.heads.aligned import AlignmentConvHead
from boxwright.nn.heads.convolutional import AnchorHead
from boxwright.nn.layers import ConvSettings, Deconv2d, conv_norm_act, make_activation
from boxwright.nn.network import Backbone, ClassLayer, Network, Parts
from boxwright.nn.ops.boxes import SecondStep
from boxwright.types import AnchorPredictions, CascadePredictions, Targets


class TransferConnection(nn.Module):
    """Project each map to one depth, add the next coarser result, enlarged twice, and smooth."""

    def __init__(
        self,
        in_channels: Sequence[int],
        depth: int,
        settings: ConvSettings,
        *,
        deconvolution_kernel_size: int = 2,
    ) -> None:
        """Build the blocks.

        Args:
            in_channels: Channels of each level, finest first, each half as large as the one before.
            deconvolution_kernel_size: 2 as in the authors' release, or 4 as in their figure.
        """
        super().__init__()
        self.lateral, self.linear, self.smooth = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.enlarge = nn.ModuleList()
        for channels in in_channels:
            self.lateral.append(conv_norm_act(channels, depth, 3, settings))
            self.linear.append(conv_norm_act(depth, depth, 3, replace(settings, activation="NONE")))
            self.smooth.append(conv_norm_act(depth, depth, 3, settings))
        for _ in in_channels[1:]:
            self.enlarge.append(_deconvolution(depth, deconvolution_kernel_size, settings))
        self.activation = make_activation(settings.activation)
        self.channels = (depth,) * len(in_channels)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return one map [B, depth, H, W] per level, finest first.

        Raises:
            DataError: If a map is not twice as large as the next.
        """
        results: list[Tensor] = []
        for level in reversed(range(len(features))):
            # Not activated yet: the sum with the coarser map is (figure 2).
            transferred = self.linear[level](self.lateral[level](features[level]))
            if results:
                enlarged = self.enlarge[level](results[-1])
                if enlarged.shape != transferred.shape:
                    raise DataError(
                        f"transfer connection: map {_size(transferred)} does not fit {_size(results[-1])} doubled; "
                        "the input's sides must be multiples of the coarsest level's stride"
                    )
                transferred = transferred + enlarged
            results.append(self.smooth[level](self.activation(transferred)))
        return results[::-1]


def _size(map: Tensor) -> str:
    return f"{map.shape[-2]}×{map.shape[-1]}"


def _deconvolution(depth: int, kernel_size: int, settings: ConvSettings) -> nn.Sequential:
    """Return a layer that doubles height and width, normalized like convolutions but not activated."""
    layer = Deconv2d(depth, depth, kernel_size, settings.kernel, bias=settings.bias)
    return nn.Sequential(layer, make_norm(depth, settings.norm))


class ResidualLevel(nn.Module):
    """Append a map of half the size to the backbone's."""

    def __init__(self, in_channels: Sequence[int], width: int, out_channels: int, settings: ConvSettings) -> None:
        """Build the bottleneck."""
        super().__init__()
        self.extra = Bottleneck(in_channels[-1], width, out_channels, 2, settings, project=True)
        self.channels = (*in_channels, out_channels)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return all maps, finest first."""
        return [*features, self.extra(features[-1])]


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
