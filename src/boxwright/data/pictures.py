"""Drawings of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boxwright.base.drawing import Details, draw_boxes, with_tracks
from boxwright.types import Categories, Sample


def draw_sample(
    sample: Sample, categories: Categories, fit: int = 0, edges: Sequence[tuple[int, int]] = ()
) -> NDArray[np.uint8]:
    """Return a sample's image with all that is annotated in it, uint8 [H, W, 3].

    Args:
        fit: As of `draw_boxes`.
        edges: Pairs of keypoints that are joined by a line.
    """
    labels = sample.labels.tolist()
    names = [categories.by_label(label).title for label in labels]
    colors, texts = with_tracks(labels, names, None if sample.track_ids is None else sample.track_ids.tolist())
    details = Details(sample.masks, sample.keypoints, edges, sample.dense_pose)
    return draw_boxes(sample.image, sample.boxes, colors, texts, details, fit=fit)
