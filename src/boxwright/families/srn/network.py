"""SRN: Selective Refinement Network for High Performance Face Detection (Chi et al., 2019).

Two steps process an image, each on its own set of maps (section 3.1), as released. The first step's classes filter
anchors on fine levels (selective two-step classification, STC), and its boxes are the second step's anchors on coarse
levels (selective two-step regression, STR); both rules are in `nn.ops.boxes.SecondStep`. The head has receptive field
enhancement (RFE, section 3.4). As in py-faster-rcnn, the sides of anchors are rounded to whole pixels before they are
scaled.

Dimensions: B batch, C channels, H W image or grid, A anchors, S anchors a location.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.anchor_grids import AnchorGenerator
from boxwright.nn.anchor_layer import AnchorLayer
from boxwright.nn.heads.convolutional import AnchorHead, HeadOutput, flatten_anchors, start_bias
from boxwright.nn.layers import ConvSettings, conv_norm_act, make_conv
from boxwright.nn.network import Backbone, ClassLayer, Network, Parts
from boxwright.nn.ops.boxes import SecondStep
from boxwright.types import AnchorPredictions, CascadePredictions, Targets

_SIXTH, _SEVENTH = 1024, 256


class CoarserMaps(nn.Module):
    """Append C6 and C7 to a backbone's C2–C5, each of half the size, without an activation in between."""

    def __init__(self, in_channels: Sequence[int], settings: ConvSettings) -> None:
        """Build both convolutions.

        Args:
            in_channels: Channels of the backbone's maps; C6 and C7 have at most those of the coarsest.
        """
        super().__init__()
        widths = (in_channels[-1], min(_SIXTH, in_channels[-1]), min(_SEVENTH, in_channels[-1]))
        self.extra = nn.ModuleList(
            [make_conv(a, b, 3, settings.kernel, stride=2, bias=True, padding=1) for a, b in pairwise(widths)]
        )
        self.channels = (*in_channels, *widths[1:])

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return all six maps, finest first."""
        maps = list(features)
        for layer in self.extra:
            maps.append(layer(maps[-1]))
        return maps


class FirstStepMaps(nn.Module):
    """Project C2–C7 to one depth for the first step."""

    def __init__(self, in_channels: Sequence[int], depth: int, settings: ConvSettings) -> None:
        """Build a 1×1 convolution to `depth` channels for each map."""
        super().__init__()
        self.project = nn.ModuleList([make_conv(c, depth, 1, settings.kernel, bias=True) for c in in_channels])

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return the maps, finest first."""
        return [project(level) for project, level in zip(self.project, features, strict=True)]


class SecondStepPyramid(nn.Module):
    """P2–P5 from C2–C5, coarse added to fine; P6 from C5's projection, P7 from P6: the second step's maps."""

    def __init__(
        self, in_channels: Sequence[int], depth: int, settings: ConvSettings, *, align_corners: bool = True
    ) -> None:
        """Build the pyramid.

        Args:
            align_corners: Whether upsampling aligns corner pixels, as in the release's PyTorch version, or the pixels'
                areas, as in later versions.
        """
        super().__init__()
        rule = settings.kernel
        self.laterals = nn.ModuleList([make_conv(c, depth, 1, rule, bias=True) for c in in_channels])
        self.smooth = nn.ModuleList([make_conv(depth, depth, 3, rule, bias=True) for _ in in_channels])
        self.extra = nn.ModuleList([make_conv(depth, depth, 3, rule, stride=2, bias=True, padding=1) for _ in range(2)])
        self.align_corners = align_corners
        self.channels = (depth,) * (len(in_channels) + 2)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return P2–P7 for C2–C5 (coarser maps are ignored), finest first."""
        projected = [lateral(level) for lateral, level in zip(self.laterals, features, strict=False)]
        total, sums = projected[-1], [projected[-1]]
        for finer in reversed(projected[:-1]):
            enlarged = F.interpolate(total, size=finer.shape[-2:], mode="bilinear", align_corners=self.align_corners)
            total = finer + enlarged
            sums.insert(0, total)
        levels = [smooth(level) for smooth, level in zip(self.smooth, sums, strict=True)]
        # The release takes P6 from C5's projection, where the paper's text has P5.
        coarser = projected[-1]
        for layer in self.extra:
            coarser = layer(coarser)
            levels.append(coarser)
        return levels


_KERNELS = ((1, 5), (5, 1), (1, 3), (3, 1))


class ReceptiveFieldEnhancement(nn.Module):
    """Four branches with kernels elongated along rows or columns, added to the input."""

    def __init__(self, channels: int, settings: ConvSettings) -> None:
        """Build the branches, each with a quarter of the channels.

        Args:
            channels: Input and output channels, a multiple of 4.
        """
        super().__init__()
        width = channels // len(_KERNELS)
        self.branches = nn.ModuleList(
            [
                nn.Sequential(
                    conv_norm_act(channels, width, 1, settings),
                    conv_norm_act(width, width, kernel, settings),
                    conv_norm_act(width, width, 1, settings),
                )
                for kernel in _KERNELS
            ]
        )
        self.merge = conv_norm_act(width * len(_KERNELS), channels, 1, settings)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C, H, W]."""
        seen: Tensor = self.merge(torch.cat([branch(inputs) for branch in self.branches], 1))
        return inputs + seen


class ReceptiveFieldHead(AnchorHead):
    """Predict boxes and classes by convolutions shared by all levels: 3×3, enhancement, 3×3, 1×1."""

    def __init__(
        self,
        channels: int,
        anchors_per_location: int,
        output: HeadOutput,
        settings: ConvSettings,
        *,
        enhance: bool,
        calls_per_pass: int,
    ) -> None:
        """Build both towers and the last convolutions.

        Args:
            channels: Channels of every level, and of the towers.
            anchors_per_location: Anchors at each location, the same at all levels.
            enhance: Whether the towers have the enhancement between their convolutions.
            calls_per_pass: On how many maps a training pass uses each tower.
        """
        super().__init__()
        self.output, self.calls_per_pass = output, calls_per_pass

        def tower() -> nn.Sequential:
            middle = [ReceptiveFieldEnhancement(channels, settings)] if enhance else []
            first, last = (conv_norm_act(channels, channels, 3, settings) for _ in range(2))
            return nn.Sequential(first, *middle, last)

        def last(numbers: int) -> nn.Sequential:
            return nn.Sequential(make_conv(channels, anchors_per_location * numbers, 1, settings.kernel, bias=True))

        self.box_tower, self.class_tower = tower(), tower()
        self.boxes, self.classes = last(output.code_size), last(output.columns)
        start_bias(self.classes, output.class_bias)

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Names within the head of the convolutions that give class logits."""
        return ("classes.0",)

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return box codes [B, A, code size] and class logits [B, A, columns], level by level, row by row."""
        codes = [self.boxes(self.box_tower(level)) for level in features]
        logits = [self.classes(self.class_tower(level)) for level in features]
        return self.output.finish(
            flatten_anchors(codes, self.output.code_size), flatten_anchors(logits, self.output.columns)
        )


def rounded_sides(stride: float, ratio: float) -> tuple[float, float]:
    """Return integer (height, width) in pixels of about a stride's area, rounded half to even as in NumPy."""
    width = round(math.sqrt(stride * stride / ratio))
    return float(round(width * ratio)), float(width)


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
