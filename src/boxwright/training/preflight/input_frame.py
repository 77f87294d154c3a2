"""Boxes in the coordinates of the network's input.

Dimensions: N objects.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.nn.detector import Detector
from boxwright.training.preflight.records import Record

Size = tuple[int, int]


class InputFrame:
    """Sizes of images, and their boxes, after the detector's resizing."""

    def __init__(self, detector: Detector) -> None:
        """Use a detector's resizer."""
        self._resizer = detector.preprocessor.resizer
        self._known: dict[Size, tuple[Size, Size]] = {}

    def sizes(self, size: Size) -> tuple[Size, Size]:
        """Return (height, width) of the input, and of the image in it without padding, for an image of a size."""
        if size not in self._known:
            # By resizing: each resizer rounds by rules of its own, which would otherwise stand here again.
            resized, true_size = self._resizer(torch.zeros((*size, 3), dtype=torch.uint8))
            self._known[size] = ((resized.shape[0], resized.shape[1]), true_size)
        return self._known[size]

    def boxes(self, record: Record) -> tuple[NDArray[np.float32], Size]:
        """Return the boxes used for training, [N, 4] in pixels of the input, and the input's size."""
        size, true_size = self.sizes(record.size)
        scale = np.array([true_size[1] / record.size[1], true_size[0] / record.size[0]] * 2, np.float32)
        limits = np.array([true_size[1], true_size[0]] * 2, np.float32)
        boxes = np.clip(record.boxes * scale, 0, limits)
        return boxes[(boxes[:, 2:] > boxes[:, :2]).all(1) & ~record.crowd], size
