"""Checks of boxes: inside their images, valid, unique, and large enough in the network's input.

Dimensions: N objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from boxwright.data.survey import suspicion
from boxwright.training.preflight.finding import Finding, some
from boxwright.training.preflight.input_frame import InputFrame
from boxwright.training.preflight.records import Record

# As a share of all boxes: so many useless ones are a mistake in the format, such as two exchanged coordinates.
_FATAL = 0.5
_SMALLEST = 1.0  # pixels of the input


def check_boxes(records: Sequence[Record]) -> Iterable[Finding]:
    """Yield suspicious boxes."""
    reasons: dict[str, list[str]] = {}
    total = 0
    for record in records:
        seen = set()
        for box, label in zip(record.boxes.tolist(), record.labels.tolist(), strict=True):
            total += 1
            key = (label, *box)
            reason = suspicion(box, *record.size) or ("twice in one image" if key in seen else "")
            seen.add(key)
            if reason:
                reasons.setdefault(reason, []).append(record.name)
    for reason, names in reasons.items():
        useless = reason in ("turned inside out", "no area", "outside the image")
        yield Finding(
            "boxes",
            "fatal" if useless and len(names) > _FATAL * total else "warning",
            f"{len(names)} of {total} boxes: {reason} ({some(names)})",
            "correct or remove them; boxwright inspect shows them"
            + (" (training ignores such boxes)" if useless else ""),
        )
    if not reasons:
        yield Finding("boxes", "fine", f"{total} boxes are inside their images")


def check_small_boxes(records: Sequence[Record], frame: InputFrame) -> Iterable[Finding]:
    """Yield boxes that are smaller than a pixel after resizing."""
    names, total = [], 0
    for record in records:
        boxes, _ = frame.boxes(record)
        sides = (boxes[:, 2:] - boxes[:, :2]).min(1, initial=np.inf)
        total += len(sides)
        names += [record.name] * int((sides < _SMALLEST).sum())
    if names:
        yield Finding(
            "small_boxes",
            "warning",
            f"{len(names)} of {total} boxes are less than a pixel wide or high in the network's input ({some(names)})",
            "enlarge image_resizer, crop tiles (random_tile), or remove such boxes",
        )
    else:
        yield Finding("small_boxes", "fine", f"{total} boxes are at least a pixel in the network's input")
