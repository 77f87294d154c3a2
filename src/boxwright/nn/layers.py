"""Convolutions, padding and activations as TensorFlow computes them.

TF's SAME padding puts the odd pixel below and right where PyTorch's symmetric padding puts it above and left; with
stride 2 the two read different pixels. These layers reproduce the numbers of a trained TF network.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.batch_norm import BatchNormSettings, NormSettings, make_norm
from boxwright.nn.ops import native
from boxwright.nn.regularization import Regularizer

Activation = str


class _ClampInPlace(torch.autograd.Function):
    """Clamp to 0..6 in place, saving only the output for backward; PyTorch's in-place version also copies the input."""

    @staticmethod
    def forward(context: Any, inputs: Tensor) -> Tensor:
        outputs = inputs.clamp_(0, 6)
        context.mark_dirty(outputs)
        context.save_for_backward(outputs)
        return outputs

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (outputs,) = context.saved_tensors
        passed: Tensor = torch.ops.aten.hardtanh_backward(gradient, outputs, 0.0, 6.0)
        return passed


class ReLU6(nn.Module):
    """min(max(x, 0), 6), in place."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input, clamped in place."""
        # Without gradients nothing is saved, and PyTorch's own in-place operation copies nothing either.
        if input.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            clamped: Tensor = _ClampInPlace.apply(input)
            return clamped
        return F.relu6(input, inplace=True)  # a compiler fuses it into the preceding operation


_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "NONE": nn.Identity,
    "RELU": lambda: nn.ReLU(inplace=True),
    "RELU_6": ReLU6,
    "SWISH": lambda: nn.SiLU(inplace=True),
    "HARD_SWISH": lambda: nn.Hardswish(inplace=True),
}


def make_activation(name: Activation) -> nn.Module:
    """Return the activation of TF's name NONE, RELU, RELU_6 or SWISH, or HARD_SWISH."""
    return _ACTIVATIONS[name]()


Sides = tuple[int, int, int, int]
"""Pixels left, right, above and below, in the order of `F.pad`."""


