"""SpaghettiNet for EdgeTPU, small, medium and large: a network and pyramid in one, as TF defines them.

Values are rounded to 8 bits in training and inference, as in TF's graphs for integer hardware. Modules are named by
TF's scopes.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.batch_norm import BatchNormSettings
from boxwright.nn.layers import ConvSettings, KernelRule, MaxPool2d, Padding, conv_norm_act, make_conv
from boxwright.nn.network import Backbone
from boxwright.nn.regularization import Regularizer

_LEVELS = 255
_DECAY = 0.999


class FakeQuantized(nn.Module):
    """Rounds to the 256 levels of a range that it averages over training batches; the gradient passes within the range.

    As in TF the average is that of the batches seen, without the range that it starts with.
    """

    minimum: Tensor
    maximum: Tensor
    num_batches_tracked: Tensor

    def __init__(self, minimum: float = 0.0, maximum: float = 6.0) -> None:
        """Start with a range, which holds until training sees a batch."""
        super().__init__()
        self.register_buffer("minimum", torch.tensor(minimum))
        self.register_buffer("maximum", torch.tensor(maximum))
        # A number with a fraction, so that a step that is undone takes it back, too.
        self.register_buffer("num_batches_tracked", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the same shape, rounded."""
        if self.training:
            self._average(inputs.detach())
        low, high = self.minimum, self.maximum
        scale = (high - low) / _LEVELS
        # 0 is a level always, so the range moves by a part of one.
        zero = torch.where(scale > 0, torch.floor(-low / scale + 0.5), 0).clamp(0, _LEVELS)
        within = inputs.clamp(-zero * scale, (_LEVELS - zero) * scale)
        rounded = torch.where(scale > 0, torch.floor(within / scale + 0.5) * scale, 0)
        return (within + (rounded - within).detach()).to(inputs.dtype)

    @torch.no_grad()
    def _average(self, inputs: Tensor) -> None:
        before = self.num_batches_tracked
        # The weights of all batches so far, and of those before this one: 1 - 0.999^n.
        total, earlier = 1 - _DECAY ** (before + 1), _DECAY * (1 - _DECAY**before)
        for stored, seen in ((self.minimum, inputs.min().clamp(max=0)), (self.maximum, inputs.max().clamp(min=0))):
            stored.copy_((earlier * stored + (1 - _DECAY) * seen.float()) / total)
        before.add_(1)


@dataclass(frozen=True)
class _Inverted:
    """Expansion, depthwise convolution, projection."""

    kernel: int
    expansion: int
    stride: int = 1


@dataclass(frozen=True)
class _Grouped:
    """A full convolution of each group of channels, rounded to 8 bits, then a projection of all."""

    expansion: int
    groups: int
    stride: int = 1


@dataclass(frozen=True)
class _Separable:
    """A depthwise convolution with a bias, then a pointwise one."""

    kernel: int
    stride: int = 1


_Layer = _Inverted | _Grouped | _Separable


@dataclass(frozen=True)
class _Node:
    """Layers over the sum of other nodes' outputs; a single input is taken as it is.

    Attributes:
        level: Its stride is 2 to that power; of the last node it only names it.
    """

    name: str
    channels: int
    level: int
    inputs: tuple[str, ...]
    layers: tuple[_Layer, ...]


