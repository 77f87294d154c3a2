"""MnasFPN (Chen et al., 2020, figure 5): a pyramid searched for mobile hardware.

Modules are named by TF's scopes. Nodes 0 to 3 of a cell are its inputs, of levels 3 to 6; each block adds one.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.batch_norm import BatchNormSettings, make_norm
from boxwright.nn.layers import ConvSettings, KernelRule, MaxPool2d, conv_norm_act, separable_conv
from boxwright.nn.regularization import Regularizer

_LEVELS = (3, 4, 5, 6)
_CELLS = 4


@dataclass(frozen=True)
class _Block:
    """A block, which combines two nodes.

    Attributes:
        kernel: The side of the separable convolution's kernel.
        expansion: Channels that both inputs are projected to.
    """

    inputs: tuple[int, int]
    level: int
    kernel: int
    expansion: int


_BLOCKS = (
    _Block((1, 2), 4, 3, 256),
    _Block((0, 4), 3, 3, 128),
    _Block((5, 4), 4, 3, 128),
    _Block((4, 3), 5, 5, 128),
    _Block((4, 3), 6, 3, 96),
)
# The level of every node, and the nodes that a cell returns: one per level.
_NODE_LEVELS = (*_LEVELS, *(block.level for block in _BLOCKS))
_OUTPUTS = (5, 6, 7, 8)


class _Input(nn.Module):
    """Resize and project one input of a block."""

    def __init__(self, in_channels: int, out_channels: int, steps: int, settings: ConvSettings) -> None:
        super().__init__()
        self.steps = steps
        self.pool = MaxPool2d(3, 2**steps) if steps > 0 else nn.Identity()
        self.Conv1x1 = conv_norm_act(in_channels, out_channels, 1, replace(settings, activation="NONE"))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.Conv1x1(self.pool(inputs))
        # The cheaper order: projected before it is enlarged, and shrunk before it is projected.
        return F.interpolate(outputs, scale_factor=2.0**-self.steps, mode="nearest") if self.steps < 0 else outputs


class _Node(nn.Module):
    """Add two inputs, clip to 0..6, convolve."""

    def __init__(self, inputs: Sequence[_Input], expansion: int, depth: int, kernel: int, settings: ConvSettings):
        super().__init__()
        self.input_0, self.input_1 = inputs
        self.SepConv = nn.Sequential(
            separable_conv(expansion, depth, kernel, settings), make_norm(depth, settings.norm)
        )

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        outputs: Tensor = self.SepConv(F.relu6(self.input_0(first) + self.input_1(second)))
        return outputs


class _Cell(nn.Module):
    """Five blocks; levels whose shape does not change have a residual connection."""

    def __init__(
        self, in_channels: Sequence[int], depth: int, scaled: Callable[[int], int], settings: ConvSettings
    ) -> None:
        super().__init__()
        widths = list(in_channels)
        for number, block in enumerate(_BLOCKS):
            expansion = scaled(block.expansion)
            inputs = [
                _Input(widths[node], expansion, block.level - _NODE_LEVELS[node], settings) for node in block.inputs
            ]
            self.add_module(f"block_{number}", _Node(inputs, expansion, depth, block.kernel, settings))
            widths.append(depth)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        nodes = list(features)
        for number, block in enumerate(_BLOCKS):
            first, second = (nodes[node] for node in block.inputs)
            nodes.append(self.get_submodule(f"block_{number}")(first, second))
        pairs = zip(features, (nodes[node] for node in _OUTPUTS), strict=True)
        return [before + after if before.shape == after.shape else after for before, after in pairs]


class MnasFpn(nn.Module):
    """A coarser level from the backbone's last, then four cells."""

    def __init__(self, in_channels: Sequence[int], depth: int, scaled: Callable[[int], int]) -> None:
        """Build the pyramid.

        Args:
            in_channels: Channels of the backbone's maps of levels 3 to 5.
        """
        super().__init__()
        linear = replace(_SETTINGS, activation="NONE")
        # TF switches the regularizer off for this one layer.
        unpenalized = replace(linear, kernel=replace(linear.kernel, regularizer=Regularizer()))
        self.pool = MaxPool2d(3, 2)
        self.C6_Conv1x1 = conv_norm_act(in_channels[-1], depth, 1, unpenalized)
        widths = [*in_channels, depth]
        for number in range(_CELLS):
            self.add_module(f"cell_{number}", _Cell(widths, depth, scaled, _SETTINGS))
            widths = [depth] * len(_LEVELS)
        self.channels = (depth,) * len(_LEVELS)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return levels 3 to 6; height and width of the finest are multiples of 8."""
        levels = [*features, self.C6_Conv1x1(self.pool(features[-1]))]
        for number in range(_CELLS):
            levels = cast(list[Tensor], self.get_submodule(f"cell_{number}")(levels))
        return levels


def _he_normal(kernel: Tensor) -> object:
    return nn.init.kaiming_normal_(kernel, nonlinearity="relu")


def _separable(kernel: Tensor) -> object:
    # He's deviation for a 3×3 depthwise kernel; TF-Slim initializes the pointwise half by the same.
    return nn.init.trunc_normal_(kernel, 0.0, 0.536, -1.072, 1.072)


_PENALTY = Regularizer(l2=1e-4)
# TF's MnasFPN ignores the configuration's hyperparameters.
_SETTINGS = ConvSettings(
    kernel=KernelRule(_he_normal, _PENALTY),
    separable_depthwise=KernelRule(_separable, _PENALTY),
    separable_pointwise=KernelRule(_separable, _PENALTY),
    norm=BatchNormSettings(decay=0.99, epsilon=0.01),
)
