"""What fits data: the input's size, the run's length, augmentation. Plain functions; docs/data.md has their tables."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

# Pixels a side of the input that all but a tenth of the objects cover: at least one and a half cells of the finest map,
# which has one of 8 pixels; and, as long as that costs little, what makes boxes accurate.
_LEAST_OBJECT, _GOOD_OBJECT = 12, 48
_CHEAP_INPUT = 384
_SIDES = (128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
_LEAST_INPUT = 256
_GRID = 16
_ENLARGED = 1.5
# (images up to, times through them). From scratch few images want many rounds; more images, fewer.
_EPOCHS = ((200, 200), (1000, 150), (5000, 60), (20_000, 30), (100_000, 15))
_FEWEST_EPOCHS = 10
_LEAST_STEPS, _MOST_STEPS = 600, 90_000
_WARMUP = 0.05
_BATCH = 16
# Names by which left and right are told apart, or characters, which a mirror changes.
_SIDED = re.compile(r"(^|[\W_])(left|right|l|r)([\W_]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Choice:
    """Something that was chosen, for people: what, how, why."""

    what: str
    chosen: str
    why: str


@dataclass(frozen=True)
class Length:
    """How long a run is.

    Attributes:
        steps: In all.
        warmup: Of them, those in which the learning rate rises.
        epochs: Times through the images.
    """

    steps: int
    warmup: int
    epochs: float


def choose_input(size: tuple[int, int], small_side: float, aspect: float) -> tuple[int, int]:
    """Return the (height, width) of a network's input for images and objects.

    The longer side is the first of 128, 192, 256, 320, 384, 448, 512, 640, 768, 896 and 1024 in which all but a tenth
    of the objects cover 12 pixels a side; up to 384, in which they cover 48. It is at least 256 (of smaller images,
    their own side) and at most one and a half times the images' own. The shorter side follows the images' shape.

    Args:
        small_side: The side that a tenth of the objects fall below, as a share of the image's longer side.
        aspect: The images' width over height; beyond 2 to 1 it counts as that.

    Returns:
        Multiples of 32, but for sides of 128.
    """
    own = max(size)
    object_side = max(small_side, 1e-6)
    accurate = min(_GOOD_OBJECT / object_side, _CHEAP_INPUT)
    wanted = max(_LEAST_OBJECT / object_side, accurate, min(_LEAST_INPUT, own))
    most = own * _ENLARGED
    fitting = [side for side in _SIDES if side <= max(most, _SIDES[0])]
    longer = next((side for side in fitting if side >= wanted), fitting[-1])
    bounded = min(max(aspect, 0.5), 2.0)
    shorter = max(round(longer / max(bounded, 1 / bounded) / _GRID) * _GRID, _GRID)
    return (shorter, longer) if bounded >= 1 else (longer, shorter)


def choose_length(images: int, batch_size: int) -> Length:
    """Return how long to train from scratch: more often through fewer images.

    | images up to | times through them |
    |-------------:|-------------------:|
    |          200 |                200 |
    |         1000 |                150 |
    |         5000 |                 60 |
    |       20,000 |                 30 |
    |      100,000 |                 15 |
    |         more |                 10 |

    At least 600 and at most 90,000 steps; a twentieth of them warms up.
    """
    epochs = next((epochs for most, epochs in _EPOCHS if images <= most), _FEWEST_EPOCHS)
    steps = min(max(math.ceil(images * epochs / batch_size), _LEAST_STEPS), _MOST_STEPS)
    return Length(steps, max(round(steps * _WARMUP), 1), steps * batch_size / images)


def choose_batch(images: int, most: int = _BATCH) -> int:
    """Return the batch size: 16, or as many as the preset is for; with fewer than 4 such batches of images, fewer."""
    return max(min(most, images // 4), 1)


def choose_augmentation(images: int, names: Sequence[str], aspect: float) -> tuple[list[str], str]:
    """Return steps of augmentation in text format, and why these.

    Args:
        aspect: Width over height of the input, which crops keep roughly.
    """
    steps, reasons = [], []
    sided = [name for name in names if _SIDED.search(name) or len(name) == 1]
    if sided:
        reasons.append(f"no mirroring, as {sided[0]!r} would change its meaning")
    else:
        steps.append("random_horizontal_flip { }")
        reasons.append("mirroring")
    if images <= 20_000:
        low, high = round(0.75 * aspect, 3), round(1.35 * aspect, 3)
        steps.append(
            f"random_crop_image {{ min_object_covered: 0.0 min_aspect_ratio: {low:g} max_aspect_ratio: {high:g} "
            "min_area: 0.5 max_area: 1.0 overlap_thresh: 0.4 random_coef: 0.4 }"
        )
        reasons.append("crops")
    if images <= 5000:
        steps += [
            "random_adjust_brightness { max_delta: 0.12 }",
            "random_adjust_contrast { min_delta: 0.8 max_delta: 1.25 }",
        ]
        reasons.append("brightness and contrast")
    return steps, f"{', '.join(reasons)} for {images} images"
