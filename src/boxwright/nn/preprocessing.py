"""From images of any size to a network's input: resize and pad by TF's rules, scale pixel values, move channels first.

Images come as arrays, tensors or PIL images. OpenCV scales them for published results that depend on its interpolation.

Dimensions: B batch, H W image, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from boxwright.base.device import constants, without_wait
from boxwright.base.errors import DataError
from boxwright.nn.ops.resize import (
    TO_LEVELS,
    resize_bilinear,
    resize_nearest,
)
from boxwright.types.pixels import (
    LARGEST,
    Scale,
    ValueRange,
    bits_to_drop,
    check_range,
    check_scale,
    find_white_level,
    pixel_kind,
    read_pil,
)

Images = Sequence[NDArray[Any] | Tensor | Image.Image] | NDArray[Any] | Tensor
_IMAGE, _BATCH = 3, 4
_COLORS = 3
# TF's; other libraries round 0.299, 0.587 and 0.114.
GRAY_WEIGHTS = (0.2989, 0.5870, 0.1140)


class Resize(Protocol):
    """An interpolation."""

    def __call__(self, image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
        """Return an image, or several, [..., H, W, C] resized to [..., height, width, C]."""
        ...


class ImageResizer:
    """Brings an image, or several of one size, to the network's input size."""

    convert_to_grayscale: bool = False
    image_channels: int = 3

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return an image resized and padded, and its (height, width) without padding.

        Args:
            image: [..., H, W, C]; several of one size at once take as many operations as one.

        Returns:
            float32 [..., H', W', C], and the size.
        """
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
    """Return RGB float [..., H, W, 3] as gray [..., H, W, 1], as `tf.image.rgb_to_grayscale`."""
    weights = constants(GRAY_WEIGHTS, image.device, image.dtype)
    return (image * weights).sum(-1, keepdim=True)


def _resized(resize: Resize, image: Tensor, size: tuple[int, int]) -> Tensor:
    """Return an image resized to float32, or to levels; one that already has the size is not resampled."""
    resized = image if image.shape[-3:-1] == size else resize(image, *size)
    return resized if resize in TO_LEVELS.values() else resized.float()


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
        """Return float32 [..., height, width, C or 1], and (height, width)."""
        resized = _resized(self.resize, image, (self.height, self.width))
        return (to_grayscale(resized) if self.convert_to_grayscale else resized), (self.height, self.width)


@dataclass(frozen=True)
class ResizedAfterwards(ImageResizer):
    """Resize to the size of another resizer first, then to the input's.

    Attributes:
        first: The other resizer.
        resize: The interpolation of its results.
    """

    first: FixedShapeResizer
    height: int
    width: int
    resize: Resize = resize_nearest

    @property
    def output_size(self) -> tuple[int, int]:
        """The (height, width) of every result."""
        return self.height, self.width

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return float32 [..., height, width, C or 1], and (height, width)."""
        return self.resize(self.first(image)[0], self.height, self.width), (self.height, self.width)


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
        """Return float32 [..., H', W', C or 1], and the (height, width) of the image in it."""
        size = self.new_size(*image.shape[-3:-1])
        resized = _resized(self.resize, image, size)
        if self.pad_to_max_dimension:
            resized = self._pad(resized)
        return (to_grayscale(resized) if self.convert_to_grayscale else resized), size

    def _pad(self, image: Tensor) -> Tensor:
        *batch, height, width, channels = image.shape
        color = self.per_channel_pad_value or (0.0,) * channels
        # Levels have no fractions, which a color may have.
        dtype = image.dtype if all(map(float.is_integer, map(float, color))) else torch.float32
        size = (*batch, self.max_dimension, self.max_dimension)
        # Before any scaling of pixels; `Preprocessor` decides whether the color is scaled too.
        if len(set(color)) == 1:  # a tenth of the time of a color
            padded = torch.full((*size, channels), color[0], dtype=dtype, device=image.device)
        else:
            padded = constants(color, image.device, dtype).repeat(*size, 1)
        padded[..., :height, :width, :] = image
        return padded


