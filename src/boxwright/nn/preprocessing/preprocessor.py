"""The preprocessor of a detector: resize, scale pixel values, move channels first.

Dimensions: B batch, H W image, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from boxwright.base.device import without_wait
from boxwright.nn.preprocessing.image_resizer import GRAY_WEIGHTS, FixedShapeResizer, ImageResizer


@dataclass(frozen=True)
class PixelScaling:
    """The scaling of pixel values, `value × scale + offset`, for red, green and blue.

    Attributes:
        scale: Multiplies values of 0..255.
    """

    scale: tuple[float, float, float]
    offset: tuple[float, float, float]

    @classmethod
    def standardize(cls, mean: tuple[float, ...], deviation: tuple[float, ...]) -> PixelScaling:
        """Return the scaling that subtracts a mean and divides by a deviation, both of values in 0..1."""
        red, green, blue = (1 / (255 * d) for d in deviation)
        shift_red, shift_green, shift_blue = (-m / d for m, d in zip(mean, deviation, strict=True))
        return cls((red, green, blue), (shift_red, shift_green, shift_blue))

    def constants(self, channels: int) -> tuple[Tensor, Tensor]:
        """Return scale and offset, float32 [C, 1, 1]; for one channel gray's, as TF scales RGB before mixing.

        Of more than three, all are scaled alike where colors are, and none is otherwise: TF subtracts means from
        images of three channels only.
        """
        scale, offset = torch.tensor(self.scale), torch.tensor(self.offset)
        if channels > len(self.scale):
            alike = len(set(self.scale)) == len(set(self.offset)) == 1
            scale, offset = (value[:1].expand(channels) if alike else value for value in (scale, offset))
            if not alike:
                scale, offset = torch.ones(channels), torch.zeros(channels)
        if channels == 1:  # both are linear
            scale, offset = scale[:1], (offset * torch.tensor(GRAY_WEIGHTS)).sum(0, keepdim=True)
        return scale[:, None, None], offset[:, None, None]


MINUS_ONE_TO_ONE = PixelScaling((2 / 255, 2 / 255, 2 / 255), (-1.0, -1.0, -1.0))
ZERO_TO_ONE = PixelScaling((1 / 255, 1 / 255, 1 / 255), (0.0, 0.0, 0.0))
# TF-Slim's means of red, green and blue; Caffe's models have theirs in whole numbers, listed as blue, green, red.
VGG_MEAN = PixelScaling((1.0, 1.0, 1.0), (-123.68, -116.779, -103.939))
CAFFE_MEAN = PixelScaling((1.0, 1.0, 1.0), (-123.0, -117.0, -104.0))
IMAGENET = PixelScaling.standardize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Preprocessor(nn.Module):
    """Convert images to the network's input.

    The scaling's constants are buffers that move with the detector: created at each step, they would have to be copied
    to a GPU, with a synchronization.

    Attributes:
        scaling: Scales pixel values.
        scale_padding: Whether padding is scaled like pixels, as in TF's two-stage detectors but not its one-stage ones.
    """

    scale: Tensor
    offset: Tensor
    padding: Tensor

    def __init__(
        self, resizer: ImageResizer, scaling: PixelScaling = MINUS_ONE_TO_ONE, *, scale_padding: bool = False
    ) -> None:
        """Store the parts and the scaling's constants."""
        super().__init__()
        self.resizer, self.scaling, self.scale_padding = resizer, scaling, scale_padding
        scale, offset = scaling.constants(resizer.channels)
        padding = torch.tensor(resizer.pad_value or (0.0,))[:, None, None]
        if scale_padding:
            padding = padding * scale + offset
        # With one number for all colors, a product of an image takes half the time.
        if len(set(scaling.scale)) == 1:
            scale = scale[:1]
        if len(set(scaling.offset)) == 1:
            offset = offset[:1]
        for name, value in (("scale", scale), ("offset", offset), ("padding", padding)):
            # They follow from the configuration, so a checkpoint need not have them.
            self.register_buffer(name, value, persistent=False)

    def with_resizer(self, resizer: ImageResizer) -> Preprocessor:
        """Return a preprocessor with another resizer, on the same device."""
        return Preprocessor(resizer, self.scaling, scale_padding=self.scale_padding).to(self.scale.device)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return float32 [B, C, H', W'], and the (height, width) int64 [B, 2] of each without its padding.

        Images [B, H, W, C] are moved to the preprocessor's device first.
        """
        inputs, sizes = self.inputs_of(images)
        return inputs, without_wait(sizes, inputs.device)

    def inputs_of(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return as `forward`, with the sizes on the CPU."""
        resized = [self.resizer(image) for image in without_wait(images, self.scale.device)]
        pixels = resized[0][0][None] if len(resized) == 1 else torch.stack([image for image, _ in resized])
        sizes = torch.tensor([size for _, size in resized], dtype=torch.int64)
        return self.normalize(pixels.permute(0, 3, 1, 2), without_wait(sizes, pixels.device)), sizes

    def normalize(self, pixels: Tensor, true_sizes: Tensor) -> Tensor:
        """Return images of the final size with scaled pixel values.

        Padding is 0, or the resizer's color, before or after scaling.

        Args:
            pixels: [B, C, H, W] in 0..255, of any dtype.
            true_sizes: int64 [B, 2]; the (height, width) of each without padding.

        Returns:
            float32 [B, C, H, W], channels last in memory.
        """
        scaled = (pixels.float() * self.scale).add_(self.offset)
        # The one resizer that never pads; the others' padding is filled in after scaling.
        if not isinstance(self.resizer, FixedShapeResizer):
            height, width = pixels.shape[-2:]
            sizes = true_sizes[:, :, None, None]
            rows = torch.arange(height, device=pixels.device)[:, None] < sizes[:, 0]
            columns = torch.arange(width, device=pixels.device) < sizes[:, 1]
            scaled = torch.where((rows & columns)[:, None], scaled, self.padding)
        return scaled.contiguous(memory_format=torch.channels_last)
