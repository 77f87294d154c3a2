"""Image resizers: TF's rules for an image's size and padding.

Dimensions: H W C of the image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.base.device import constants
from boxwright.nn.ops.resize import resize_bilinear


class Resize(Protocol):
    """An interpolation."""

    def __call__(self, image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
        """Return an image [H, W, C] resized to [height, width, C]."""
        ...


# TF's; other libraries round 0.299, 0.587 and 0.114.
GRAY_WEIGHTS = (0.2989, 0.5870, 0.1140)


class ImageResizer:
    """Brings an image to the network's input size."""

    convert_to_grayscale: bool = False
    image_channels: int = 3

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return an image resized and padded to float32 [H', W', C], and its (height, width) without padding."""
        raise NotImplementedError

    @property
    def output_size(self) -> tuple[int, int] | None:
        """The (height, width) of every result, or None if it depends on the image."""
        return None

    @property
    def channels(self) -> int:
        """Channels of every result: 1 for grayscale, else those of the images, 3 or more."""
        return 1 if self.convert_to_grayscale else self.image_channels

    @property
    def pad_value(self) -> tuple[float, ...]:
        """The padding's color, one number per channel; empty for 0, or without padding."""
        return ()


def to_grayscale(image: Tensor) -> Tensor:
    """Return RGB float [H, W, 3] as gray [H, W, 1], as `tf.image.rgb_to_grayscale`."""
    weights = constants(GRAY_WEIGHTS, image.device, image.dtype)
    return (image * weights).sum(-1, keepdim=True)


def _resized(resize: Resize, image: Tensor, size: tuple[int, int]) -> Tensor:
    """Return an image resized to float32; one that already has the size is not resampled."""
    return image.float() if image.shape[:2] == size else resize(image, *size).float()


@dataclass(frozen=True)
class FixedShapeResizer(ImageResizer):
    """Resize every image to one size."""

    height: int
    width: int
    resize: Resize = resize_bilinear
    convert_to_grayscale: bool = False
    image_channels: int = 3

    @property
    def output_size(self) -> tuple[int, int]:
        """The (height, width) of every result."""
        return self.height, self.width

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return float32 [height, width, C or 1], and (height, width)."""
        resized = _resized(self.resize, image, (self.height, self.width))
        return (to_grayscale(resized) if self.convert_to_grayscale else resized), (self.height, self.width)


@dataclass(frozen=True)
class KeepAspectRatioResizer(ImageResizer):
    """Scale so that the shorter side is `min_dimension`, unless the longer would pass `max_dimension`.

    Attributes:
        min_dimension: The shorter side's target, at least 1.
        max_dimension: The longer side's limit; 0 or less for none.
        pad_to_max_dimension: Whether to pad below and right to a square of `max_dimension`.
        per_channel_pad_value: The padding's color; empty for 0.
        to_whole: Converts float32 sides to integers: rounds half to even, as in TF, or truncates, as elsewhere.
    """

    min_dimension: int = 600
    max_dimension: int = 1024
    resize: Resize = resize_bilinear
    pad_to_max_dimension: bool = False
    per_channel_pad_value: tuple[float, ...] = ()
    convert_to_grayscale: bool = False
    to_whole: Callable[[NDArray[np.float32]], NDArray[np.float32]] = np.rint
    image_channels: int = 3

    @property
    def output_size(self) -> tuple[int, int] | None:
        """The (height, width) of every result if images are padded, else None."""
        return (self.max_dimension, self.max_dimension) if self.pad_to_max_dimension else None

    @property
    def pad_value(self) -> tuple[float, ...]:
        """The padding's color; gray with `convert_to_grayscale`, which is applied last."""
        if self.convert_to_grayscale and self.per_channel_pad_value:
            return (sum(w * v for w, v in zip(GRAY_WEIGHTS, self.per_channel_pad_value, strict=True)),)
        return self.per_channel_pad_value

    def new_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size before padding, computed in float32."""
        sides = np.array([height, width], np.float32)
        larger = self.to_whole(sides * (np.float32(self.min_dimension) / sides.min()))
        # The rounded side decides, as in TF: one that rounds to the limit is within it.
        if self.max_dimension > 0 and larger.max() > self.max_dimension:
            larger = self.to_whole(sides * (np.float32(self.max_dimension) / sides.max()))
        return max(int(larger[0]), 1), max(int(larger[1]), 1)

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return float32 [H', W', C or 1], and the (height, width) of the image in it."""
        size = self.new_size(image.shape[0], image.shape[1])
        resized = _resized(self.resize, image, size)
        if self.pad_to_max_dimension:
            resized = self._pad(resized)
        return (to_grayscale(resized) if self.convert_to_grayscale else resized), size

    def _pad(self, image: Tensor) -> Tensor:
        channels = image.shape[2]
        color = self.per_channel_pad_value or (0.0,) * channels
        padded = constants(color, image.device, image.dtype)
        # Before any scaling of pixels; `Preprocessor` decides whether the color is scaled too.
        padded = padded.repeat(self.max_dimension, self.max_dimension, 1)
        padded[: image.shape[0], : image.shape[1]] = image
        return padded


@dataclass(frozen=True)
class IdentityResizer(ImageResizer):
    """Leave every image unchanged."""

    image_channels: int = 3

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return float32 [H, W, C], and (H, W)."""
        return image.float(), (image.shape[0], image.shape[1])


@dataclass(frozen=True)
class ConditionalShapeResizer(ImageResizer):
    """Scale only images whose longer side is above, or whose shorter side is below, a threshold.

    As in TensorFlow, sides are truncated to whole pixels, and corners are aligned.

    Attributes:
        threshold: The longer side's limit, or the shorter side's target, in pixels.
        shrink: Whether large images are shrunk; otherwise small ones are enlarged.
    """

    threshold: int
    shrink: bool = True
    resize: Resize = resize_bilinear
    convert_to_grayscale: bool = False
    image_channels: int = 3

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return float32 [H', W', C or 1], and (H', W')."""
        sides = np.array(image.shape[:2], np.float32)
        side = sides.max() if self.shrink else sides.min()
        if side > self.threshold if self.shrink else side < self.threshold:
            height, width = (max(int(v), 1) for v in sides * (np.float32(self.threshold) / side))
            image = self.resize(image, height, width, align_corners=True)
        size = (image.shape[0], image.shape[1])
        return (to_grayscale(image.float()) if self.convert_to_grayscale else image.float()), size


@dataclass(frozen=True)
class PadToMultipleResizer(ImageResizer):
    """Pad with 0 below and right to multiples of a number."""

    multiple: int = 1
    convert_to_grayscale: bool = False
    image_channels: int = 3

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return float32 [H', W', C or 1], and (H, W)."""
        height, width = image.shape[:2]
        below, right = -height % self.multiple, -width % self.multiple
        padded = torch.nn.functional.pad(image.float(), (0, 0, 0, right, 0, below))
        return (to_grayscale(padded) if self.convert_to_grayscale else padded), (height, width)
