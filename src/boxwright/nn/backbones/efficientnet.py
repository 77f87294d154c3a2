"""EfficientNet B0 to B7 (Tan and Le, 2019, table 1), as TF's EfficientDet taps it.

TF taps fixed block numbers at any depth: level 3 is the second block of stage 2 even if the stage has six. Layers after
the last tap are not computed.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from boxwright.nn.drop_path import StochasticDepth
from boxwright.nn.layers import ConvSettings, conv_norm_act, make_activation, make_conv
from boxwright.nn.network import Backbone

# Name → (width, depth).
EFFICIENTNETS = {
    "b0": (1.0, 1.0),
    "b1": (1.0, 1.1),
    "b2": (1.1, 1.2),
    "b3": (1.2, 1.4),
    "b4": (1.4, 1.8),
    "b5": (1.6, 2.2),
    "b6": (1.8, 2.6),
    "b7": (2.0, 3.1),
}
# (channels, kernel, repeats, expansion, stride) of the stages 0 to 6.
_STAGES = (
    (16, 3, 1, 1, 1),
    (24, 3, 2, 6, 2),
    (40, 5, 2, 6, 2),
    (80, 3, 3, 6, 2),
    (112, 5, 3, 6, 1),
    (192, 5, 4, 6, 2),
    (320, 3, 1, 6, 1),
)
# Pyramid level → (stage, block).
_TAPS = {1: (0, 0), 2: (1, 1), 3: (2, 1), 4: (4, 2), 5: (6, 0)}
_SQUEEZE = 0.25
# The last block of B0 has this rate; rates grow linearly from 0 at the first, as in TF.
_DROP_RATE = 0.2


@dataclass(frozen=True)
class _Block:
    """The position and shape of one block."""

    place: tuple[int, int]
    in_channels: int
    out_channels: int
    kernel_size: int
    expansion: int
    stride: int
    drop_rate: float


def _round_channels(channels: int, width: float) -> int:
    """Round to a multiple of 8, but never below 90 % of the value."""
    wanted = channels * width
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded


def _blocks(width: float, depth: float) -> Iterator[_Block]:
    # TF scales the drop rate by B0's number of blocks, so it exceeds 0.2 in deeper networks.
    base = sum(repeats for _, _, repeats, _, _ in _STAGES)
    channels, number = _round_channels(32, width), 0
    for stage, (wanted, kernel_size, repeats, expansion, stride) in enumerate(_STAGES):
        out = _round_channels(wanted, width)
        # TF rounds repeats up, where it rounds channels to the nearest multiple of 8.
        for position in range(math.ceil(depth * repeats)):
            step = stride if position == 0 else 1
            yield _Block((stage, position), channels, out, kernel_size, expansion, step, _DROP_RATE * number / base)
            channels, number = out, number + 1


class MBConv(nn.Module):
    """Expansion, depthwise convolution, squeeze and excite, projection."""

    def __init__(self, block: _Block, settings: ConvSettings) -> None:
        """Build the block."""
        super().__init__()
        expanded = block.in_channels * block.expansion
        # Relative to the block's input, not to the expanded map.
        squeezed = max(1, int(block.in_channels * _SQUEEZE))
        same = block.stride == 1 and block.in_channels == block.out_channels
        self.expand = conv_norm_act(block.in_channels, expanded, 1, settings) if block.expansion > 1 else nn.Identity()
        self.depthwise = conv_norm_act(
            expanded, expanded, block.kernel_size, settings, stride=block.stride, depthwise=True
        )
        self.squeeze = make_conv(expanded, squeezed, 1, settings.kernel, bias=True)
        self.excite = make_conv(squeezed, expanded, 1, settings.kernel, bias=True)
        self.activation = make_activation(settings.activation)
        self.project = conv_norm_act(expanded, block.out_channels, 1, replace(settings, activation="NONE"))
        # By rows: each image drops or keeps the block. One that changes shapes has no shortcut and cannot be dropped.
        self.drop = StochasticDepth(block.drop_rate) if same else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C', H', W']."""
        features = self.depthwise(self.expand(inputs))
        gate = self.excite(self.activation(self.squeeze(features.mean((2, 3), keepdim=True)))).sigmoid()
        outputs: Tensor = self.project(features * gate)
        return outputs if self.drop is None else self.drop(outputs) + inputs


class EfficientNet(Backbone):
    """A stem and the blocks up to the last level.

    Attributes:
        places: The (stage, block within it) of each block.
        taps_ends: Whether each map is of its stage's last block, as in other implementations than TF's; in B0 it is.
    """

    def __init__(
        self, width: float, depth: float, settings: ConvSettings, *, levels: Sequence[int] = (3, 4, 5)
    ) -> None:
        """Build the network.

        Args:
            levels: Pyramid levels to return (1 to 5), finest first.
        """
        super().__init__()
        last = _TAPS[max(levels)]
        blocks = [block for block in _blocks(width, depth) if block.place <= last]
        self.places = tuple(block.place for block in blocks)
        self.taps = tuple(self.places.index(_TAPS[level]) for level in levels)
        tapped = [_TAPS[level] for level in levels]
        self.taps_ends = all(math.ceil(depth * _STAGES[stage][2]) == block + 1 for stage, block in tapped)
        self.stem = conv_norm_act(3, _round_channels(32, width), 3, settings, stride=2)
        self.blocks = nn.ModuleList([MBConv(block, settings) for block in blocks])
        self.channels = tuple(blocks[tap].out_channels for tap in self.taps)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return one map per level, finest first."""
        features, outputs = self.stem(inputs), []
        for number, block in enumerate(self.blocks):
            features = block(features)
            if number in self.taps:
                outputs.append(features)
        return outputs
