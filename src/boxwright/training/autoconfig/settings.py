"""Settings of `boxwright init`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from boxwright.base.errors import ConfigError
from boxwright.base.read_settings import LOST, MOST_LOST, ReadSettings
from boxwright.base.settings import setting

# Learns from random weights on hundreds of images, even on a CPU.
DEFAULT_PRESET = "ssd_hgnetv2_fpn_small"
# In place of a file of weights: a run starts from fresh ones.
NO_WEIGHTS = "none"
_SIZE = re.compile(r"([0-9]{1,5})(?:[x×]([0-9]{1,5}))?")
_LEAST_SIDE = 32


@dataclass(frozen=True, kw_only=True)
class InitSettings:
    """Choices that the user makes; `boxwright init` has an option for each."""

    model: str = setting("", "A preset, as listed by boxwright models; default: one for small data.")
    imgsz: str = setting("", "Input size: 320, or WIDTHxHEIGHT as 320x240; default: one that fits the objects.")
    batch: str = setting("auto", "Batch size; auto for as many images as fit in memory, at most 16.")
    epochs: float | None = setting(None, "Passes over the images; default: by their number.", least=0)
    minutes: float | None = setting(
        None, "Train for about this long on this machine, instead of --epochs; steps are timed first.", least=0
    )
    weights: str = setting(
        "",
        "Weights to start from: a checkpoint, archive, .pth, .safetensors or hf://USER/NAME; none for fresh ones.",
    )
    device: str = setting("auto", "Device to train on: cpu, cuda, one GPU as cuda:1, or auto.")
    most_lost: float = setting(MOST_LOST, LOST[0].upper() + LOST[1:], least=0)
    reading: ReadSettings = field(default_factory=ReadSettings)
    steps: bool = setting(True, "Try training steps, to find a batch size that fits in memory.")

    @property
    def preset(self) -> str:
        """The requested preset, or the one for small data."""
        return self.model or DEFAULT_PRESET

    def image_size(self) -> tuple[int, int] | None:
        """Return the requested (height, width) of the input; None to choose it, or keep the preset's."""
        return size_of(self.imgsz) if self.imgsz else None

    def batch_size(self) -> int | None:
        """Return the requested batch size; None to choose it."""
        return batch_of(self.batch, "batch")


def batch_of(text: str, what: str) -> int | None:
    """Return a batch size, None for auto; raise a ConfigError, which names `what`, for any other text."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{what} {text}: expected a number of images, or auto")
    return int(text)


def size_of(text: str) -> tuple[int, int]:
    """Return (height, width) of 320 or 320x240 (width first); raise a ConfigError for other text or sides below 32."""
    match = _SIZE.fullmatch(text)
    if match is None or not all(int(side) >= _LEAST_SIDE for side in match.groups() if side):
        raise ConfigError(f"imgsz {text}: expected a side in pixels, as 320, or WIDTHxHEIGHT, as 320x240; minimum 32")
    width = int(match[1])
    return int(match[2] or width), width
