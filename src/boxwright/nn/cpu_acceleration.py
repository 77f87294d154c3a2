"""Layers with faster algorithms on a CPU, equal up to float32 rounding.

`accelerate_for_cpu` replaces the plain layers (`layers.py`) of a network that may gain. A replaced layer still computes
as the plain one on other devices, in compiled or exported graphs, under autocast and for small inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.backbones.efficientnet import MBConv
from boxwright.nn.backbones.hgnetv2 import ConvNormRelu, LearnedAffine
from boxwright.nn.backbones.mobilenet_v2 import InvertedResidual
from boxwright.nn.backbones.resnet_v1 import Bottleneck
from boxwright.nn.batch_norm import BatchNorm2d
from boxwright.nn.compiled_depthwise import expand_and_convolve, gains_from_depthwise, is_expanded_depthwise
from boxwright.nn.compiled_norm import (
    gains_from_kernel,
    is_added,
    is_kernels,
    normalize_activate_and_scale,
    normalize_add_and_activate,
    normalize_and_activate,
)
from boxwright.nn.expansion import expand_normalized, gains_from_covariance, is_expansion
from boxwright.nn.gated_projection import gains_from_weighted_kernel, is_projection, project_gated
from boxwright.nn.layers import Conv2d, ConvNormAct, have_hooks
from boxwright.nn.ops import depthwise, norm_act, winograd, winograd_tiles
from boxwright.nn.winograd import gains_from_winograd, is_wide_3x3

KERNELS: dict[str, Callable[[], object]] = {
    "norm_act": norm_act.kernels,
    "depthwise": depthwise.kernels,
    "residual": norm_act.kernels,
    "affine": norm_act.kernels,
    "winograd": winograd_tiles.kernels,
}
"""What compiles each kernel: returns its functions, or the `CompilerError`."""


def accelerate_for_cpu(network: nn.Module) -> None:
    """Replace the layers that may gain; weights, names and hooks stay, and the network remains trainable."""
    for module in network.modules():
        # By class: a wrapper would rename weights, and a method set on an object is lost in copies.
        if type(module) is Conv2d and is_wide_3x3(module):
            module.__class__ = CompiledWinogradConv2d
        elif type(module) is ConvNormAct and is_expansion(*module[:2]):
            module.__class__ = ExpansionNormAct
        elif type(module) is ConvNormAct and is_kernels(*module[1:]):
            module.__class__ = CompiledNormAct
        elif type(module) is InvertedResidual and is_expanded_depthwise(module.expand, module.depthwise):
            module.__class__ = CompiledInvertedResidual
        elif type(module) is MBConv and is_expanded_depthwise(module.expand, module.depthwise):
            module.__class__ = CompiledMBConv
        elif type(module) is Bottleneck and is_added(module.expand, module.activation):
            module.__class__ = CompiledBottleneck
        elif type(module) is ConvNormRelu and type(module.lab) is LearnedAffine and is_kernels(module.bn, nn.ReLU()):
            module.__class__ = CompiledConvNormRelu


def compiled_kernels(network: nn.Module) -> tuple[str, ...]:
    """Return the names of the compiled kernels that a network trains with, of `KERNELS`."""
    return tuple(name for name in _kernels_of(network) if not isinstance(KERNELS[name](), CompilerError))


def compiler_problem(network: nn.Module) -> CompilerError | None:
    """Return why a kernel that a network would train with cannot be compiled, or None."""
    results = (KERNELS[name]() for name in _kernels_of(network))
    return next((result for result in results if isinstance(result, CompilerError)), None)


def _kernels_of(network: nn.Module) -> tuple[str, ...]:
    if next(network.parameters()).device.type != "cpu":
        return ()
    used = {_kernel_of(module) for module in network.modules()}
    return tuple(name for name in KERNELS if name in used)


def use_kernels(network: nn.Module, names: Collection[str]) -> None:
    """Let PyTorch's operators compute what the compiled kernels of other names do."""
    for module in network.modules():
        name = _kernel_of(module)
        if name is not None and name not in names:
            module.__class__ = type(module).__bases__[0]


def _kernel_of(module: nn.Module) -> str | None:
    return _KERNEL_OF.get(type(module))


class WinogradOrDirectConv2d(Conv2d):
    """A wide convolution of 3×3, with a quarter of the multiplications where that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, C', H, W]."""
        if gains_from_winograd(self, input):
            return winograd.conv_3x3(input, self.weight, self.bias)
        return super().forward(input)