_STEM = "s0"
_STEM_CHANNELS = 24
_OUTPUTS = ("c0n1", "c0n2", "c0n3", "c0n4", "c0n5")
# Name → level and inputs: the same in all three.
_GRAPH: dict[str, tuple[int, tuple[str, ...]]] = {
    "n0": (2, ("s0",)),
    "n1": (3, ("n0",)),
    "n2": (4, ("n1",)),
    "n3": (5, ("n2",)),
    "n4": (6, ("n3",)),
    "n5": (7, ("n4",)),
    "c0n0": (5, ("n3", "n4")),
    "c0n1": (4, ("n2", "c0n0")),
    "c0n2": (5, ("c0n1", "c0n0")),
    "c0n3": (6, ("n5", "c0n0")),
    "c0n4": (7, ("n5", "c0n0")),
    "c0n5": (8, ("c0n4",)),
}
_IN4, _IN8, _DOWN8 = _Inverted(3, 4), _Inverted(3, 8), _Inverted(3, 8, 2)
_SEP3, _SEP5 = _Separable(3), _Separable(5)
_FIRST = (_Grouped(8, 3, 2),)
# Name of a network → channels and layers of its nodes, in the graph's order.
_NETWORKS: dict[str, tuple[tuple[int, tuple[_Layer, ...]], ...]] = {
    "spaghettinet_edgetpu_s": (
        (48, _FIRST),
        (64, (_Grouped(4, 4, 2), _Grouped(4, 4), _Grouped(4, 4))),
        (72, (_DOWN8, _Grouped(8, 4), _IN8, _IN4)),
        (88, (_DOWN8, _IN8, _IN4, _IN4)),
        (88, (_DOWN8, _SEP5, _SEP5, _SEP5)),
        (88, (_Separable(5, 2), _SEP3)),
        (144, (_IN4, _IN4, _IN4, _IN4)),
        (120, (_IN8, _IN4, _IN4, _IN4)),
        (168, (_IN4,)),
        (136, (_IN4, _SEP3)),
        (136, (_IN4,)),
        (64, (_SEP3, _SEP3)),
    ),
    "spaghettinet_edgetpu_m": (
        (48, _FIRST),
        (64, (_Grouped(8, 4, 2), _Grouped(4, 4), _Grouped(4, 4), _Grouped(4, 4))),
        (72, (_DOWN8, _Grouped(8, 4), _IN8, _IN8)),
        (96, (_DOWN8, _IN8, _IN8, _IN4)),
        (104, (_DOWN8, _IN4, _SEP5, _IN4)),
        (56, (_Separable(5, 2), _SEP3)),
        (152, (_IN8, _IN4, _IN4, _IN4)),
        (120, (_IN8, _IN4, _IN4, _IN4)),
        (168, (_IN4, _SEP3)),
        (136, (_SEP3, _SEP3, _SEP3)),
        (136, (_IN4, _SEP5)),
        (64, (_SEP3, _SEP3)),
    ),
    "spaghettinet_edgetpu_l": (
        (48, _FIRST),
        (64, (_Grouped(8, 4, 2), _Grouped(8, 4), _Grouped(8, 4), _Grouped(4, 4))),
        (80, (_DOWN8, _IN8, _IN8, _IN4)),
        (104, (_DOWN8, _IN8, _IN8, _IN8)),
        (88, (_DOWN8, _Inverted(5, 4), _IN4, _IN8)),
        (56, (_Inverted(5, 4, 2), _SEP5)),
        (160, (_IN8, _IN4, _IN4, _IN4)),
        (120, (_IN8, _IN4, _IN4, _IN8)),
        (168, (_IN4, _IN4, _IN4, _IN4)),
        (112, (_IN8, _IN4, _SEP3)),
        (128, (_IN4, _IN4)),
        (64, (_SEP5, _SEP5)),
    ),
}


def _normal(kernel: Tensor) -> object:
    return nn.init.trunc_normal_(kernel, 0.0, 0.03, -0.06, 0.06)


_RULE = KernelRule(_normal, Regularizer(l2=1e-5))
# TF's SpaghettiNet ignores the configuration's hyperparameters.
_SETTINGS = ConvSettings(kernel=_RULE, depthwise=_RULE, norm=BatchNormSettings(decay=0.97, epsilon=0.001))
_LINEAR = replace(_SETTINGS, activation="NONE")


class _Steps(nn.Module):
    """Named modules in order, to whose result the input is added, if it is a residual."""

    def __init__(self, modules: dict[str, nn.Module], *, residual: bool) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.residual = residual

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs
        for module in self.children():
            outputs = module(outputs)
        return inputs + outputs if self.residual else outputs


class _GroupedConvolution(nn.Module):
    """Convolutions of the groups of channels, concatenated and rounded, then a projection."""

    def __init__(self, channels: int, out: int, layer: _Grouped, padding: Padding, *, residual: bool) -> None:
        super().__init__()
        self.groups, self.residual = layer.groups, residual
        width = channels // layer.groups
        for number in range(layer.groups):
            conv = conv_norm_act(width, width * layer.expansion, 3, _SETTINGS, stride=layer.stride, padding=padding)
            self.add_module(f"slice_{number}", conv)
        self.concat = FakeQuantized()
        self.projection = conv_norm_act(channels * layer.expansion, out, 1, _LINEAR)

    def forward(self, inputs: Tensor) -> Tensor:
        parts = inputs.chunk(self.groups, dim=1)
        convolved = [self.get_submodule(f"slice_{number}")(part) for number, part in enumerate(parts)]
        outputs: Tensor = self.projection(self.concat(torch.cat(convolved, dim=1)))
        return inputs + outputs if self.residual else outputs


def _layer(layer: _Layer, channels: int, out: int, padding: Padding, *, residual: bool) -> nn.Module:
    # Only strided layers are padded explicitly.
    pads: Padding = padding if layer.stride > 1 else "same"
    if isinstance(layer, _Grouped):
        return _GroupedConvolution(channels, out, layer, pads, residual=residual)
    if isinstance(layer, _Separable):
        depthwise: nn.Module = make_conv(
            channels, channels, layer.kernel, _RULE, stride=layer.stride, groups=channels, bias=True, padding=pads
        )
        modules = {"depthwise": depthwise, "pointwise": conv_norm_act(channels, out, 1, _SETTINGS)}
        return _Steps(modules, residual=residual)
    wide = out * layer.expansion
    modules = {
        "expansion": conv_norm_act(channels, wide, 1, _SETTINGS),
        "depthwise": conv_norm_act(
            wide, wide, layer.kernel, _SETTINGS, stride=layer.stride, depthwise=True, padding=pads
        ),
        "projection": conv_norm_act(wide, out, 1, _LINEAR),
    }
    return _Steps(modules, residual=residual)