def same_padding(input: Tensor, kernel_size: tuple[int, ...], stride: int) -> Sides:
    """Return TF's SAME padding of maps; the odd pixel is right and below."""
    height, width = (
        max((-(-size // stride) - 1) * stride + side - size, 0)
        for size, side in zip(input.shape[-2:], kernel_size, strict=True)
    )
    return width // 2, width - width // 2, height // 2, height - height // 2


def padded_to_multiple(inputs: Tensor, multiple: int) -> Tensor:
    """Return images [B, C, H, W] padded with zeros below and right to multiples of a number."""
    below, right = -inputs.shape[-2] % multiple, -inputs.shape[-1] % multiple
    return F.pad(inputs, (0, right, 0, below)) if below or right else inputs


def zero_padded(input: Tensor, sides: Sides) -> Tensor:
    """Return maps [B, C, H, W] padded with zeros; the input itself without padding."""
    if torch.compiler.is_compiling():  # checked before sizes, which may be dynamic in a graph
        return F.pad(input, sides)
    if not any(sides):
        return input
    if input.is_meta:
        return F.pad(input, sides)
    padded: Tensor = _ZeroPad.apply(input, sides)
    return padded


class _ZeroPad(torch.autograd.Function):
    """`F.pad` whose gradient is a view, not a copy, of the incoming gradient."""

    @staticmethod
    def forward(context: Any, input: Tensor, sides: Sides) -> Tensor:
        left, right, above, below = sides
        batch, channels, height, width = input.shape
        output = torch.empty(
            (batch, channels, above + height + below, left + width + right),
            dtype=input.dtype,
            device=input.device,
            memory_format=torch.contiguous_format if input.is_contiguous() else torch.channels_last,
        )
        inside = (..., slice(above, above + height), slice(left, left + width))
        if input.device.type == "cuda":
            output.fill_(0)  # as fast as a border, in one launch
        else:
            output[..., :above, :], output[..., above + height :, :] = 0, 0
            output[..., :left], output[..., left + width :] = 0, 0
        output[inside] = input
        context.inside = inside
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[context.inside], None


Padding = Literal["same", "explicit", "valid"] | int
KernelSize = int | tuple[int, int]

# A step gains from Winograd's algorithm from so many channels, and tiles of 4×4 outputs over all images.
_LEAST_CHANNELS, _LEAST_TILES = 64, 100


def _glorot(kernel: Tensor) -> object:
    return nn.init.xavier_uniform_(kernel)


@dataclass(frozen=True)
class KernelRule:
    """A kernel's initializer and penalty.

    Attributes:
        initialize: Fills a kernel in place; Keras's default is Glorot's uniform.
        bias_regularizer: The penalty on the bias, if any.
    """

    initialize: Callable[[Tensor], object] = _glorot
    regularizer: Regularizer = Regularizer()
    bias_regularizer: Regularizer = Regularizer()

    def apply(self, conv: Conv2d) -> Conv2d:
        """Initialize a layer and attach its regularizer; a bias starts at 0."""
        with torch.no_grad():
            # Keras counts the channels of a depthwise kernel as inputs, PyTorch as outputs.
            self.initialize(conv.weight.transpose(0, 1) if conv.groups > 1 else conv.weight)
            if conv.bias is not None:
                conv.bias.zero_()
        conv.regularizer, conv.bias_regularizer = self.regularizer, self.bias_regularizer
        return conv


@dataclass(frozen=True)
class ConvSettings:
    """Settings shared by a part of a network's convolutions (TF's `conv_hyperparams`).

    Attributes:
        separable_pointwise: The second kernels of separable convolutions; Keras's default in TF unless configured.
        norm: Normalization, or None for none.
        force_bias: Whether normalized convolutions learn a bias too.
    """

    kernel: KernelRule = KernelRule()
    depthwise: KernelRule = KernelRule()
    separable_depthwise: KernelRule = KernelRule()
    separable_pointwise: KernelRule = KernelRule()
    norm: NormSettings | None = BatchNormSettings()
    activation: Activation = "RELU_6"
    force_bias: bool = False

    @property
    def bias(self) -> bool:
        """Whether a convolution before normalization and activation learns a bias."""
        return self.norm is None or self.force_bias


def is_plain_3x3(conv: nn.Conv2d) -> bool:
    """Return whether a convolution is 3×3, of stride 1, with one pixel of zeros around the map."""
    return (
        conv.kernel_size == (3, 3)
        and conv.stride == conv.dilation == conv.padding == (1, 1)
        and conv.padding_mode == "zeros"
        and conv.groups == 1
    )


def count_tiles(size: torch.Size) -> int:
    """Return how many tiles of 4×4 pixels cover maps [B, C, H, W]."""
    return size[0] * -(-size[2] // 4) * -(-size[3] // 4)


class Conv2d(nn.Conv2d):
    """A convolution with TF's padding, which carries the penalty on its kernel.

    With "same" padding the output has ceil(size / stride) pixels and the odd pixel of padding is below and right.
    "explicit" padding is (k - 1) // 2 before and the rest after, at any size. "valid" is none; a number pads all sides.
    """

    regularizer: Regularizer
    bias_regularizer: Regularizer

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: KernelSize,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        padding: Padding = "same",
        dilation: int = 1,
    ) -> None:
        """Make the layer; a `KernelRule` fills it.

        Args:
            kernel_size: The side of a square kernel, or (height, width).
            padding: "same", "explicit", "valid", or pixels on every side.
        """
        height, width = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        odd = height % 2 == width % 2 == 1
        # A kernel of side 1 needs no padding at any stride.
        # With stride 1 and an odd kernel SAME is symmetric at any size, which PyTorch pads by itself.
        pad_by_size = padding == "same" and not (height == width == 1 or (stride == 1 and odd))
        uneven = padding == "explicit" and not odd
        if isinstance(padding, int):
            pixels = (padding, padding)
        elif padding == "valid" or pad_by_size or uneven:
            pixels = (0, 0)
        else:
            pixels = (dilation * (height // 2), dilation * (width // 2))
        super().__init__(
            in_channels,
            out_channels,
            (height, width),
            stride=stride,
            padding=pixels,
            groups=groups,
            bias=bias,
            dilation=dilation,
        )
        self.pad_by_size = pad_by_size
        self.uneven = ((width - 1) // 2, width // 2, (height - 1) // 2, height // 2) if uneven else None
        self.pads_explicitly = padding == "explicit" and (height, width) != (1, 1)
        self.regularizer, self.bias_regularizer = Regularizer(), Regularizer()

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, C', H', W']; with "same" padding H' is ceil(H / stride), and W' alike."""
        if self._gains_from_winograd(input):
            return native.conv_3x3(input, self.weight, self.bias)
        return super().forward(self.padded(input))

    def _gains_from_winograd(self, input: Tensor) -> bool:
        return (
            is_plain_3x3(self)
            and min(self.in_channels, self.out_channels) >= _LEAST_CHANNELS
            and native.is_usable(input)
            and native.is_readable(self.weight)
            and count_tiles(input.shape) >= _LEAST_TILES
        )

    def padded(self, input: Tensor) -> Tensor:
        """Return an input with the padding that PyTorch's own convolution does not do."""
        return zero_padded(input, self.sides(input)) if self.pad_by_size or self.uneven is not None else input

    def sides(self, input: Tensor) -> Sides:
        """Return the pixels of padding of maps [B, C, H, W]."""
        if self.pad_by_size:
            return same_padding(input, self.kernel_size, self.stride[0])
        height, width = (int(pixels) for pixels in self.padding)
        return self.uneven or (width, width, height, height)


class Dense(Conv2d):
    """A dense layer over crops of one size, as a convolution with a kernel of that size.

    It is regularized like other convolutions, and its weights have the order of Keras's flattening.
    """

    def __init__(self, in_channels: int, out_channels: int, side: int = 1, *, bias: bool = True) -> None:
        """Make the layer; a `KernelRule` fills it."""
        super().__init__(in_channels, out_channels, side, bias=bias, padding="valid")
        self.weight = nn.Parameter(self.weight.detach().contiguous(memory_format=torch.channels_last))

    def forward(self, input: Tensor) -> Tensor:
        """Return [N, C', 1, 1] for crops [N, C, side, side]."""
        # Keras flattens height, width, channels; channels-last weights make this a view.
        rows, kernel = (tensor.permute(0, 2, 3, 1).flatten(1) for tensor in (input, self.weight))
        return F.linear(rows, kernel, self.bias)[:, :, None, None]


class Deconv2d(nn.ConvTranspose2d):
    """A transposed convolution that doubles height and width, and carries the penalty on its kernel."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, rule: KernelRule, *, bias: bool) -> None:
        """Make and initialize the layer.

        Args:
            kernel_size: The side of the square kernel, an even number.
            rule: Initializer and penalty; fan-in and fan-out are as a convolution's.
            bias: Whether a bias is learned; it starts at 0.
        """
        # This padding makes the output exactly twice as large.
        super().__init__(in_channels, out_channels, kernel_size, 2, padding=(kernel_size - 2) // 2, bias=bias)
        with torch.no_grad():
            rule.initialize(self.weight.transpose(0, 1))
            if self.bias is not None:
                self.bias.zero_()
        self.regularizer, self.bias_regularizer = rule.regularizer, rule.bias_regularizer


class MaxPool2d(nn.Module):
    """Maximum over windows, with TF's SAME padding."""

    def __init__(self, kernel_size: int, stride: int) -> None:
        """Make the layer."""
        super().__init__()
        self.kernel_size, self.stride = kernel_size, stride

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, C, ceil(H / stride), ceil(W / stride)]."""
        # TF leaves padding out of the maximum; zeros would win over negative values.
        sides = left, right, above, below = same_padding(input, (self.kernel_size, self.kernel_size), self.stride)
        if not torch.compiler.is_compiling():  # a graph of any size cannot choose by it
            if left == right and above == below:
                return F.max_pool2d(input, self.kernel_size, self.stride, (above, left))
            # Padding only after the last pixel is what PyTorch's windows that end outside of the map leave out.
            if left == above == 0 and max(right, below) < self.stride:
                return F.max_pool2d(input, self.kernel_size, self.stride, ceil_mode=True)
        return F.max_pool2d(F.pad(input, sides, value=-torch.inf), self.kernel_size, self.stride)


class AvgPool2d(nn.Module):
    """Average over windows, with TF's SAME padding, which does not count."""

    def __init__(self, kernel_size: int, stride: int) -> None:
        """Make the layer."""
        super().__init__()
        self.kernel_size, self.stride = kernel_size, stride

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, C, ceil(H / stride), ceil(W / stride)]."""
        sides = same_padding(input, (self.kernel_size, self.kernel_size), self.stride)
        sums = F.avg_pool2d(F.pad(input, sides), self.kernel_size, self.stride)
        # PyTorch pads both ends alike, or counts the padding; so divide by the share that lies within the map.
        return sums / F.avg_pool2d(F.pad(torch.ones_like(input[:1, :1]), sides), self.kernel_size, self.stride)


def make_conv(
    in_channels: int,
    out_channels: int,
    kernel_size: KernelSize,
    rule: KernelRule,
    *,
    stride: int = 1,
    groups: int = 1,
    bias: bool = False,
    padding: Padding = "same",
) -> Conv2d:
    """Make one initialized convolution.

    Args:
        kernel_size: The side of a square kernel, or (height, width).
        bias: Whether a bias is learned; it starts at 0.
        padding: "same", "explicit", "valid", or pixels on every side.
    """
    conv = Conv2d(in_channels, out_channels, kernel_size, stride=stride, groups=groups, bias=bias, padding=padding)
    return rule.apply(conv)


def full_conv(
    in_channels: int, out_channels: int, kernel_size: KernelSize, settings: ConvSettings, *, bias: bool
) -> nn.Sequential:
    """Make a full convolution of stride 1 in a sequence, as `separable_conv` returns its two."""
    return nn.Sequential(make_conv(in_channels, out_channels, kernel_size, settings.kernel, bias=bias))


def separable_conv(
    in_channels: int,
    out_channels: int,
    kernel_size: KernelSize,
    settings: ConvSettings,
    *,
    stride: int = 1,
    multiplier: int = 1,
    bias: bool = False,
    padding: Padding = "same",
) -> nn.Sequential:
    """Make a depthwise convolution followed by a pointwise one, with nothing in between (Keras's SeparableConv2D).

    Args:
        bias: Whether the pointwise convolution learns a bias.
    """
    rule, between = settings.separable_depthwise, in_channels * multiplier
    depthwise = make_conv(in_channels, between, kernel_size, rule, stride=stride, groups=in_channels, padding=padding)
    return nn.Sequential(depthwise, make_conv(between, out_channels, 1, settings.separable_pointwise, bias=bias))


class ConvNormAct(nn.Sequential):
    """A convolution, its normalization and its activation."""


def conv_norm_act(
    in_channels: int,
    out_channels: int,
    kernel_size: KernelSize,
    settings: ConvSettings,
    *,
    stride: int = 1,
    depthwise: bool = False,
    padding: Padding = "same",
    dilation: int = 1,
) -> ConvNormAct:
    """Make convolution, normalization and activation.

    Args:
        kernel_size: The side of a square kernel, or (height, width).
    """
    conv = Conv2d(
        in_channels,
        out_channels,
        kernel_size,
        stride=stride,
        groups=in_channels if depthwise else 1,
        bias=settings.bias,
        padding=padding,
        dilation=dilation,
    )
    (settings.depthwise if depthwise else settings.kernel).apply(conv)
    return ConvNormAct(conv, make_norm(out_channels, settings.norm), make_activation(settings.activation))
