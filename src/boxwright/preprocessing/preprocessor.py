"""The preprocessor of a detector: resize, scale pixel values, put channels first.

Dimensions: B batch, H W image, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.preprocessing.image_resizer import GRAY_WEIGHTS, FixedShapeResizer, ImageResizer

__all__ = ["CAFFE_MEAN", "IMAGENET", "MINUS_ONE_TO_ONE", "VGG_MEAN", "PixelScaling", "Preprocessor"]


@dataclass(frozen=True)
class PixelScaling:
    """What becomes of pixel values: `value × scale + offset`, for red, green and blue.

    Attributes:
        scale: Multiplies values of 0..255.
        offset: Added after that.
    """

    scale: tuple[float, float, float]
    offset: tuple[float, float, float]

    @classmethod
    def standardize(cls, mean: tuple[float, ...], deviation: tuple[float, ...]) -> PixelScaling:
        """Subtract a mean and divide by a deviation, both of values in 0..1."""
        red, green, blue = (1 / (255 * d) for d in deviation)
        shift_red, shift_green, shift_blue = (-m / d for m, d in zip(mean, deviation, strict=True))
        return cls((red, green, blue), (shift_red, shift_green, shift_blue))

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return float32 [B, C, H, W]."""
        scale, offset = pixels.new_tensor(self.scale, dtype=torch.float32), torch.tensor(self.offset)
        if pixels.shape[1] == 1:
            # TF scales RGB, then makes it grey; both are linear.
            scale, offset = scale[:1], (offset * torch.tensor(GRAY_WEIGHTS)).sum(0, keepdim=True)
        return pixels.float() * scale[:, None, None] + offset.to(pixels.device)[:, None, None]


MINUS_ONE_TO_ONE = PixelScaling((2 / 255, 2 / 255, 2 / 255), (-1.0, -1.0, -1.0))
VGG_MEAN = PixelScaling((1.0, 1.0, 1.0), (-123.68, -116.779, -103.939))
CAFFE_MEAN = PixelScaling((1.0, 1.0, 1.0), (-123.0, -117.0, -104.0))
IMAGENET = PixelScaling.standardize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Preprocessor:
    """Bring images to the network's input.

    Attributes:
        resizer: Brings an image to size.
        scaling: Scales pixel values.
        scale_padding: Whether padding is scaled as pixels are, as for TF's two-stage detectors; for its one-stage
            detectors it is not.
    """

    resizer: ImageResizer
    scaling: PixelScaling = MINUS_ONE_TO_ONE
    scale_padding: bool = False

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return float32 [B, C, H', W'], and the (height, width) int64 [B, 2] of each without its padding."""
        resized = [self.resizer(image) for image in images]
        pixels = torch.stack([image for image, _ in resized])
        sizes = torch.tensor([size for _, size in resized], dtype=torch.int64)
        return self.normalize(pixels.permute(0, 3, 1, 2), sizes), sizes.to(images.device)

    def normalize(self, pixels: Tensor, true_sizes: Tensor) -> Tensor:
        """Scale pixel values of images that have their size already.

        Padding is 0, or the resizer's colour; before or after scaling.

        Args:
            pixels: [B, C, H, W] in 0..255, of any dtype.
            true_sizes: int64 [B, 2]; the (height, width) in each that is image and not padding.

        Returns:
            float32 [B, C, H, W], channels last in memory.
        """
        scaled = self.scaling(pixels)
        height, width = pixels.shape[-2:]
        if not isinstance(self.resizer, FixedShapeResizer):
            sizes = true_sizes.to(pixels.device)[:, :, None, None]
            rows = torch.arange(height, device=pixels.device)[:, None] < sizes[:, 0]
            columns = torch.arange(width, device=pixels.device) < sizes[:, 1]
            values = torch.tensor(self.resizer.pad_value or (0.0,), device=pixels.device)
            colour = values[:, None, None]
            if self.scale_padding:
                colour = self.scaling(colour.expand(1, pixels.shape[1], 1, 1))[0]
            scaled = torch.where((rows & columns)[:, None], scaled, colour)
        return scaled.contiguous(memory_format=torch.channels_last)