def to_levels_resizer(
    resizer: Callable[[Tensor], tuple[Tensor, tuple[int, int]]],
) -> Callable[[Tensor], tuple[Tensor, tuple[int, int]]]:
    """Return a resizer for uint8 images whose results are rounded afterwards: the same, or a faster one to uint8."""
    if isinstance(resizer, FixedShapeResizer | KeepAspectRatioResizer) and resizer.resize in TO_LEVELS:
        return replace(resizer, resize=TO_LEVELS[resizer.resize])
    return resizer


@dataclass(frozen=True)
class IdentityResizer(ImageResizer):
    """Leave every image unchanged."""

    image_channels: int = 3

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return float32 [..., H, W, C], and (H, W)."""
        return image.float(), (image.shape[-3], image.shape[-2])


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
        """Return float32 [..., H', W', C or 1], and (H', W')."""
        sides = np.array(image.shape[-3:-1], np.float32)
        side = sides.max() if self.shrink else sides.min()
        if side > self.threshold if self.shrink else side < self.threshold:
            height, width = (max(int(v), 1) for v in sides * (np.float32(self.threshold) / side))
            image = self.resize(image, height, width, align_corners=True)
        size = (image.shape[-3], image.shape[-2])
        return (to_grayscale(image.float()) if self.convert_to_grayscale else image.float()), size


@dataclass(frozen=True)
class PadToMultipleResizer(ImageResizer):
    """Pad with 0 below and right to multiples of a number."""

    multiple: int = 1
    convert_to_grayscale: bool = False
    image_channels: int = 3

    def __call__(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return float32 [..., H', W', C or 1], and (H, W)."""
        height, width = image.shape[-3:-1]
        below, right = -height % self.multiple, -width % self.multiple
        padded = torch.nn.functional.pad(image.float(), (0, 0, 0, right, 0, below))
        return (to_grayscale(padded) if self.convert_to_grayscale else padded), (height, width)


def image_tensors(images: Images, scale: Scale = "guess", channels: int = 3, white_level: float = 0.0) -> list[Tensor]:
    """Return each image as a tensor [H, W, 3], or of more channels, in 0..255.

    Args:
        images: HWC arrays, CHW tensors or PIL images, RGB or of one channel, which is repeated; alpha is dropped. A
            four-dimensional array or tensor is also accepted.
        scale: What is white in images that are not uint8: "pixels" for 255, "unit" for 1, as in torchvision, or the
            number. "guess" takes `white_level`, or else assumes pixels, and rejects a call whose largest float is no
            more than 1.
        channels: Where more than 3, images have exactly so many.
        white_level: What is white in the images that the detector was trained with; 0 if they were uint8.

    Raises:
        DataError: For an argument that is not a list of images, an image that is empty or has not three dimensions
            with 1, 3 or 4 channels, and values on another scale.
    """
    white = find_white_level(scale, white_level)
    tensors = list(_tensors(images, channels))
    # A call's images have one scale, which a dark one among them does not show.
    ranges = [None if tensor.dtype == torch.uint8 else _measure(tensor) for tensor in tensors]
    check_scale(ranges, white)
    return [
        tensor if values is None else _to_levels(tensor, check_range(values, white, f"image {number}"))
        for number, (tensor, values) in enumerate(zip(tensors, ranges, strict=True))
    ]


def _measure(tensor: Tensor) -> ValueRange:
    least, largest = torch.aminmax(tensor)
    name = str(tensor.dtype).removeprefix("torch.")
    return ValueRange("floats" if tensor.is_floating_point() else "integers", name, float(least), float(largest))


def _to_levels(tensor: Tensor, white: float) -> Tensor:
    """Return an image in 0..white as one in 0..255, by the same arithmetic as `types.pixels.to_levels`."""
    if white == LARGEST:
        return tensor
    if tensor.is_floating_point():
        return tensor * (LARGEST / white)
    if (shift := bits_to_drop(white)) is not None:
        return (tensor.to(torch.int64) >> shift).to(torch.uint8)
    return tensor.float() * (LARGEST / white)


