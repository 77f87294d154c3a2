"""AutoAugment for detection: learned policies (Zoph et al., 2019), as in TF.

A policy is a list of sub-policies, one of which is drawn for each image: a sequence of operations, each with a
probability and a strength of 0 to 10. Operations on pixels, uint8 [H, W, C], are Pillow's as TF implements them: its
contrast blends with H × W / 256 instead of the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.functional import warp
from boxwright.data.augmentation.functional.pixels import GRAY_WEIGHTS, as_levels
from boxwright.types import Sample

_STRONGEST = 10
# Scales of strengths in TF's policies (`distort_image_with_autoaugment`).
_CUTOUT, _BOX_CUTOUT, _BOX_CUTOUT_SHARE = 100, 50, 0.75
_SHIFT, _BOX_SHIFT = 250, 120
_DEGREES, _SHEAR = 30.0, 0.3
# TF divides the probability of operations on boxes by three.
_RARER = 3
Levels = NDArray[np.uint8]
Change = Callable[[Sample, float, np.random.Generator], Sample]
Patch = Callable[[Levels, float, np.random.Generator], Levels]
_SOLARIZED_BELOW = 128
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def autocontrast(image: Levels) -> Levels:
    """Return an image with channels stretched to 0..255; constant channels stay."""
    low, high = image.min((0, 1)).astype(np.float32), image.max((0, 1)).astype(np.float32)
    scale = np.float32(255) / np.maximum(high - low, 1)
    stretched = np.clip(image * scale - low * scale, 0, 255).astype(np.uint8)
    return np.where(high > low, stretched, image)


def equalize(image: Levels) -> Levels:
    """Return an image with equalized histograms."""
    equal = np.empty_like(image)
    for channel in range(image.shape[2]):
        counts = np.bincount(image[..., channel].reshape(-1), minlength=256)
        # Pillow's rule: the last level that occurs does not count.
        step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
        table = np.arange(256)
        if step:
            table = np.clip(np.concatenate([[0], ((np.cumsum(counts) + step // 2) // step)[:-1]]), 0, 255)
        equal[..., channel] = table.astype(np.uint8)[image[..., channel]]
    return equal


def posterize(image: Levels, bits: int) -> Levels:
    """Return an image with only the upper bits, at least one."""
    # Strength 2 gives 0 bits; TF's shift operators clamp the shift of 8 to 7, which keeps the highest bit.
    return image & np.uint8((0xFF << (8 - max(bits, 1))) & 0xFF)


def solarize(image: Levels, threshold: int) -> Levels:
    """Return an image with levels from a threshold on inverted; from 256 on all, as TF compares in 8 bits."""
    return np.where(image < threshold % 256, image, 255 - image)


def solarize_add(image: Levels, addition: int) -> Levels:
    """Return an image with levels below 128 raised."""
    raised = np.clip(image.astype(np.int64) + addition, 0, 255).astype(np.uint8)
    return np.where(image < _SOLARIZED_BELOW, raised, image)


def blend_with_gray(image: Levels, factor: float) -> Levels:
    """Return a blend of an image (1) with its luminance (0), extrapolated beyond: its color."""
    luminance = (image.astype(np.float32) / 255) @ GRAY_WEIGHTS
    gray = (luminance * np.float32(255.5)).astype(np.uint8)  # as TF casts shares of the range to levels
    return _blend(np.broadcast_to(gray[..., None], image.shape), image, factor)


def blend_with_flat(image: Levels, factor: float) -> Levels:
    """Return a blend of an image with a constant gray: its contrast."""
    flat = np.uint8(min(image.shape[0] * image.shape[1] / 256, 255))
    return _blend(np.full_like(image, flat), image, factor)


def blend_with_black(image: Levels, factor: float) -> Levels:
    """Return a blend of an image with black: its brightness."""
    return _blend(np.zeros_like(image), image, factor)


def blend_with_smooth(image: Levels, factor: float) -> Levels:
    """Return a blend of an image with its smoothed self: its sharpness. The outermost pixels stay."""
    smooth = image.copy()
    inner = np.asarray(cv2.filter2D(image.astype(np.float32), -1, _SMOOTH)).reshape(image.shape)[1:-1, 1:-1]
    smooth[1:-1, 1:-1] = np.clip(inner, 0, 255).astype(np.uint8)
    return _blend(smooth, image, factor)


def _blend(first: Levels, second: Levels, factor: float) -> Levels:
    """Interpolate or extrapolate from one image (0) to another (1); levels are truncated."""
    base = first.astype(np.float32)
    return np.clip(base + np.float32(factor) * (second - base), 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class Kind:
    """An operation that policies name; either `image` or `patch` is set.

    Attributes:
        argument: Maps a strength of 0 to 1 to the operation's argument.
        signed: Whether the argument is negated half of the time.
        patch: Changes the pixels in each box, drawn for each box.
    """

    argument: Callable[[float], float]
    signed: bool = False
    image: Change | None = None
    patch: Patch | None = None


@dataclass(frozen=True)
class Operation:
    """An operation in a sub-policy; `name` is a key of `OPERATIONS`, `level` its strength from 0 to 10."""

    name: str
    probability: float
    level: float


@dataclass(frozen=True)
class AutoAugment:
    """Apply one of several sub-policies."""

    policy: Sequence[Sequence[Operation]]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample; its pixels are uint8."""
        # TF draws the signs of all sub-policies before it chooses one.
        signed = [OPERATIONS[operation.name].signed for chosen in self.policy for operation in chosen]
        signs = iter(rng.random(sum(signed)) >= 0.5 if any(signed) else ())
        arguments = [[_argument(operation, signs) for operation in chosen] for chosen in self.policy]
        number = int(rng.integers(0, len(self.policy)))
        sample = replace(sample, image=as_levels(sample.image))
        for operation, argument in zip(self.policy[number], arguments[number], strict=True):
            kind, drawn = OPERATIONS[operation.name], rng.random()
            if kind.patch is not None:
                sample = in_boxes(sample, kind.patch, argument, operation.probability / _RARER, rng)
            # TF applies an operation where floor(drawn + probability) is 1.
            elif kind.image is not None and drawn + operation.probability >= 1:
                sample = kind.image(sample, argument, rng)
        return sample


