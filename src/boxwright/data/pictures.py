"""Drawings of samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from boxwright.drawing import draw_boxes
from boxwright.types import Categories, Sample


def draw_sample(sample: Sample, categories: Categories, fit: int = 0) -> NDArray[np.uint8]:
    """Return a sample's image with its annotated boxes, masks and keypoints, uint8 [H, W, 3]; `fit` as `draw_boxes`."""
    labels = sample.labels.tolist()
    names = [categories.by_label(label).title for label in labels]
    return draw_boxes(
        sample.image, sample.boxes, labels, names, masks=sample.masks, keypoints=sample.keypoints, fit=fit
    )
