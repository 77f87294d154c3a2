"""MobileNetV3 (Howard et al., 2019, tables 1 and 2) and MobileNet-EdgeTPU, as TF-Slim lays them out for detection.

For detection the channels after stride 32 are halved. Modules are named by TF-Slim's scopes.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.backbones.mobilenet_v2 import divisible
from boxwright.nn.layers import ConvSettings, KernelRule, conv_norm_act, make_activation, make_conv
from boxwright.nn.network import Backbone


class SqueezeExcite(nn.Module):
    """Two 1×1 convolutions with biases on the mean of each channel, named as TF-Slim's."""

    def __init__(self, channels: int, squeezed: int, rule: KernelRule, activation: str, gate: nn.Module) -> None:
        """Make the layers; `gate` follows the second."""
        super().__init__()
        self.Conv = make_conv(channels, squeezed, 1, rule, bias=True)
        self.activation = make_activation(activation)
        self.Conv_1 = make_conv(squeezed, channels, 1, rule, bias=True)
        self.gate = gate

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the same shape."""
        gates: Tensor = self.gate(self.Conv_1(self.activation(self.Conv(inputs.mean((2, 3), keepdim=True)))))
        return inputs * gates


@dataclass(frozen=True)
class _Block:
    """An inverted residual block.

    Attributes:
        expansion: Expanded channels per input channel; 1 for no expansion.
        fused: Whether expansion and spatial kernel are one full convolution.
        residual: Whether the input is added if shapes match.
    """

    kernel: int
    stride: int
    expansion: float
    channels: int
    activation: str
    squeezes: bool = False
    fused: bool = False
    residual: bool = True


@dataclass(frozen=True)
class MobileNetV3Layout:
    """A network.

    Attributes:
        last: Channels of the last convolution, 1×1; 0 for none.
    """

    scope: str
    stem: int
    activation: str
    blocks: tuple[_Block, ...]
    last: int


_RELU, _SWISH = "RELU", "HARD_SWISH"

MOBILENET_V3_LARGE = MobileNetV3Layout(
    "MobilenetV3",
    16,
    _SWISH,
    (
        _Block(3, 1, 1, 16, _RELU),
        _Block(3, 2, 4, 24, _RELU),
        _Block(3, 1, 3, 24, _RELU),
        _Block(5, 2, 3, 40, _RELU, squeezes=True),
        *[_Block(5, 1, 3, 40, _RELU, squeezes=True)] * 2,
        _Block(3, 2, 6, 80, _SWISH),
        _Block(3, 1, 2.5, 80, _SWISH),
        # The paper's table gives expanded channels, of which 184 is no round multiple of 80.
        *[_Block(3, 1, 184 / 80, 80, _SWISH)] * 2,
        *[_Block(3, 1, 6, 112, _SWISH, squeezes=True)] * 2,
        _Block(5, 2, 6, 80, _SWISH, squeezes=True),
        *[_Block(5, 1, 6, 80, _SWISH, squeezes=True)] * 2,
    ),
    480,
)
MOBILENET_V3_SMALL = MobileNetV3Layout(
    "MobilenetV3",
    16,
    _SWISH,
    (
        _Block(3, 2, 1, 16, _RELU, squeezes=True),
        _Block(3, 2, 72 / 16, 24, _RELU),
        _Block(3, 1, 88 / 24, 24, _RELU),
        _Block(5, 2, 4, 40, _SWISH, squeezes=True),
        *[_Block(5, 1, 6, 40, _SWISH, squeezes=True)] * 2,
        *[_Block(5, 1, 3, 48, _SWISH, squeezes=True)] * 2,
        _Block(5, 2, 6, 48, _SWISH, squeezes=True),
        *[_Block(5, 1, 6, 48, _SWISH, squeezes=True)] * 2,
    ),
    288,
)
MOBILENET_EDGETPU = MobileNetV3Layout(
    "MobilenetEdgeTPU",
    32,
    _RELU,
    (
        _Block(3, 1, 1, 16, _RELU, fused=True),
        _Block(3, 2, 8, 32, _RELU, fused=True),
        *[_Block(3, 1, 4, 32, _RELU, fused=True)] * 3,
        _Block(3, 2, 8, 48, _RELU, fused=True),
        *[_Block(3, 1, 4, 48, _RELU, fused=True)] * 3,
        _Block(3, 2, 8, 96, _RELU),
        *[_Block(3, 1, 4, 96, _RELU)] * 3,
        _Block(3, 1, 8, 96, _RELU, residual=False),
        *[_Block(3, 1, 4, 96, _RELU)] * 3,
        _Block(5, 2, 8, 160, _RELU),
        *[_Block(5, 1, 4, 160, _RELU)] * 3,
        _Block(3, 1, 8, 192, _RELU),
    ),
    0,
)


class _Gate(nn.Module):
    """TF-Slim's hard sigmoid, which multiplies with a rounded 1/6."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the same shape, in 0..1."""
        return F.relu6(inputs + 3) * 0.16667