def _argument(operation: Operation, signs: Any) -> float:
    kind = OPERATIONS[operation.name]
    argument = kind.argument(operation.level / _STRONGEST)
    return argument if not kind.signed or next(signs) else -argument


def in_boxes(sample: Sample, patch: Patch, argument: float, probability: float, rng: np.random.Generator) -> Sample:
    """Change the pixels in some of the boxes, in random order."""
    if not len(sample.boxes):
        return sample
    image = sample.image.copy()
    height, width = image.shape[:2]
    boxes = np.trunc(sample.boxes).astype(np.int64)
    for x_min, y_min, x_max, y_max in rng.permutation(boxes):
        if rng.random() + probability < 1:
            continue
        # TF's corners are whole pixels that both belong to the box.
        window = np.s_[max(y_min, 0) : min(y_max, height - 1) + 1, max(x_min, 0) : min(x_max, width - 1) + 1]
        if image[window].size:
            image[window] = patch(image[window], argument, rng)
    return replace(sample, image=image)


def cutout(image: Levels, half: float, rng: np.random.Generator) -> Levels:
    """Return an image with a gray square about a random pixel, twice `half` long."""
    return _cut_out(image, (0, 0, *image.shape[:2]), (int(half), int(half)), warp.FILL, rng)


def _cut_out(
    image: Levels, window: tuple[int, int, int, int], half: tuple[int, int], fill: Any, rng: np.random.Generator
) -> Levels:
    """Fill a rectangle whose center lies in a window (y_min, x_min, y_max, x_max)."""
    center = [int(rng.integers(low, high)) for low, high in zip(window[:2], window[2:], strict=True)]
    rows, columns = (slice(max(c - h, 0), max(c + h, 0)) for c, h in zip(center, half, strict=True))
    image = image.copy()
    image[rows, columns] = fill
    return image


def gray_fill(content: Levels) -> int:
    """Return the fill of all of TF's policies."""
    del content
    return warp.FILL


def mean_fill(content: Levels) -> Levels:
    """Return the mean of the pixels that a rectangle hides, truncated."""
    return np.asarray(content.mean((0, 1)), np.uint8)


def cutout_in_a_box(
    sample: Sample, share: float, rng: np.random.Generator, fill: Callable[[Levels], Any] = gray_fill
) -> Sample:
    """Return a sample with a rectangle filled in one of its boxes, its sides a share of the box's."""
    if not len(sample.boxes):
        return sample
    box = np.trunc(sample.boxes[int(rng.integers(0, len(sample.boxes)))]).astype(np.int64).tolist()
    x_min, y_min, x_max, y_max = box
    tall, wide = y_max - y_min + 1, x_max - x_min + 1
    if tall < 1 or wide < 1:
        return sample
    window = (y_min, x_min, y_max + 1, x_max + 1)
    half = int(np.float32(share) * np.float32(tall / 2)), int(np.float32(share) * np.float32(wide / 2))
    content = sample.image[max(y_min, 0) : y_max + 1, max(x_min, 0) : x_max + 1]
    return replace(sample, image=_cut_out(sample.image, window, half, fill(content), rng))


