"""What a user asks for beside the data."""

from __future__ import annotations

import re
from dataclasses import dataclass

from boxwright.base.errors import ConfigError
from boxwright.base.settings import setting

# Trains from fresh weights on hundreds of images, on a CPU too.
DEFAULT_PRESET = "ssd_mobilenet_v2_fpn_small"
_SIZE = re.compile(r"([0-9]{1,5})(?:[x×]([0-9]{1,5}))?")
_LEAST_SIDE = 32


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What is not left to be chosen; `boxwright init` has an option for each."""

    model: str = setting("", "A preset, as boxwright models lists them; default: one for small data.")
    imgsz: str = setting("", "Input size: 320, or WIDTHxHEIGHT as 320x240; default: one that fits the objects.")
    batch: str = setting("auto", "Images of a step; auto for as many as fit the memory, at most 16.")
    epochs: float | None = setting(None, "Times through the images; default: by their number.", least=0)
    minutes: float | None = setting(
        None, "Train for about so long on this machine, instead of --epochs; steps are timed first.", least=0
    )
    weights: str = setting("", "A checkpoint of the same model to start from, such as a zoo archive.")
    device: str = setting("auto", "Where it is to be trained: cpu, cuda, one GPU as cuda:1, or auto.")
    allow_paths_outside: bool = setting(
        False, "Let annotations name files outside their folder, as a data.yaml with `path: ../data` does."
    )
    steps: bool = setting(True, "Try training steps, for a batch that fits the memory.")

    @property
    def preset(self) -> str:
        """The preset that is asked for, or the one for small data."""
        return self.model or DEFAULT_PRESET

    def image_size(self) -> tuple[int, int] | None:
        """Return (height, width) of the input; None to choose, or to keep what the preset is made for."""
        return size_of(self.imgsz) if self.imgsz else None

    def batch_size(self) -> int | None:
        """Return the batch size that is asked for; None to choose."""
        return batch_of(self.batch, "batch")


def batch_of(text: str, what: str) -> int | None:
    """Read a batch size.

    Args:
        text: A number of images, or auto.
        what: What the user calls it, for the error.

    Returns:
        The number; None for auto.

    Raises:
        ConfigError: Where it is neither a number above 0 nor auto.
    """
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{what} {text}: expected a number of images, or auto")
    return int(text)


def size_of(text: str) -> tuple[int, int]:
    """Read an input size.

    Args:
        text: A side in pixels, as 320, or WIDTHxHEIGHT, as 320x240.

    Raises:
        ConfigError: Where it is neither, or a side is below 32.
    """
    match = _SIZE.fullmatch(text)
    if match is None or not all(int(side) >= _LEAST_SIDE for side in match.groups() if side):
        raise ConfigError(f"imgsz {text}: expected a side in pixels, as 320, or WIDTHxHEIGHT, as 320x240; at least 32")
    width = int(match[1])
    return int(match[2] or width), width
