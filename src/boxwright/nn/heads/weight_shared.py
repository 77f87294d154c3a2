"""RetinaNet's box predictor: a shared tower with normalization per level (weight_shared_convolutional_box_predictor).

Dimensions: B batch, C channels, H W grid, L levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from boxwright.nn.activations import make_activation
from boxwright.nn.batch_norm import make_norm
from boxwright.nn.heads.convolutional import AnchorHead, HeadOutput, flatten_anchors, start_bias
from boxwright.nn.layers import ConvSettings, full_conv, make_conv, separable_conv


@dataclass(frozen=True)
class TowerShape:
    """The layers of a tower.

    Attributes:
        share_tower: Whether boxes and classes share the tower.
        dropout: The share of features dropped before the class convolution.
    """

    depth: int
    layers: int = 0
    kernel_size: int = 3
    use_depthwise: bool = False
    share_tower: bool = False
    dropout: float = 0.0


class Tower(nn.Module):
    """Convolutions shared by all levels, with separate normalization for each."""

    def __init__(self, levels: int, in_channels: int, shape: TowerShape, settings: ConvSettings) -> None:
        """Build the tower."""
        super().__init__()
        make = separable_conv if shape.use_depthwise else full_conv
        widths = [in_channels] + [shape.depth] * shape.layers
        self.convs = nn.ModuleList(
            [make(a, b, shape.kernel_size, settings, bias=settings.bias) for a, b in pairwise(widths)]
        )
        # A flat list, level by level: nested lists would hide the types.
        self.norms = nn.ModuleList([make_norm(b, settings.norm) for _ in range(levels) for b in widths[1:]])
        self.activation = make_activation(settings.activation)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return [B, depth, H, W] per level."""
        levels, norms = features, list(self.norms)
        for number, conv in enumerate(self.convs):
            own = norms[number :: len(self.convs)]
            levels = [self.activation(norm(conv(level))) for level, norm in zip(levels, own, strict=True)]
        return levels


class WeightSharedHead(AnchorHead):
    """Predict boxes and classes by convolutions shared by all levels."""

    def __init__(
        self,
        in_channels: Sequence[int],
        anchors_per_location: int,
        output: HeadOutput,
        shape: TowerShape,
        settings: ConvSettings,
        last_settings: ConvSettings,
    ) -> None:
        """Build projections, towers and the last convolutions.

        Args:
            in_channels: Channels of each level; if they differ, all are projected to the most common number, as in TF.
            anchors_per_location: Anchors at each location, the same at all levels.
            last_settings: Settings of the last convolutions, which TF configures separately.
        """
        super().__init__()
        self.output, self.dropout = output, nn.Dropout(shape.dropout)
        # Where numbers are equally common, the finest level's is taken; in TF the order of a Python set decides.
        common = Counter(in_channels).most_common(1)[0][0]
        differ = len(set(in_channels)) > 1
        self.projections = nn.ModuleList(
            [_projection(c, common, settings) if differ else nn.Identity() for c in in_channels]
        )
        levels = len(in_channels)
        self.box_tower = Tower(levels, common, shape, settings)
        self.class_tower = None if shape.share_tower else Tower(levels, common, shape, settings)
        make = separable_conv if shape.use_depthwise else full_conv
        width = shape.depth if shape.layers else common
        self.boxes = make(width, anchors_per_location * output.code_size, shape.kernel_size, last_settings, bias=True)
        self.classes = make(width, anchors_per_location * output.columns, shape.kernel_size, last_settings, bias=True)
        start_bias(self.classes, output.class_bias)

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Names within the head of the convolutions that give class logits."""
        return (f"classes.{len(self.classes) - 1}",)

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return box codes [B, A, code size] and class logits [B, A, columns], level by level, row by row."""
        projected = [project(level) for project, level in zip(self.projections, features, strict=True)]
        box_features = self.box_tower(projected)
        class_features = box_features if self.class_tower is None else self.class_tower(projected)
        codes = [self.boxes(level) for level in box_features]
        logits = [self.classes(self.dropout(level)) for level in class_features]
        return self.output.finish(
            flatten_anchors(codes, self.output.code_size), flatten_anchors(logits, self.output.columns)
        )


def _projection(in_channels: int, out_channels: int, settings: ConvSettings) -> nn.Module:
    conv = make_conv(in_channels, out_channels, 1, settings.kernel, bias=settings.bias)
    return nn.Sequential(conv, make_norm(out_channels, settings.norm))