class _InvertedResidual(nn.Module):
    """Expansion, spatial convolution, squeeze and excite, projection; adds the input if shapes match."""

    def __init__(self, block: _Block, in_channels: int, out_channels: int, settings: ConvSettings) -> None:
        """Build the block."""
        super().__init__()
        expanded = divisible(in_channels * block.expansion)
        settings = replace(settings, activation=block.activation)
        kernel, stride = block.kernel, block.stride
        self.expand: nn.Module | None = None
        if block.fused and expanded > in_channels:
            self.expand = conv_norm_act(in_channels, expanded, kernel, settings, stride=stride)
        elif expanded > in_channels:
            self.expand = conv_norm_act(in_channels, expanded, 1, settings)
        self.depthwise: nn.Module | None = None
        if not block.fused:
            self.depthwise = conv_norm_act(expanded, expanded, kernel, settings, stride=stride, depthwise=True)
        self.squeeze_excite: nn.Module | None = None
        if block.squeezes:
            squeezed = divisible(expanded / 4)
            self.squeeze_excite = SqueezeExcite(expanded, squeezed, settings.kernel, "RELU", _Gate())
        self.project = conv_norm_act(expanded, out_channels, 1, replace(settings, activation="NONE"))
        self.residual = block.residual and stride == 1 and in_channels == out_channels
        self.expanded = expanded

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the expanded features and the output; SSD taps the former."""
        expanded = inputs if self.expand is None else self.expand(inputs)
        features = expanded if self.depthwise is None else self.depthwise(expanded)
        if self.squeeze_excite is not None:
            features = self.squeeze_excite(features)
        outputs = self.project(features)
        return expanded, inputs + outputs if self.residual else outputs


class MobileNetV3(Backbone):
    """A stem, inverted residual blocks and, except in EdgeTPU's, a 1×1 convolution."""

    def __init__(
        self,
        layout: MobileNetV3Layout,
        settings: ConvSettings,
        *,
        taps: Sequence[str],
        depth_multiplier: float = 1.0,
        min_depth: int = 8,
        in_channels: int = 3,
    ) -> None:
        """Build the network.

        Args:
            taps: Outputs to return: "i" for block i, counted from 0, "i/expand" for its expanded features, or "last"
                for the last convolution.
            min_depth: The minimum channels of any layer except expansions.
        """
        super().__init__()
        self.slim_scope, self.taps = layout.scope, tuple(taps)

        def depth(channels: int) -> int:
            return divisible(channels * depth_multiplier, min_depth)

        ends = replace(settings, activation=layout.activation)
        channels = depth(layout.stem)
        self.Conv = conv_norm_act(in_channels, channels, 3, ends, stride=2)
        widths: dict[str, int] = {}
        self.blocks: list[str] = []
        for number, block in enumerate(layout.blocks):
            self.blocks.append(f"expanded_conv_{number}" if number else "expanded_conv")
            module = _InvertedResidual(block, channels, depth(block.channels), settings)
            self.add_module(self.blocks[-1], module)
            channels = depth(block.channels)
            widths[f"{number}/expand"], widths[str(number)] = module.expanded, channels
        self.Conv_1 = conv_norm_act(channels, depth(layout.last), 1, ends) if layout.last else None
        widths["last"] = depth(layout.last)
        self.channels = tuple(widths[tap] for tap in self.taps)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return one map per tap, in the order of the taps."""
        features = self.Conv(inputs)
        maps: dict[str, Tensor] = {}
        for number, name in enumerate(self.blocks):
            maps[f"{number}/expand"], features = self.get_submodule(name)(features)
            maps[str(number)] = features
        if self.Conv_1 is not None:
            maps["last"] = self.Conv_1(features)
        return [maps[tap] for tap in self.taps]
