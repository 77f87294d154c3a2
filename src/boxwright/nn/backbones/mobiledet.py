"""MobileDet (Xiong et al., 2021): networks searched for detection on four kinds of hardware, as TF defines them.

Modules are named by TF's scopes, with a number for each kind of block.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from torch import Tensor, nn

from boxwright.nn.backbones.mobilenet_v3 import SqueezeExcite
from boxwright.nn.batch_norm import BatchNormSettings
from boxwright.nn.layers import ConvSettings, KernelRule, conv_norm_act
from boxwright.nn.network import Backbone
from boxwright.nn.regularization import Regularizer


@dataclass(frozen=True)
class _Inverted:
    """Expansion (none for 0), depthwise convolution, squeeze and excite if the network has it, projection."""

    kernel: int
    stride: int
    expansion: int
    channels: int
    residual: bool = True


@dataclass(frozen=True)
class _Fused:
    """Expansion by a full convolution, then projection."""

    kernel: int
    stride: int
    expansion: int
    channels: int
    residual: bool = True


@dataclass(frozen=True)
class _Tucker:
    """A compressed full convolution: reduction, convolution, projection."""

    into: float
    out: float
    channels: int
    residual: bool = True


Block = _Inverted | _Fused | _Tucker


@dataclass(frozen=True)
class MobileDetLayout:
    """A network.

    Attributes:
        squeezes: Whether inverted blocks have squeeze and excite.
        blocks: The following blocks, down to stride 32.
        middle: The number of blocks up to the map of stride 16.
    """

    scope: str
    stem: int
    activation: str
    squeezes: bool
    blocks: tuple[Block, ...]
    middle: int


MOBILEDETS = {
    "cpu": MobileDetLayout(
        scope="MobileDetCPU",
        stem=16,
        activation="HARD_SWISH",
        squeezes=True,
        blocks=(
            _Inverted(3, 1, 0, 8, residual=False),
            _Inverted(3, 2, 4, 16, residual=False),
            _Inverted(3, 2, 8, 32, residual=False),
            *[_Inverted(3, 1, 4, 32)] * 3,
            _Inverted(5, 2, 8, 72, residual=False),
            _Inverted(3, 1, 8, 72),
            _Inverted(5, 1, 4, 72),
            _Inverted(3, 1, 4, 72),
            _Inverted(3, 1, 8, 72, residual=False),
            *[_Inverted(3, 1, 8, 72)] * 3,
            _Inverted(5, 2, 8, 104, residual=False),
            *[_Inverted(5, 1, 4, 104)] * 2,
            _Inverted(3, 1, 4, 104),
            _Inverted(3, 1, 8, 144, residual=False),
        ),
        middle=14,
    ),
    "dsp": MobileDetLayout(
        scope="MobileDetDSP",
        stem=32,
        activation="RELU_6",
        squeezes=False,
        blocks=(
            _Inverted(3, 1, 0, 24, residual=False),
            _Fused(3, 2, 4, 32, residual=False),
            _Fused(3, 1, 4, 32),
            _Inverted(3, 1, 4, 32),
            _Tucker(0.25, 0.75, 32),
            _Fused(3, 2, 8, 64, residual=False),
            _Inverted(3, 1, 4, 64),
            *[_Fused(3, 1, 4, 64)] * 2,
            _Fused(3, 2, 8, 120, residual=False),
            _Inverted(3, 1, 4, 120),
            *[_Inverted(3, 1, 8, 120)] * 2,
            _Fused(3, 1, 8, 144, residual=False),
            *[_Inverted(3, 1, 8, 144)] * 3,
            _Inverted(3, 2, 4, 160, residual=False),
            _Inverted(3, 1, 4, 160),
            _Fused(3, 1, 4, 160),
            _Tucker(0.75, 0.75, 160),
            _Inverted(3, 1, 8, 240, residual=False),
        ),
        middle=17,
    ),
    "edgetpu": MobileDetLayout(
        scope="MobileDetEdgeTPU",
        stem=32,
        activation="RELU_6",
        squeezes=False,
        blocks=(
            _Tucker(0.25, 0.75, 16, residual=False),
            _Fused(3, 2, 8, 16, residual=False),
            _Fused(3, 1, 4, 16),
            _Fused(3, 1, 8, 16),
            _Fused(3, 1, 4, 16),
            _Fused(5, 2, 8, 40, residual=False),
            *[_Fused(3, 1, 4, 40)] * 3,
            _Inverted(3, 2, 8, 72, residual=False),
            _Inverted(3, 1, 8, 72),
            *[_Fused(3, 1, 4, 72)] * 2,
            _Inverted(5, 1, 8, 96, residual=False),
            _Inverted(5, 1, 8, 96),
            *[_Inverted(3, 1, 8, 96)] * 2,
            _Inverted(5, 2, 8, 120, residual=False),
            _Inverted(3, 1, 8, 120),
            _Inverted(5, 1, 4, 120),
            _Inverted(3, 1, 8, 120),
            _Inverted(5, 1, 8, 384, residual=False),
        ),
        middle=17,
    ),
    "gpu": MobileDetLayout(
        scope="MobileDetGPU",
        stem=32,
        activation="RELU_6",
        squeezes=False,
        blocks=(
            _Tucker(0.25, 0.25, 16, residual=False),
            _Fused(3, 2, 8, 32, residual=False),
            *[_Tucker(0.25, 0.25, 32)] * 3,
            _Fused(3, 2, 8, 64, residual=False),
            *[_Fused(3, 1, 8, 64)] * 2,
            _Fused(3, 1, 4, 64),
            _Fused(3, 2, 8, 128, residual=False),
            *[_Fused(3, 1, 4, 128)] * 3,
            _Fused(3, 1, 8, 128, residual=False),
            *[_Fused(3, 1, 8, 128)] * 3,
            _Fused(3, 2, 4, 128, residual=False),
            *[_Fused(3, 1, 4, 128)] * 3,
            _Inverted(3, 1, 8, 384, residual=False),
        ),
        middle=17,
    ),
}


def _he_normal(kernel: Tensor) -> object:
    """Fill a kernel by its fan-in, which for a depthwise kernel is one window."""
    inputs = math.prod(kernel.shape[1:]) if kernel.shape[0] > 1 else math.prod(kernel.shape[2:])
    # The deviation of a standard normal cut at ±2, by which TF divides so that the cut one has the wanted deviation.
    deviation = math.sqrt(2 / inputs) / 0.87962566103423978
    return nn.init.trunc_normal_(kernel, 0.0, deviation, -2 * deviation, 2 * deviation)


# TF's MobileDets ignore the configuration's hyperparameters.
_RULE = KernelRule(_he_normal, Regularizer(l2=4e-5))
_SETTINGS = ConvSettings(kernel=_RULE, depthwise=_RULE, norm=BatchNormSettings(decay=0.99, epsilon=0.01))


def _scaled(channels: int, factor: float) -> int:
    """Return scaled channels, rounded half up to a multiple of 8, at least 8."""
    # Not Python's `round`, which takes halves to the even number.
    return max(8, 8 * int(channels * factor / 8 + 0.5))


class _Residual(nn.Module):
    """A sequence of layers, with a residual connection if the layout has one."""

    def __init__(self, layers: dict[str, nn.Module], *, residual: bool) -> None:
        """Keep the layers."""
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.residual = residual

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C', H', W']."""
        outputs = inputs
        for layer in self.children():
            outputs = layer(outputs)
        return inputs + outputs if self.residual else outputs


