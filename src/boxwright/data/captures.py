"""Where and when images were captured, and which of them are each other's context (Context R-CNN; Beery et al., 2020).

Keys, encodings and groups are those of the TF Object Detection API's scripts for camera traps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.example_messages import Features
from boxwright.data.reading import whole_number
from boxwright.data.tf_example import text_feature

_DATE = "image/date_captured"
_FRAME = "image/seq_frame_num"
_DATE_FORMAT = "%Y-%m-%d %H:%M:%S"
_FIRST_YEAR, _LAST_YEAR = 1990, 2030


@dataclass(frozen=True)
class Capture:
    """The circumstances of an image.

    Attributes:
        id: The image's id in its source.
        sequence: Its camera or sequence.
        frame: Its number in the sequence; 0 if unknown.
    """

    id: str
    sequence: str
    time: datetime
    frame: int = 0


def read_capture(features: Features, key: str, where: str) -> Capture | None:
    """Return the capture of a record's image, or None if it lacks a date or its sequence, which `key` names.

    Raises:
        DataError: If the date is malformed.
    """
    date, sequence = text_feature(features, _DATE, where), text_feature(features, key, where)
    if not date or not sequence:
        return None
    try:
        time = datetime.strptime(date, _DATE_FORMAT)
    except ValueError:
        raise DataError(f"{where}: {_DATE}: expected a date such as 2015-07-30 18:04:59; found {date[:40]!r}") from None
    frames = features.get(_FRAME, ())
    frame = whole_number(frames[0], f"{where}: {_FRAME}") if len(frames) else 0
    return Capture(text_feature(features, "image/source_id", where), sequence, time, frame)


def time_embedding(time: datetime) -> NDArray[np.float32]:
    """Return a date as five numbers, mostly in 0..1, float32 [5]: year, month, day, hour, minute."""
    year = (time.year - _FIRST_YEAR) / (_LAST_YEAR - _FIRST_YEAR)
    return np.array([year, (time.month - 1) / 12, (time.day - 1) / 31, time.hour / 24, time.minute / 60], np.float32)


def box_embedding(box: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    """Return a box's center, width and height in shares of the image, float32 [4].

    Args:
        box: xyxy in pixels.
        size: The image's (height, width).
    """
    left, top, right, bottom = box / np.array([size[1], size[0], size[1], size[0]], np.float32)
    width, height = right - left, bottom - top
    return np.array([left + width / 2, top + height / 2, width, height], np.float32)


# A week is a quarter of its month, or what is left of it, as in TF's script; no calendar's.
HORIZONS: dict[str, Callable[[datetime], tuple[int, ...]]] = {
    "all": lambda time: (),
    "year": lambda time: (time.year,),
    "month": lambda time: (time.year, time.month),
    "week": lambda time: (time.year, time.month, time.day // 7),
    "day": lambda time: (time.year, time.month, time.day),
    "hour": lambda time: (time.year, time.month, time.day, time.hour),
    "minute": lambda time: (time.year, time.month, time.day, time.hour, time.minute),
}


def memory_banks(captures: Sequence[Capture | None], key: str, horizon: str, most: int) -> list[list[int]]:
    """Return the groups of images that are each other's context, as indices in order of capture.

    Images of a sequence and the same span of time are a group; one of more than `most` images is divided into parts of
    nearly equal size. (TF's script never ends there.) Sequences by `image/seq_id` are ordered by frame, others by date.

    Args:
        captures: None belongs to no group.
        key: image/location or image/seq_id.
        horizon: A key of `HORIZONS`.
        most: The most images of a group.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[Capture, int]]] = {}
    for index, capture in enumerate(captures):
        if capture is not None:
            groups.setdefault((capture.sequence, HORIZONS[horizon](capture.time)), []).append((capture, index))
    banks: list[list[int]] = []
    for _, members in sorted(groups.items()):
        if key == "image/seq_id":
            members.sort(key=lambda member: (member[0].frame, member[0].time))
        else:
            members.sort(key=lambda member: (member[0].time, member[0].frame))
        indices = np.array([index for _, index in members])
        banks += [part.tolist() for part in np.array_split(indices, -(-len(members) // most))]
    return banks