def _tensors(images: Images, channels: int) -> Iterator[Tensor]:
    if isinstance(images, np.ndarray | Tensor):
        if images.ndim != _BATCH:
            raise DataError(f"expected a list of images, found one of shape {tuple(images.shape)}; write [image]")
    elif not isinstance(images, Sequence) or isinstance(images, str | bytes):
        raise DataError(f"expected a list of images, found {type(images).__name__}; of one image, write [image]")
    for number, image in enumerate(images):
        yield _as_hwc(image, number, channels)


def _as_hwc(image: object, number: int, channels: int) -> Tensor:
    if isinstance(image, Image.Image):
        image = read_pil(image)
    if isinstance(image, Tensor):
        tensor = image.permute(1, 2, 0) if image.ndim == _IMAGE else image
    elif isinstance(image, np.ndarray) and pixel_kind(image.dtype) is not None:
        # torch has few operators on unsigned integers of more than 8 bits.
        image = image.astype(np.int64) if image.dtype.kind == "u" and image.dtype.itemsize > 1 else image
        # Copied if strides are negative, as in image[..., ::-1], or bytes are swapped or read-only: torch rejects
        # those.
        odd = min(image.strides, default=0) < 0 or not image.flags.writeable
        tensor = torch.from_numpy(image.astype(image.dtype.newbyteorder("="), copy=odd))
    elif isinstance(image, np.ndarray):
        raise DataError(f"image {number}: expected numbers in 0..255, found an array of {image.dtype}")
    else:
        raise DataError(
            f"image {number}: expected an array, a tensor or a PIL image, found {type(image).__name__}; "
            "boxwright.data.image_io.read_image reads a file"
        )
    if tensor.ndim == _IMAGE - 1:
        tensor = tensor[..., None]
    accepted = (1, 3, 4) if channels == _COLORS else (channels,)
    if tensor.ndim != _IMAGE or tensor.shape[2] not in accepted or tensor.numel() == 0:
        kind = "CHW tensor" if isinstance(image, Tensor) else "HWC array"
        wanted = "1, 3 or 4 channels" if channels == _COLORS else f"the detector's {channels} channels"
        raise DataError(
            f"image {number}: expected a {kind} with {wanted} and some pixels, found shape {tuple(image.shape)}"
        )
    # A view: gray pixels are copied when images are resized, not before.
    return tensor.expand(-1, -1, 3) if tensor.shape[2] == 1 else tensor[..., :channels]


def scaled_by_opencv(image: Tensor, scale: float) -> Tensor:
    """Return an image [C, H, W] scaled by OpenCV's bilinear interpolation, with its dtype and device."""
    pixels = image.permute(1, 2, 0).contiguous().cpu().numpy()
    # By factors: given a size, OpenCV maps pixels by the ratio of whole sides, which is another scale.
    scaled = cv2.resize(pixels, (0, 0), fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    return torch.from_numpy(scaled.reshape(*scaled.shape[:2], -1)).permute(2, 0, 1).to(image.device)


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
        pixels, sizes = self.resize(images)
        sizes_on_device = without_wait(sizes, pixels.device)
        return self.normalize(pixels, sizes_on_device), sizes_on_device

    def resize(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `normalize` takes, [B, C, H', W'] on the preprocessor's device, and the sizes on the CPU."""
        on_device = without_wait(images, self.scale.device)
        # A GPU resizes a batch with few launches; a CPU is faster image by image, as each fits in its caches.
        parts = [self.resizer(part) for part in ([on_device] if on_device.is_cuda else on_device.split(1))]
        pixels = parts[0][0] if len(parts) == 1 else torch.cat([part for part, _ in parts])
        sizes = torch.tensor([parts[0][1]] * len(images), dtype=torch.int64)
        return pixels.permute(0, 3, 1, 2), sizes

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
