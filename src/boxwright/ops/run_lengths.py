"""Masks as COCO's run lengths: down the columns, in turn 0 and 1, packed into text.

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
    """Return a mask as COCO's packed run lengths.

    Args:
        mask: uint8 [H, W] of 0 and 1.

    Returns:
        `size` and `counts`.
    """
    return _as_text(coco_mask.encode(np.asfortranarray(mask)))


def encode_window(window: NDArray[np.uint8], top: int, left: int, size: tuple[int, int]) -> RunLengths:
    """Return the run lengths of a mask of which all but a window is 0, without making it.

    Args:
        window: uint8 [h, w] of 0 and 1.
        top: The window's first row in the image.

    Returns:
        `size` and `counts`.
    """
    height, width = size
    # Every stretch of ones within a column, as the places in the image where it starts and where it ends.
    padded = np.zeros((window.shape[1], window.shape[0] + 2), np.int8)
    padded[:, 1:-1] = window.T
    steps = np.diff(padded, axis=1)
    columns, starts = np.nonzero(steps == 1)
    _, ends = np.nonzero(steps == -1)
    first = (left + columns) * height + top + starts
    last = (left + columns) * height + top + ends
    # Where one ends at a column's foot and the next starts at the next one's head, they are one.
    apart = np.append(first[1:] != last[:-1], True) if len(first) else np.zeros(0, np.bool_)
    last = last[apart]
    first = first[np.insert(apart[:-1], 0, True)] if len(first) else first
    bounds = np.stack([first, last], axis=1).reshape(-1)
    counts = np.diff(np.concatenate([[0], bounds, [height * width]]))
    if len(bounds) and counts[-1] == 0:  # as pycocotools leaves it out
        counts = counts[:-1]
    return _as_text(coco_mask.frPyObjects({"size": [height, width], "counts": counts.tolist()}, height, width))


def _as_text(code: dict[str, Any]) -> RunLengths:
    return {"size": list(map(int, code["size"])), "counts": code["counts"].decode()}