def _no_argument(share: float) -> float:
    del share
    return 0.0


def _times(most: float) -> Callable[[float], float]:
    return lambda share: share * most


def _whole(most: float) -> Callable[[float], float]:
    return lambda share: int(share * most)


def _blending(share: float) -> float:
    # Factors go from nearly the degenerate image (0.1) through the image itself (1) to as far beyond it (1.9).
    return share * 1.8 + 0.1


def _pixels(change: Callable[[Levels, float], Levels]) -> Change:
    """Turn a change of pixels into one of a sample."""
    return lambda sample, argument, _: replace(sample, image=change(sample.image, argument))


def _warped(where: Callable[[Levels, float], warp.Affine]) -> Patch:
    return lambda image, argument, _: warp.warp(image, where(image, argument), warp.FILL)


OPERATIONS: dict[str, Kind] = {
    "AutoContrast": Kind(_no_argument, image=_pixels(lambda image, _: autocontrast(image))),
    "Equalize": Kind(_no_argument, image=_pixels(lambda image, _: equalize(image))),
    "Posterize": Kind(_whole(4), image=_pixels(lambda image, bits: posterize(image, int(bits)))),
    "Solarize": Kind(_whole(256), image=_pixels(lambda image, level: solarize(image, int(level)))),
    "SolarizeAdd": Kind(_whole(110), image=_pixels(lambda image, level: solarize_add(image, int(level)))),
    "Color": Kind(_blending, image=_pixels(blend_with_gray)),
    "Contrast": Kind(_blending, image=_pixels(blend_with_flat)),
    "Brightness": Kind(_blending, image=_pixels(blend_with_black)),
    "Sharpness": Kind(_blending, image=_pixels(blend_with_smooth)),
    "Cutout": Kind(_whole(_CUTOUT), image=lambda s, half, rng: replace(s, image=cutout(s.image, half, rng))),
    "BBox_Cutout": Kind(_times(_BOX_CUTOUT_SHARE), image=cutout_in_a_box),
    "Rotate_BBox": Kind(_times(_DEGREES), signed=True, image=lambda s, degrees, _: warp.rotate(s, degrees)),
    "TranslateX_BBox": Kind(_times(_SHIFT), signed=True, image=lambda s, pixels, _: warp.shift(s, pixels, 0)),
    "TranslateY_BBox": Kind(_times(_SHIFT), signed=True, image=lambda s, pixels, _: warp.shift(s, pixels, 1)),
    "ShearX_BBox": Kind(_times(_SHEAR), signed=True, image=lambda s, level, _: warp.shear(s, level, 0)),
    "ShearY_BBox": Kind(_times(_SHEAR), signed=True, image=lambda s, level, _: warp.shear(s, level, 1)),
    "Rotate_Only_BBoxes": Kind(
        _times(_DEGREES), signed=True, patch=_warped(lambda p, degrees: warp.rotation(degrees, *p.shape[:2]))
    ),
    "ShearX_Only_BBoxes": Kind(_times(_SHEAR), signed=True, patch=_warped(lambda _, level: warp.shear_x(level))),
    "ShearY_Only_BBoxes": Kind(_times(_SHEAR), signed=True, patch=_warped(lambda _, level: warp.shear_y(level))),
    "TranslateX_Only_BBoxes": Kind(
        _times(_BOX_SHIFT), signed=True, patch=_warped(lambda _, pixels: warp.translation(pixels, 0))
    ),
    "TranslateY_Only_BBoxes": Kind(
        _times(_BOX_SHIFT), signed=True, patch=_warped(lambda _, pixels: warp.translation(0, pixels))
    ),
    "Flip_Only_BBoxes": Kind(_no_argument, patch=lambda image, _, rng: image[:, ::-1]),
    "Solarize_Only_BBoxes": Kind(_whole(256), patch=lambda image, level, _: solarize(image, int(level))),
    "Equalize_Only_BBoxes": Kind(_no_argument, patch=lambda image, _, rng: equalize(image)),
    "Cutout_Only_BBoxes": Kind(_whole(_BOX_CUTOUT), patch=cutout),
}


def _parse(text: str) -> tuple[tuple[Operation, ...], ...]:
    """Parse a policy: one sub-policy per line, operations as name, probability, level."""
    lines = [line.split() for line in text.strip().splitlines()]
    return tuple(
        tuple(Operation(line[i], float(line[i + 1]), float(line[i + 2])) for i in range(0, len(line), 3))
        for line in lines
    )


