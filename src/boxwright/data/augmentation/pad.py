"""Random changes of size, and padding: the image at a random position on a larger canvas, or in its corner."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from boxwright.data.augmentation.crop import RandomCrop, crop, overlapping, touching
from boxwright.data.augmentation.functional.geometry import Resize, Window, pad, resize
from boxwright.data.augmentation.functional.pixels import Pixels, like, make_canvas
from boxwright.nn.ops.resize import resize_area, resize_bicubic, resize_bilinear, resize_nearest
from boxwright.types import Sample

# The order is that of TF's `ResizeMethod`.
_METHODS: tuple[Resize, ...] = (resize_bilinear, resize_nearest, resize_bicubic, resize_area)


@dataclass(frozen=True)
class ResizeTo:
    """Resize the image to (height, width), ignoring its aspect ratio."""

    size: tuple[int, int]
    method: Resize = resize_bilinear

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        del rng
        return resize(sample, *self.size, self.method)


@dataclass(frozen=True)
class RandomResizeMethod:
    """Resize the image to (height, width) by bilinear, nearest, bicubic or area interpolation."""

    size: tuple[int, int]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        return resize(sample, *self.size, _METHODS[int(rng.integers(0, len(_METHODS)))])


@dataclass(frozen=True)
class RandomScale:
    """Resize by a random factor between (min, max) (TF's `random_image_scale`)."""

    factors: tuple[float, float] = (0.5, 2.0)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        factor = np.float32(rng.uniform(*self.factors))
        height, width = (max(int(np.float32(side) * factor), 1) for side in sample.image.shape[:2])
        # TF's function asks for aligned corners here, unlike in its resizers.
        return resize(sample, height, width, align_corners=True)


@dataclass(frozen=True)
class RandomDownscale:
    """Shrink the image to a random number of pixels if it has more.

    Attributes:
        keep_probability: The probability that the image stays unchanged.
    """

    pixels: tuple[int, int] = (300_000, 800_000)
    keep_probability: float = 0.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, smaller or unchanged."""
        kept, target = rng.random() <= self.keep_probability, int(rng.integers(*self.pixels))
        height, width = sample.image.shape[:2]
        if kept or height * width <= target:
            return sample
        factor = math.sqrt(target / (height * width))
        return resize(sample, max(int(height * factor), 1), max(int(width * factor), 1))


@dataclass(frozen=True)
class RandomScaleCropPad:
    """Scale at random, then crop to a square at random if larger, and pad if smaller (EfficientDet, section 5.1).

    Attributes:
        side: Of the square, in pixels.
        scales: (min, max) of the longer side, in units of the square's.
    """

    side: int = 512
    scales: tuple[float, float] = (0.1, 2.0)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a sample of that size; boxes are clipped, those entirely outside are dropped."""
        height, width = sample.image.shape[:2]
        scale, longest = np.float32(rng.uniform(*self.scales)) * np.float32(self.side), np.float32(max(height, width))
        tall, wide = (max(int(scale * (np.float32(side) / longest)), 1) for side in (height, width))
        y, x = (int(np.float32(max(size - self.side, 0)) * np.float32(rng.random())) for size in (tall, wide))
        scaled = resize(sample, tall, wide, masks_method=resize_bilinear)
        window = (x, y, min(x + self.side, wide), min(y + self.side, tall))
        inside = crop(scaled, window, touching(scaled.boxes, window), clip_boxes=True)
        canvas = np.zeros((self.side, self.side, sample.image.shape[2]), inside.image.dtype)
        return pad(inside, canvas, (0, 0))


# One level per channel; None for the image's own mean.
Color = tuple[float, ...] | None
Size = tuple[int, int]


@dataclass(frozen=True)
class RandomPad:
    """Place the image at a random position on a canvas of random size.

    Attributes:
        min_size: (height, width); None for the image's own.
        max_size: (height, width), excluded; None for twice the image's.
    """

    min_size: Size | None = None
    max_size: Size | None = None
    color: Color = None

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, padded; unchanged if the canvas has its size."""
        height, width = sample.image.shape[:2]
        return _on_canvas(
            sample, self.min_size or (height, width), self.max_size or (2 * height, 2 * width), self.color, rng
        )


@dataclass(frozen=True)
class RandomAbsolutePad:
    """Place the image at a random position on a canvas that is larger by a random number of pixels."""

    max_padding: tuple[int, int]
    color: Color = None

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, padded."""
        height, width = sample.image.shape[:2]
        rows, columns = (max(most, 1) for most in self.max_padding)
        return _on_canvas(sample, (height, width), (height + rows, width + columns), self.color, rng)


@dataclass(frozen=True)
class RandomCropPad:
    """Crop, then place the crop on a canvas whose size is in units of the original image.

    Attributes:
        min_ratios: Minimum height and width of the canvas.
        color: Of the canvas; None for the crop's mean.
    """

    crop: RandomCrop
    min_ratios: tuple[float, float] = (1.0, 1.0)
    max_ratios: tuple[float, float] = (2.0, 2.0)
    color: Color = None

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, cropped and padded."""
        height, width = sample.image.shape[:2]
        least, most = (
            (int(np.float32(height) * np.float32(tall)), int(np.float32(width) * np.float32(wide)))
            for tall, wide in (self.min_ratios, self.max_ratios)
        )
        return _on_canvas(self.crop(sample, rng), least, most, self.color, rng)


@dataclass(frozen=True)
class RandomPadToAspectRatio:
    """Pad with black at the bottom and right to an aspect ratio, and at random beyond that.

    Attributes:
        min_ratios: Minimum height and width, in units of the image.
        max_ratios: Maximum height and width; more if the aspect ratio requires it.
    """

    aspect_ratio: float = 1.0
    min_ratios: tuple[float, float] = (1.0, 1.0)
    max_ratios: tuple[float, float] = (2.0, 2.0)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, padded."""
        height, width = sample.image.shape[:2]
        tall = max(height, width / self.aspect_ratio)
        wide = max(width, height * self.aspect_ratio)
        highest = min(max(self.max_ratios[0] * height / tall, 1.0), max(self.max_ratios[1] * width / wide, 1.0))
        lowest = max(self.min_ratios[0] * height / tall, self.min_ratios[1] * width / wide, 1.0)
        scale = rng.uniform(min(lowest, highest), highest)
        size = max(round(scale * tall), height), max(round(scale * wide), width)
        return pad(sample, _canvas(sample.image, size, (0.0,)), (0, 0))


def _on_canvas(sample: Sample, least: Size, most: Size, color: Color, rng: np.random.Generator) -> Sample:
    """Place an image at random on a canvas of random size; no side is shorter than the image's."""
    sides = sample.image.shape[0], sample.image.shape[1]
    drawn = _draw_each(
        rng,
        [max(a, b) for a, b in zip(least, sides, strict=True)],
        [max(a, b) for a, b in zip(most, sides, strict=True)],
    )
    top, left = _draw_each(rng, [0, 0], [size - side for size, side in zip(drawn, sides, strict=True)])
    if drawn == sides:
        return sample
    return pad(sample, _canvas(sample.image, drawn, color), (left, top))


def _draw_each(rng: np.random.Generator, low: list[int], high: list[int]) -> Size:
    """Draw two integers from `low` to `high`, excluded; `high` if the range is empty."""
    # NumPy refuses an empty range; TF returns its end.
    first, second = (int(rng.integers(a, b)) if b > a else b for a, b in zip(low, high, strict=True))
    return first, second


def _canvas(image: Pixels, size: Size, color: Color) -> Pixels:
    """Return a canvas of one color, with the image's data type."""
    levels = image.mean((0, 1)) if color is None else np.asarray(color)
    # `like` rounds a mean for uint8; the canvas would truncate it.
    return make_canvas(size, like(image, levels.astype(np.float32)), image)


@dataclass(frozen=True)
class LargeScaleJitter:
    """Scale by a wide range, crop at random if larger than the result, pad if smaller (Ghiasi et al., 2021).

    TF's `random_scale_crop_and_pad_to_square` is the same for squares, in black, and without `min_visible`.

    Attributes:
        scales: (min, max); 1 fits the image into the result.
        min_visible: The share of a box that must be visible for it to stay.
        color: Of the padding at the bottom and right.
    """

    size: tuple[int, int] = (1024, 1024)
    scales: tuple[float, float] = (0.1, 2.0)
    min_visible: float = 0.2
    color: tuple[float, ...] = (114.0,)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a sample of that size; boxes are clipped."""
        sides = sample.image.shape[:2]
        scale = rng.uniform(*self.scales) * min(new / old for new, old in zip(self.size, sides, strict=True))
        tall, wide = (max(round(side * scale), 1) for side in sides)
        shown = min(tall, self.size[0]), min(wide, self.size[1])
        top, left = int(rng.integers(0, tall - shown[0] + 1)), int(rng.integers(0, wide - shown[1] + 1))
        scaled = resize(sample, tall, wide)
        window: Window = (left, top, left + shown[1], top + shown[0])
        inside = crop(scaled, window, overlapping(scaled.boxes, window, self.min_visible), clip_boxes=True)
        return pad(inside, make_canvas(self.size, self.color, inside.image), (0, 0))
