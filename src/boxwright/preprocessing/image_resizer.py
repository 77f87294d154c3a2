"""Image resizers: TF's rules for the size that an image gets, and its padding.

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

from boxwright.ops.constants import constants
from boxwright.ops.resize import resize_bilinear


class Resize(Protocol):
    """An interpolation."""

    def __call__(self, image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
        """Resize.

        Args:
            image: [H, W, C].

        Returns:
            [height, width, C].
        """
        ...


GRAY_WEIGHTS = (0.2989, 0.5870, 0.1140)


class ImageResizer(Protocol):
    """Brings an image to the size the network wants."""

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Resize, then pad.

        Args:
            image: [H, W, C].

        Returns:
            float32 [H', W', C], and the (height, width) in it that is image and not padding.
        """
        ...

    @property
    def output_size(self) -> tuple[int, int] | None:
        """The (height, width) of every result, or None where it follows the image."""
        ...

    @property
    def channels(self) -> int:
        """Channels of every result: 1 where images become grey, else 3."""
        ...

    @property
    def pad_value(self) -> tuple[float, ...]:
        """The padding's colour, one number a channel; empty for 0."""
        ...


def to_grayscale(image: Tensor) -> Tensor:
    """Turn RGB into one channel, as `tf.image.rgb_to_grayscale`.

    Args:
        image: float [H, W, 3].

    Returns:
        float [H, W, 1].
    """
    weights = constants(GRAY_WEIGHTS, image.device, image.dtype)
    return (image * weights).sum(-1, keepdim=True)


def _resized(resize: Resize, image: Tensor, size: tuple[int, int]) -> Tensor:
    """Return an image float32 of a size; what has that size already is left as it is."""
    return image.float() if image.shape[:2] == size else resize(image, *size).float()


@dataclass(frozen=True)
class FixedShapeResizer:
    """Stretch every image to one size.

    Attributes:
        height: The new height.
        width: The new width.
        resize: The interpolation.
        convert_to_grayscale: Whether the result has one channel.
    """

    height: int
    width: int
    resize: Resize = resize_bilinear
    convert_to_grayscale: bool = False

    @property
    def output_size(self) -> tuple[int, int]:
        """The (height, width) of every result."""
        return self.height, self.width

    @property
    def channels(self) -> int:
        """Channels of every result."""
        return 1 if self.convert_to_grayscale else 3

    @property
    def pad_value(self) -> tuple[float, ...]:
        """There is no padding."""
        return ()

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return float32 [height, width, C or 1], and (height, width)."""
        resized = _resized(self.resize, image, (self.height, self.width))
        return (to_grayscale(resized) if self.convert_to_grayscale else resized), (self.height, self.width)


@dataclass(frozen=True)
class KeepAspectRatioResizer:
    """Scale so that the shorter side is `min_dimension`, unless the longer would pass `max_dimension`.

    Attributes:
        min_dimension: The shorter side's aim; 0 or less leaves it free.
        max_dimension: The longer side's limit; 0 or less sets none.
        resize: The interpolation.
        pad_to_max_dimension: Whether to pad below and right to a square of `max_dimension`.
        per_channel_pad_value: The padding's colour; 0 where empty.
        convert_to_grayscale: Whether the result has one channel.
        to_whole: Makes whole pixels of float32 sides: rounds half to even, as TF does, or cuts off, as others do.
    """

    min_dimension: int = 600
    max_dimension: int = 1024
    resize: Resize = resize_bilinear
    pad_to_max_dimension: bool = False
    per_channel_pad_value: tuple[float, ...] = ()
    convert_to_grayscale: bool = False
    to_whole: Callable[[NDArray[np.float32]], NDArray[np.float32]] = np.rint

    @property
    def output_size(self) -> tuple[int, int] | None:
        """The (height, width) of every result where images are padded, else None."""
        return (self.max_dimension, self.max_dimension) if self.pad_to_max_dimension else None

    @property
    def channels(self) -> int:
        """Channels of every result."""
        return 1 if self.convert_to_grayscale else 3

    @property
    def pad_value(self) -> tuple[float, ...]:
        """The padding's colour; grey where images become so, as that is done last."""
        if self.convert_to_grayscale and self.per_channel_pad_value:
            return (sum(w * v for w, v in zip(GRAY_WEIGHTS, self.per_channel_pad_value, strict=True)),)
        return self.per_channel_pad_value

    def new_size(self, height: int, width: int) -> tuple[int, int]:
        """Compute the size before padding, in float32."""
        sides = np.array([height, width], np.float32)
        larger = self.to_whole(sides * (np.float32(self.min_dimension) / sides.min()))
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
        colour = self.per_channel_pad_value or (0.0,) * channels
        padded = constants(colour, image.device, image.dtype)
        padded = padded.repeat(self.max_dimension, self.max_dimension, 1)
        padded[: image.shape[0], : image.shape[1]] = image
        return padded


@dataclass(frozen=True)
class IdentityResizer:
    """Leave every image as it is."""

    @property
    def output_size(self) -> None:
        """The size follows the image."""
        return None

    @property
    def channels(self) -> int:
        """Images keep their colours."""
        return 3

    @property
    def pad_value(self) -> tuple[float, ...]:
        """There is no padding."""
        return ()

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return float32 [H, W, C], and (H, W)."""
        return image.float(), (image.shape[0], image.shape[1])


@dataclass(frozen=True)
class ConditionalShapeResizer:
    """Scale only images whose longer side is over, or whose shorter side is under, a threshold.

    As in TensorFlow, sides are cut to whole pixels rather than rounded, and corners are aligned.

    Attributes:
        threshold: The longer side's limit, or the shorter side's aim, in pixels.
        shrink: Whether large images are made smaller; else small ones are made larger.
        resize: The interpolation.
        convert_to_grayscale: Whether the result has one channel.
    """

    threshold: int
    shrink: bool = True
    resize: Resize = resize_bilinear
    convert_to_grayscale: bool = False

    @property
    def output_size(self) -> None:
        """The size follows the image."""
        return None

    @property
    def channels(self) -> int:
        """Channels of every result."""
        return 1 if self.convert_to_grayscale else 3

    @property
    def pad_value(self) -> tuple[float, ...]:
        """There is no padding."""
        return ()

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
class PadToMultipleResizer:
    """Pad below and right with 0 so that both sides are multiples of a number.

    Attributes:
        multiple: The number.
        convert_to_grayscale: Whether the result has one channel.
    """

    multiple: int = 1
    convert_to_grayscale: bool = False

    @property
    def output_size(self) -> None:
        """The size follows the image."""
        return None

    @property
    def channels(self) -> int:
        """Channels of every result."""
        return 1 if self.convert_to_grayscale else 3

    @property
    def pad_value(self) -> tuple[float, ...]:
        """The padding is 0."""
        return ()

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return float32 [H', W', C or 1], and (H, W)."""
        height, width = image.shape[:2]
        below, right = -height % self.multiple, -width % self.multiple
        padded = torch.nn.functional.pad(image.float(), (0, 0, 0, right, 0, below))
        return (to_grayscale(padded) if self.convert_to_grayscale else padded), (height, width)
