"""Choices that fit the data: input size, run length, batch size, augmentation; docs/data.md has their tables.

The settings of `boxwright init` are declared here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real

from boxwright.base.errors import ConfigError
from boxwright.base.read_settings import LOST, MOST_LOST, ReadSettings
from boxwright.base.settings import name_device, setting
from boxwright.base.text import counted, is_count

# Learns from random weights on hundreds of images, even on a CPU.
DEFAULT_PRESET = "ssd_hgnetv2_fpn_small"
# In place of a file of weights: a run starts from fresh ones.
NO_WEIGHTS = "none"
_SIZE = re.compile(r"([0-9]{1,5})(?:[x×]([0-9]{1,5}))?")
_LEAST_SIDE = 32


@dataclass(frozen=True, kw_only=True)
class InitSettings:
    """Choices that the user makes; `boxwright init` has an option for each."""

    model: str = setting(
        "",
        "A preset of boxwright models, a name of boxwright weights list, whose weights it starts from, or a run's "
        "folder, whose configuration and weights it takes; default: a preset for small data.",
    )
    imgsz: str = setting("", "Input size: 320, or WIDTHxHEIGHT as 320x240; default: one that fits the objects.")
    batch: str = setting("auto", "Batch size; auto for as many images as fit in memory, at most 16.")
    epochs: float | None = setting(None, "Passes over the images; default: by their number.", least=0)
    minutes: float | None = setting(
        None, "Train for about this long on this machine, instead of --epochs; steps are timed first.", least=0
    )
    weights: str = setting(
        "",
        "Weights to start from: a checkpoint, archive, .pth, .safetensors, hf://USER/NAME or a name of boxwright "
        "weights list; coco or imagenet for what is published for the preset; none for fresh ones.",
    )
    device: str = setting("auto", "Device to train on: cpu, cuda, one GPU as cuda:1, mps, or auto.")
    most_lost: float = setting(MOST_LOST, LOST[0].upper() + LOST[1:], least=0)
    reading: ReadSettings = field(default_factory=ReadSettings)
    steps: bool = setting(True, "Try training steps, to find a batch size that fits in memory.")

    def __post_init__(self) -> None:
        name_device(self)

    @property
    def preset(self) -> str:
        """The requested preset, or the one for small data."""
        return self.model or DEFAULT_PRESET

    def check_length(self) -> None:
        """Raise a ConfigError if epochs and minutes are both set, or one is infinite."""
        if self.epochs is not None and self.minutes is not None:
            raise ConfigError("epochs and minutes both set the run's length; remove one")
        for name, value in (("epochs", self.epochs), ("minutes", self.minutes)):
            if value is not None and not (isinstance(value, Real) and math.isfinite(value)):
                raise ConfigError(f"{name} {value!r}: expected a finite number")

    def image_size(self) -> tuple[int, int] | None:
        """Return the requested (height, width) of the input; None to choose it, or keep the preset's."""
        return parse_size(self.imgsz) if self.imgsz else None

    def batch_size(self) -> int | None:
        """Return the requested batch size; None to choose it."""
        return parse_batch_size(self.batch, "batch")


def parse_batch_size(text: str, what: str) -> int | None:
    """Return a batch size, None for auto; raise a ConfigError, which names `what`, for any other text."""
    if text == "auto":
        return None
    if not is_count(text) or int(text) < 1:
        raise ConfigError(f"{what} {text}: expected a number of images, or auto")
    return int(text)


def parse_size(text: str) -> tuple[int, int]:
    """Return (height, width) of 320 or 320x240 (width first); raise a ConfigError for other text or sides below 32."""
    match = _SIZE.fullmatch(text)
    if match is None or not all(int(side) >= _LEAST_SIDE for side in match.groups() if side):
        raise ConfigError(f"imgsz {text}: expected a side in pixels, as 320, or WIDTHxHEIGHT, as 320x240; minimum 32")
    width = int(match[1])
    return int(match[2] or width), width