class _ZeroPaddedMaxPool(nn.Module):
    """Maximum over windows of a map that is padded by zeros, whatever its values, as TF's explicit padding does."""

    def __init__(self, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, stride

    def forward(self, inputs: Tensor) -> Tensor:
        before, after = (self.kernel_size - 1) // 2, self.kernel_size // 2
        return F.max_pool2d(F.pad(inputs, (before, after, before, after)), self.kernel_size, self.stride)


class _Edge(nn.Module):
    """A node's output in another node's channels and level."""

    def __init__(self, source: _Node, target: _Node, padding: Padding) -> None:
        super().__init__()
        steps = target.level - source.level
        self.factor = 2**-steps if steps < 0 else 1
        if steps > 0:
            pool = MaxPool2d if padding == "same" else _ZeroPaddedMaxPool
            self.maxpool_downsampling = pool(2**steps + 1, 2**steps)
        name = {1: "1x1_after_downsampling", 0: "1x1_no_resampling", -1: "1x1_before_upsample"}
        key = (steps > 0) - (steps < 0)
        self.add_module(name[key], conv_norm_act(source.channels, target.channels, 1, _LINEAR))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs
        for module in self.children():
            outputs = module(outputs)
        return F.interpolate(outputs, scale_factor=float(self.factor), mode="nearest") if self.factor > 1 else outputs


class SpaghettiNet(Backbone):
    """A stem and nodes; returns five maps, of strides 16, 32, 64 and twice 128."""

    def __init__(self, name: str, *, padding: Padding = "same", in_channels: int = 3) -> None:
        """Build the network.

        Args:
            name: One of `SPAGHETTINETS`.
            padding: Of strided layers, "same" or "explicit".
        """
        super().__init__()
        self.slim_scope, nodes = name, _nodes(name)
        self.nodes = nodes[1:]
        self.by_name = {node.name: node for node in nodes}
        self.spaghetti_net = nn.Module()
        stem = nn.Module()
        stem.stem = conv_norm_act(in_channels, _STEM_CHANNELS, 5, _SETTINGS, stride=2, padding=padding)
        self.spaghetti_net.stem_node = stem
        for node in self.nodes:
            for source in node.inputs if len(node.inputs) > 1 else ():
                self.add_module(_edge(source, node), _Edge(self.by_name[source], node, padding))
            channels = node.channels if len(node.inputs) > 1 else self.by_name[node.inputs[0]].channels
            for number, layer in enumerate(node.layers):
                module = _layer(layer, channels, node.channels, padding, residual=number > 0)
                self.spaghetti_net.add_module(f"{node.name}_{number}", module)
                channels = node.channels
        self.channels = tuple(self.by_name[output].channels for output in _OUTPUTS)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return five maps, finest first."""
        maps = {_STEM: self.get_submodule("spaghetti_net.stem_node.stem")(inputs)}
        for node in self.nodes:
            outputs = maps[node.inputs[0]] if len(node.inputs) == 1 else self._sum(node, maps)
            for number in range(len(node.layers)):
                outputs = self.spaghetti_net.get_submodule(f"{node.name}_{number}")(outputs)
            maps[node.name] = outputs
        return [maps[output] for output in _OUTPUTS]

    def _sum(self, node: _Node, maps: dict[str, Tensor]) -> Tensor:
        """Return the sum of a node's inputs in its channels, cut to the size of that of the finest, clipped to 0..6."""
        parts = [self.get_submodule(_edge(source, node))(maps[source]) for source in node.inputs]
        levels = [self.by_name[source].level for source in node.inputs]
        height, width = parts[levels.index(min(levels))].shape[-2:]
        first, second = (part[..., :height, :width] for part in parts)
        return F.relu6(first + second)


def _edge(source: str, node: _Node) -> str:
    return f"edge_{source}_{node.name}"


def _nodes(name: str) -> Sequence[_Node]:
    stem = _Node(_STEM, _STEM_CHANNELS, 1, (), ())
    rows = zip(_GRAPH.items(), _NETWORKS[name], strict=True)
    return [stem, *(_Node(node, width, level, inputs, layers) for (node, (level, inputs)), (width, layers) in rows)]


SPAGHETTINETS = tuple(_NETWORKS)
