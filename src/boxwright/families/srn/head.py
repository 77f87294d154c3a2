"""Receptive field enhancement (RFE), and the head that uses it (SRN, section 3.4).

Dimensions: B batch, C channels, H W grid, S anchors a location.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from boxwright.nn.heads.outputs import AnchorHead, HeadOutput, flatten_anchors, start_bias
from boxwright.nn.layers import ConvSettings, conv_norm_act, make_conv

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
