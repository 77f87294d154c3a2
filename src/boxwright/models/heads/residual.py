"""A bottleneck on each level before its predictors (RefineDet with ResNet-101, in the authors' code).

Dimensions: B batch, A anchors, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from boxwright.models.backbones.resnet_v1 import Bottleneck
from boxwright.models.heads.convolutional import ConvolutionalHead
from boxwright.models.layers import ConvSettings

__all__ = ["ResidualHead"]


class ResidualHead(nn.Module):
    """A head whose levels are prepared by a bottleneck of their own."""

    def __init__(
        self, in_channels: Sequence[int], width: int, depth: int, settings: ConvSettings, head: ConvolutionalHead
    ) -> None:
        """Build the bottlenecks.

        Args:
            in_channels: Channels of each level.
            width: Channels inside a bottleneck.
            depth: Channels that it hands on, and that the head takes.
            settings: Their convolutions.
            head: What predicts.
        """
        super().__init__()
        self.bodies = nn.ModuleList(
            Bottleneck(channels, width, depth, 1, settings, project=True) for channels in in_channels
        )
        self.predictors = head
        self.output = head.output

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Predict for all anchors.

        Args:
            features: One map [B, C, H, W] a level.

        Returns:
            Box codes [B, A, code size] and class logits [B, A, C], level by level, row by row.
        """
        predicted: tuple[Tensor, Tensor] = self.predictors(
            [body(level) for body, level in zip(self.bodies, features, strict=True)]
        )
        return predicted
