"""A detector that needs no training: it finds bright rectangles on black, exactly."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.inference.detect_functions import ImageDetector, ModelSource
from boxwright.types import Array, Detections

Image = NDArray[np.uint8]


def find_blobs(images: Sequence[Image]) -> list[Detections[Array]]:
    """Each connected bright part is an object of class 0, its score its brightness over 255."""
    return [_blobs(image) for image in images]


def _blobs(image: Image) -> Detections[Array]:
    grey = image.max(axis=2)
    count, labels, boxes, _ = cv2.connectedComponentsWithStats((grey > 24).astype(np.uint8))
    rows = [(x, y, x + w, y + h) for x, y, w, h, _ in boxes[1:count].tolist()]
    scores = np.array([np.median(grey[labels == number]) / 255 for number in range(1, count)], np.float32)
    order = np.argsort(-scores, kind="stable")
    return Detections(
        boxes=np.array(rows, np.float32).reshape(-1, 4)[order],
        scores=scores[order],
        labels=np.zeros(len(rows), np.int64),
        image_size=(image.shape[0], image.shape[1]),
    )


def picture_of(boxes: Sequence[tuple[int, int, int, int]], height: int, width: int, bright: int = 255) -> Image:
    """Paint x_min, y_min, x_max, y_max rectangles on black."""
    image = np.zeros((height, width, 3), np.uint8)
    for left, top, right, bottom in boxes:
        image[top:bottom, left:right] = bright
    return image


class BlobModel(ModelSource):
    """`find_blobs` in the place of a detector, here and in workers."""

    def open(self, threads: int = 0) -> ImageDetector:
        del threads
        return ImageDetector(find_blobs, None, "blobs")
