"""Instance masks of detections, in the image and run by run.

Dimensions: D detections, H W image.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from boxwright.ops.masks import mask_windows, paste_masks
from boxwright.ops.run_lengths import encode_window
from boxwright.types import Detections

__all__ = ["instance_masks", "mask_run_lengths"]


def instance_masks(found: Detections, threshold: float = 0.5) -> Tensor:
    """Return which pixels of the image belong to each detection.

    Args:
        found: Detections with masks.
        threshold: What is above it belongs to the object.

    Returns:
        uint8 [D, H, W] of 0 and 1.

    Raises:
        ValueError: Where no masks were predicted.
    """
    return paste_masks(_masks(found), found.boxes, found.image_size, threshold)


def mask_run_lengths(found: Detections, threshold: float = 0.5) -> Iterator[dict[str, Any]]:
    """Yield each detection's mask as COCO writes it; no mask of the image's size is ever made.

    Args:
        found: Detections with masks.
        threshold: What is above it belongs to the object.

    Yields:
        `{"size": [H, W], "counts": text}`, as pycocotools reads it.

    Raises:
        ValueError: Where no masks were predicted.
    """
    for window in mask_windows(_masks(found).cpu(), found.boxes.cpu(), found.image_size):
        inside = (window.values > threshold).numpy().astype(np.uint8)
        yield encode_window(inside, window.top, window.left, found.image_size)


def _masks(found: Detections) -> Tensor:
    if found.masks is None:
        raise ValueError("these detections have no masks; a detector with number_of_stages: 3 predicts them")
    return found.masks
