"""Masks as COCO's run lengths: alternating runs of 0 and 1 in column order, packed into text.

Dimensions: H W image, h w window.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

# {"size": [H, W], "counts": packed text}
RunLengths = dict[str, Any]


def encode_mask(mask: NDArray[np.uint8]) -> RunLengths:
    """Return a mask, uint8 [H, W] of 0 and 1, as COCO's packed run lengths."""
    return _as_text(coco_mask.encode(np.asfortranarray(mask)))


def encode_window(window: NDArray[np.uint8], top: int, left: int, size: tuple[int, int]) -> RunLengths:
    """Return the run lengths of a mask that is 0 outside a window, uint8 [h, w], without making the mask."""
    height, width = size
    # The start and end of every run of ones within a column, in the image's column order.
    padded = np.zeros((window.shape[1], window.shape[0] + 2), np.int8)
    padded[:, 1:-1] = window.T
    steps = np.diff(padded, axis=1)
    columns, starts = np.nonzero(steps == 1)
    _, ends = np.nonzero(steps == -1)
    first = (left + columns) * height + top + starts
    last = (left + columns) * height + top + ends
    # A run ending at the bottom of a column and one starting at the top of the next are merged.
    apart = np.append(first[1:] != last[:-1], True) if len(first) else np.zeros(0, np.bool_)
    last = last[apart]
    first = first[np.insert(apart[:-1], 0, True)] if len(first) else first
    bounds = np.stack([first, last], axis=1).reshape(-1)
    counts = np.diff(np.concatenate([[0], bounds, [height * width]]))
    if len(bounds) and counts[-1] == 0:  # omitted by pycocotools too
        counts = counts[:-1]
    return _as_text(coco_mask.frPyObjects({"size": [height, width], "counts": counts.tolist()}, height, width))


def _as_text(code: dict[str, Any]) -> RunLengths:
    return {"size": list(map(int, code["size"])), "counts": code["counts"].decode()}
