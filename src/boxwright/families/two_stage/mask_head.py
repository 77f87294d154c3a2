"""The mask head, which segments a region's object (Mask R-CNN, section 3).

Dimensions: N regions, K foreground classes, C channels, h w mask.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.activations import make_activation
from boxwright.nn.layers import ConvSettings, Deconv2d, KernelRule, conv_norm_act, make_conv

Size = tuple[int, int]


class ResizeTo(nn.Module):
    """Resize to a fixed size with TF's `align_corners`."""

    def __init__(self, size: Size) -> None:
        """Store the size."""
        super().__init__()
        self.size = size

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [N, C, h, w]."""
        return F.interpolate(inputs, size=self.size, mode="bilinear", align_corners=True)


class MaskHead(nn.Module):
    """Layers, then a convolution that predicts a mask for each class.

    Attributes:
        columns: K, or 1 for class-agnostic masks.
    """

    def __init__(
        self, layers: nn.Sequential, channels: int, columns: int, rule: KernelRule, kernel_size: int = 3
    ) -> None:
        """Build the last convolution.

        Args:
            layers: From a region's features to maps of the mask's size.
            columns: K or 1.
        """
        super().__init__()
        self.layers, self.columns = layers, columns
        self.predict = make_conv(channels, columns, kernel_size, rule, bias=True)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits [N, K or 1, h, w] for features [N, C, H, W]."""
        logits: Tensor = self.predict(self.layers(features))
        return logits


def _convolutions(in_channels: int, depth: int, count: int, settings: ConvSettings) -> list[nn.Module]:
    widths = [in_channels, *[depth] * count]
    return [conv_norm_act(before, depth, 3, settings) for before in widths[:-1]]


def resizing_layers(in_channels: int, depth: int, count: int, settings: ConvSettings, size: Size) -> nn.Sequential:
    """Return layers that resize, then convolve `count` times (TF's layers); 0 leaves `in_channels`."""
    return nn.Sequential(ResizeTo(size), *_convolutions(in_channels, depth, count, settings))


def upsampling_layers(in_channels: int, depth: int, count: int, settings: ConvSettings, factors: Size) -> nn.Sequential:
    """Return layers that convolve `count` times, upsample, and convolve once more (`convolve_then_upsample_masks`).

    Args:
        factors: Repetitions of a pixel in y and x.
    """
    before = _convolutions(in_channels, depth, count, settings)
    repeat = nn.Upsample(scale_factor=(float(factors[0]), float(factors[1])), mode="nearest")
    after = conv_norm_act(depth if count else in_channels, depth, 3, settings)
    return nn.Sequential(*before, repeat, after)


def deconvolving_layers(in_channels: int, depth: int, count: int, settings: ConvSettings) -> nn.Sequential:
    """Return layers that convolve, then double the size by a learned deconvolution (the paper's figure 4, right)."""
    before = _convolutions(in_channels, depth, count, settings)
    # A kernel of 2 and a stride of 2: no output pixel gets two contributions.
    double = Deconv2d(depth if count else in_channels, depth, 2, settings.kernel, bias=True)
    return nn.Sequential(*before, double, make_activation(settings.activation))


def depth_between(in_channels: int, num_classes: int) -> int:
    """Return TF's default channels of mask convolutions: a power of two between the numbers of features and classes."""
    total = 2 * math.log2(in_channels) + 3 * math.log2(num_classes)
    # Python's `round` takes halves to the even number, as TF's does.
    return int(2.0 ** round(total / 5))