class CompiledWinogradConv2d(WinogradOrDirectConv2d):
    """The same, whose maps and kernels are transformed in one pass each where a C compiler is found."""

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, C', H, W]."""
        if gains_from_winograd(self, input) and not isinstance(winograd_tiles.kernels(), CompilerError):
            return winograd_tiles.conv_3x3(input, self.weight, self.bias)
        return super().forward(input)


class ExpansionNormAct(ConvNormAct):
    """A 1×1 convolution to many channels, whose batch statistics are computed from the few input channels."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the last layer's output."""
        conv, norm, activation = self
        if gains_from_covariance(conv, norm, input):
            output = expand_normalized(input, cast(Conv2d, conv), cast(BatchNorm2d, norm))
        else:
            output = norm(conv(input))
        return cast(Tensor, activation(output))


class CompiledNormAct(ConvNormAct):
    """A convolution, and its normalization and activation in one pass over the map where a C compiler is found."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the last layer's output."""
        conv, norm, activation = self
        return _normalized(conv(input), norm, activation)


class CompiledInvertedResidual(InvertedResidual):
    """MobileNetV2's block, whose expanded map is read once where a C compiler is found."""

    def convolve(self, inputs: Tensor) -> Tensor:
        """Return the depthwise convolution's features."""
        return _convolved(inputs, self.expand, self.depthwise, super().convolve)


class CompiledMBConv(MBConv):
    """EfficientNet's block, whose expanded map is read once where a C compiler is found; its gates weight a kernel."""

    def convolve(self, inputs: Tensor) -> Tensor:
        """Return the depthwise convolution's features."""
        return _convolved(inputs, self.expand, self.depthwise, super().convolve)

    def project_gated(self, features: Tensor, gate: Tensor) -> Tensor:
        """Return the projection of the weighted features."""
        if not (is_projection(self.project) and gains_from_weighted_kernel(self.project, features)):
            return super().project_gated(features, gate)
        conv, norm, activation = self.project
        return _normalized(project_gated(features, gate, cast(Conv2d, conv)), norm, activation)


def _convolved(inputs: Tensor, expand: nn.Module, depthwise: ConvNormAct, plain: Callable[[Tensor], Tensor]) -> Tensor:
    expansion = cast(ConvNormAct, expand)
    if not gains_from_depthwise(expansion, depthwise, inputs):
        return plain(inputs)
    conv, norm, activation = depthwise
    return _normalized(expand_and_convolve(inputs, expansion, cast(Conv2d, conv)), norm, activation)


class CompiledConvNormRelu(ConvNormRelu):
    """HGNetV2's layer, which is normalized, activated, scaled and shifted in one pass."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, H', W']."""
        maps, lab = self.conv(inputs), cast(LearnedAffine, self.lab)
        if gains_from_kernel(self.bn, lab, maps):
            return normalize_activate_and_scale(maps, cast(BatchNorm2d, self.bn), lab.scale, lab.bias)
        return cast(Tensor, lab(functional.relu(self.bn(maps))))


class CompiledBottleneck(Bottleneck):
    """ResNet's block, whose last map is normalized, added to the shortcut and activated in one pass."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C', H', W']."""
        maps, shortcut = self.convolve(self.reduce(inputs)), self.shortcut(inputs)
        conv, norm, inner = self.expand
        if have_hooks(self.expand, inner):
            return cast(Tensor, self.activation(self.expand(maps) + shortcut))
        maps = conv(maps)
        if gains_from_kernel(norm, self.activation, maps) and gains_from_kernel(norm, self.activation, shortcut):
            return normalize_add_and_activate(maps, cast(BatchNorm2d, norm), shortcut, self.activation)
        return cast(Tensor, self.activation(_normalized(maps, norm, inner) + shortcut))


def _normalized(maps: Tensor, norm: nn.Module, activation: nn.Module) -> Tensor:
    if gains_from_kernel(norm, activation, maps):
        return normalize_and_activate(maps, cast(BatchNorm2d, norm), activation)
    return cast(Tensor, activation(norm(maps)))


_KERNEL_OF: dict[type[nn.Module], str] = {
    CompiledNormAct: "norm_act",
    CompiledBottleneck: "residual",
    CompiledConvNormRelu: "affine",
    CompiledInvertedResidual: "depthwise",
    CompiledMBConv: "depthwise",
    CompiledWinogradConv2d: "winograd",
}
