"""Settings of reading a folder of annotated pictures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from boxwright.base.errors import ConfigError
from boxwright.base.settings import setting

# If a larger share of boxes or of pictures falls away, the data are not what they seem.
MOST_LOST = 0.05
LOST = "the fraction of boxes or of pictures that may be unusable; beyond it, nothing is written."

PATHS_OUTSIDE = "let annotations name files outside their folder, as a data.yaml with `path: ../data` does."
IGNORE_EXIF = (
    "labels refer to pixels as stored, for a tool that ignores EXIF orientations; default: to upright pictures, unless "
    "the annotation's own size shows otherwise."
)


class LabelConvention(StrEnum):
    """How labels differ from what their format says, in data of tools that write them so."""

    CORNERS = "corners"
    SIZES = "sizes"
    PIXELS = "pixels"
    SHARES = "shares"
    CORNERS_IN_PIXELS = "corners_in_pixels"
    CORNERS_IN_SHARES = "corners_in_shares"
    CLASSES_FROM_ONE = "classes_from_one"
    CLASSES_FROM_ZERO = "classes_from_zero"
    OF_ANOTHER_SIZE = "of_another_size"


def parse_label_convention(text: str) -> LabelConvention | None:
    """Return how labels are, of an option's text; None for an empty one, a ConfigError for an unknown word."""
    if not text:
        return None
    if text not in list(LabelConvention):
        raise ConfigError(f"labels_are {text}: expected {', '.join(LabelConvention)}")
    return LabelConvention(text)


LABELS_ARE = (
    "Read labels that are not as their format says: corners in place of a size (COCO, YOLO), sizes in place of corners "
    "(VOC, CSV), pixels (YOLO), shares of the picture (COCO, CSV), corners_in_pixels, corners_in_shares, "
    "classes_from_one (YOLO), classes_from_zero (TFRecords), or of_another_size (pictures were resized since; COCO, "
    "VOC). The error that refuses such data names the word."
)


@dataclass(frozen=True, kw_only=True)
class ReadSettings:
    """How a folder of annotated pictures is read; the commands that read one have an option for each."""

    allow_paths_outside: bool = setting(False, PATHS_OUTSIDE[0].upper() + PATHS_OUTSIDE[1:])
    ignore_exif: bool = setting(False, IGNORE_EXIF[0].upper() + IGNORE_EXIF[1:])