# The policies of TF's `autoaugment_utils`, as the search left them: with operations of probability 0.
_V0 = """
TranslateX_BBox 0.6 4 Equalize 0.8 10
TranslateY_Only_BBoxes 0.2 2 Cutout 0.8 8
Sharpness 0.0 8 ShearX_BBox 0.4 0
ShearY_BBox 1.0 2 TranslateY_Only_BBoxes 0.6 6
Rotate_BBox 0.6 10 Color 1.0 6
"""

_V1_MORE = """
Color 0.0 0 ShearX_Only_BBoxes 0.8 4
ShearY_Only_BBoxes 0.8 2 Flip_Only_BBoxes 0.0 10
Equalize 0.6 10 TranslateX_BBox 0.2 2
Color 1.0 10 TranslateY_Only_BBoxes 0.4 6
Rotate_BBox 0.8 10 Contrast 0.0 10
Cutout 0.2 2 Brightness 0.8 10
Color 1.0 6 Equalize 1.0 2
Cutout_Only_BBoxes 0.4 6 TranslateY_Only_BBoxes 0.8 2
Color 0.2 8 Rotate_BBox 0.8 10
Sharpness 0.4 4 TranslateY_Only_BBoxes 0.0 4
Sharpness 1.0 4 SolarizeAdd 0.4 4
Rotate_BBox 1.0 8 Sharpness 0.2 8
ShearY_BBox 0.6 10 Equalize_Only_BBoxes 0.6 8
ShearX_BBox 0.2 6 TranslateY_Only_BBoxes 0.2 10
SolarizeAdd 0.6 8 Brightness 0.8 10
"""

_V2 = """
Color 0.0 6 Cutout 0.6 8 Sharpness 0.4 8
Rotate_BBox 0.4 8 Sharpness 0.4 2 Rotate_BBox 0.8 10
TranslateY_BBox 1.0 8 AutoContrast 0.8 2
AutoContrast 0.4 6 ShearX_BBox 0.8 8 Brightness 0.0 10
SolarizeAdd 0.2 6 Contrast 0.0 10 AutoContrast 0.6 0
Cutout 0.2 0 Solarize 0.8 8 Color 1.0 4
TranslateY_BBox 0.0 4 Equalize 0.6 8 Solarize 0.0 10
TranslateY_BBox 0.2 2 ShearY_BBox 0.8 8 Rotate_BBox 0.8 8
Cutout 0.8 8 Brightness 0.8 8 Cutout 0.2 2
Color 0.8 4 TranslateY_BBox 1.0 6 Rotate_BBox 0.6 6
Rotate_BBox 0.6 10 BBox_Cutout 1.0 4 Cutout 0.2 8
Rotate_BBox 0.0 0 Equalize 0.6 6 ShearY_BBox 0.6 8
Brightness 0.8 8 AutoContrast 0.4 2 Brightness 0.2 2
TranslateY_BBox 0.4 8 Solarize 0.4 6 SolarizeAdd 0.2 10
Contrast 1.0 10 SolarizeAdd 0.2 8 Equalize 0.2 4
"""

_V3 = """
Posterize 0.8 2 TranslateX_BBox 1.0 8
BBox_Cutout 0.2 10 Sharpness 1.0 8
Rotate_BBox 0.6 8 Rotate_BBox 0.8 10
Equalize 0.8 10 AutoContrast 0.2 10
SolarizeAdd 0.2 2 TranslateY_BBox 0.2 8
Sharpness 0.0 2 Color 0.4 8
Equalize 1.0 8 TranslateY_BBox 1.0 8
Posterize 0.6 2 Rotate_BBox 0.0 10
AutoContrast 0.6 0 Rotate_BBox 1.0 6
Equalize 0.0 4 Cutout 0.8 10
Brightness 1.0 2 TranslateY_BBox 1.0 6
Contrast 0.0 2 ShearY_BBox 0.8 0
AutoContrast 0.8 10 Contrast 0.2 10
Rotate_BBox 1.0 10 Cutout 1.0 10
SolarizeAdd 0.8 6 Equalize 0.8 8
"""

POLICIES: dict[str, tuple[tuple[Operation, ...], ...]] = {
    "v0": _parse(_V0),
    "v1": _parse(_V0) + _parse(_V1_MORE),
    "v2": _parse(_V2),
    "v3": _parse(_V3),
    "test": _parse("TranslateX_BBox 1.0 4 Equalize 1.0 10"),
}