# The side, in input pixels, of all but the smallest tenth of the objects: at least one and a half cells of the finest
# feature map, whose stride is 8; and, while inputs are cheap, enough for accurate boxes.
_LEAST_OBJECT, _GOOD_OBJECT = 12, 40
_CHEAP_INPUT = 384
_SIDES = (128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
_LEAST_INPUT = 256
_GRID = 16
_ENLARGED = 1.5
# (images up to, epochs). Training from scratch needs more epochs of fewer images.
_EPOCHS = ((200, 200), (1000, 150), (5000, 60), (20_000, 30), (100_000, 15))
_FEWEST_EPOCHS = 10
_LEAST_STEPS, _MOST_STEPS = 600, 90_000
_WARMUP = 0.05
# On a CPU a step takes as long as its images, and more steps learn more in the same time; a GPU is not busy with few.
_BATCH_ON_CPU, _BATCH = 8, 16
# From a detector's weights: a third of the epochs, a quarter of the rate (D-FINE's authors fine-tune N with 2e-4, which
# they train with 8e-4), statistics kept where a batch has too few images to estimate them, and a backbone that waits
# until what starts fresh has settled, where few images could spoil it.
_SHARE_OF_EPOCHS, _LEAST_FINE_TUNING = 1 / 3, 300
_SHARE_OF_RATE = 0.25
_FEW_FOR_STATISTICS = 16
_FEW_FOR_BACKBONE, _BACKBONE_WAITS = 1000, 0.1
# Classes whose meaning mirroring would change: names with left or right, and single characters.
_SIDED = re.compile(r"(^|[\W_])(left|right|l|r)([\W_]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Choice:
    """A choice as shown to users."""

    what: str
    chosen: str
    why: str


@dataclass(frozen=True)
class Length:
    """The length of a run; the learning rate rises in the first `warmup` steps."""

    steps: int
    warmup: int
    epochs: float


def choose_input(size: tuple[int, int], small_side: float, aspect: float) -> tuple[int, int]:
    """Return the (height, width) of a network's input for images of a size.

    The longer side is the first of 128, 192, 256, 320, 384, 448, 512, 640, 768, 896 and 1024 in which all but a tenth
    of the objects have sides of 12 pixels; up to 384, of 40 pixels. It is at least 256 (or the images' own side, if
    smaller) and at most one and a half times the images' own. The shorter side follows the images' aspect ratio.

    Args:
        small_side: The 10th percentile of the objects' sides, as a share of the image's longer side.
        aspect: The images' width over height; clipped to 1:2 and 2:1.
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
    """Return the length of training from scratch: epochs by the number of images, 600 to 90,000 steps, 5 % warmup."""
    steps = min(max(math.ceil(images * _epochs(images) / batch_size), _LEAST_STEPS), _MOST_STEPS)
    return Length(steps, max(round(steps * _WARMUP), 1), steps * batch_size / images)


def _epochs(images: int) -> int:
    return next((epochs for most, epochs in _EPOCHS if images <= most), _FEWEST_EPOCHS)


@dataclass(frozen=True)
class FineTuning:
    """How a run that starts from a detector's weights differs from one that starts from random ones.

    Attributes:
        rate: What learning rates are multiplied by.
        keep_statistics: Whether batch normalization keeps the statistics that came with the weights.
        backbone_from: The step from which the backbone learns.
    """

    rate: float
    keep_statistics: bool
    backbone_from: int


def choose_fine_tuning(images: int, batch_size: int, steps: int) -> FineTuning:
    """Return how a run from a detector's weights differs from one from random weights."""
    waits = round(steps * _BACKBONE_WAITS) if images < _FEW_FOR_BACKBONE else 0
    return FineTuning(_SHARE_OF_RATE, batch_size < _FEW_FOR_STATISTICS, waits)


def choose_fine_tuning_length(images: int, batch_size: int) -> Length:
    """Return the length of training from a detector's weights: a third of that from scratch, at least 300 steps."""
    whole = choose_length(images, batch_size)
    steps = max(round(images * _epochs(images) * _SHARE_OF_EPOCHS / batch_size), _LEAST_FINE_TUNING)
    steps = min(steps, whole.steps)
    return Length(steps, max(round(steps * _WARMUP), 1), steps * batch_size / images)


def choose_batch(images: int, *, on_cpu: bool = False) -> int:
    """Return the batch size: 16, on a CPU 8, or a quarter of the images if that is less."""
    return max(min(_BATCH_ON_CPU if on_cpu else _BATCH, images // 4), 1)


def choose_augmentation(images: int, names: Sequence[str], aspect: float) -> tuple[list[str], str]:
    """Return augmentation steps in text format, and the reasons; crops roughly keep the input's aspect ratio."""
    steps, reasons = [], []
    sided = [name for name in names if _SIDED.search(name) or len(name) == 1]
    if sided:
        reasons.append(f"no mirroring, which would change the meaning of {sided[0]!r}")
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
    return steps, f"{', '.join(reasons)} for {counted(images, 'image')}"