class MobileDet(Backbone):
    """A stem and blocks; returns the maps of strides 16 and 32."""

    def __init__(self, layout: MobileDetLayout, *, depth_multiplier: float = 1.0, in_channels: int = 3) -> None:
        """Build the network.

        Args:
            layout: One of `MOBILEDETS`.
        """
        super().__init__()
        settings = replace(_SETTINGS, activation=layout.activation)
        channels = _scaled(layout.stem, depth_multiplier)
        self.Conv = conv_norm_act(in_channels, channels, 3, settings, stride=2)
        self.slim_scope, self.middle = layout.scope, layout.middle
        counts: Counter[str] = Counter()
        widths = []
        for block in layout.blocks:
            out = _scaled(block.channels, depth_multiplier)
            kind, layers = _layers(block, channels, out, settings, squeezes=layout.squeezes)
            name = f"{kind}_{counts[kind]}" if counts[kind] else kind
            counts[kind] += 1
            self.add_module(name, _Residual(layers, residual=block.residual))
            channels = out
            widths.append(out)
        self.channels = (widths[layout.middle - 1], widths[-1])

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the maps of strides 16 and 32."""
        stem, *blocks = self.children()
        features, outputs = stem(inputs), []
        for number, block in enumerate(blocks, start=1):
            features = block(features)
            if number in (self.middle, len(blocks)):
                outputs.append(features)
        return outputs


def _layers(
    block: Block, channels: int, out: int, settings: ConvSettings, *, squeezes: bool
) -> tuple[str, dict[str, nn.Module]]:
    """Return a block's kind and its layers by TF's scopes."""
    linear = replace(settings, activation="NONE")
    if isinstance(block, _Tucker):
        into, outof = _scaled(channels, block.into), _scaled(out, block.out)
        return "TuckerConv", {
            "Conv": conv_norm_act(channels, into, 1, settings),
            "Conv_1": conv_norm_act(into, outof, 3, settings),
            "Conv_2": conv_norm_act(outof, out, 1, linear),
        }
    expanded = channels * max(block.expansion, 1)
    if isinstance(block, _Fused):
        return "FusedConv", {
            "Conv": conv_norm_act(channels, expanded, block.kernel, settings, stride=block.stride),
            "Conv_1": conv_norm_act(expanded, out, 1, linear),
        }
    layers: dict[str, nn.Module] = {}
    if block.expansion:
        layers["Conv"] = conv_norm_act(channels, expanded, 1, settings)
    layers["SeparableConv2d"] = conv_norm_act(
        expanded, expanded, block.kernel, settings, stride=block.stride, depthwise=True
    )
    if squeezes:
        squeezed = _scaled(expanded, 0.25)
        layers["SqueezeExcite"] = SqueezeExcite(expanded, squeezed, settings.kernel, settings.activation, nn.Sigmoid())
    # TF-Slim numbers scopes by their use, so the projection's name depends on the layers before it.
    layers["Conv_1" if block.expansion else "Conv"] = conv_norm_act(expanded, out, 1, linear)
    return ("IBN" if block.expansion else "IBNNoExpansion"), layers
