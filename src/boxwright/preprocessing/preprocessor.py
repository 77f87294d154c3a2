"""The preprocessor of a detector: resize, scale pixel values, put channels first.

Dimensions: B batch, H W image, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.preprocessing.image_resizer import ImageResizer

__all__ = ["Preprocessor"]


@dataclass(frozen=True)
class Preprocessor:
    """Bring images to the network's input.

    Attributes:
        resizer: Brings an image to size.
        scale: Multiplies pixel values of 0..255.
        offset: Added after that.
    """

    resizer: ImageResizer
    scale: float = 2.0 / 255.0
    offset: float = -1.0

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Preprocess images of one size.

        Args:
            images: [B, H, W, C] in 0..255, of any dtype.

        Returns:
            float32 [B, C, H', W'], and int64 [B, 2]: the (height, width) in each that is image
            and not padding.
        """
        resized = [self.resizer(image) for image in images]
        pixels = torch.stack([image for image, _ in resized])
        sizes = torch.tensor([size for _, size in resized], dtype=torch.int64, device=images.device)
        return self.normalize(pixels.permute(0, 3, 1, 2)), sizes

    def normalize(self, pixels: Tensor) -> Tensor:
        """Scale pixel values of images that have their size already.

        Args:
            pixels: [B, C, H, W] in 0..255, of any dtype.

        Returns:
            float32 [B, C, H, W], channels last in memory.
        """
        return (pixels.float() * self.scale + self.offset).contiguous(memory_format=torch.channels_last)
