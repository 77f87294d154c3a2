"""Pictures of detections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boxwright.data.pictures import draw_sample
from boxwright.drawing import NAME_AND_SCORE, Captions, draw_boxes, side_by_side
from boxwright.ops.pasted_masks import whole_masks
from boxwright.types import Categories, FoundObjects, Sample

if TYPE_CHECKING:
    from boxwright.builders.evaluation import EvaluationPlan

# Keypoints of a lower score are not drawn, nor lines to them.
LEAST_KEYPOINT_SCORE = 0.3


def draw_beside_truth(
    sample: Sample, found: FoundObjects, categories: Categories, plan: EvaluationPlan
) -> NDArray[np.uint8]:
    """Return a picture of detections beside one of the ground truth, uint8 [H, W, 3]."""
    left = draw_detections(sample.image, found, plan.min_score, plan.max_boxes, plan.captions, plan.keypoint_edges)
    titles = (f"detections, score {plan.min_score:g} or more", "truth")
    return side_by_side(left, draw_sample(sample, categories), titles)


def draw_detections(
    image: NDArray[np.uint8],
    found: FoundObjects,
    min_score: float,
    max_boxes: int,
    captions: Captions = NAME_AND_SCORE,
    edges: Sequence[tuple[int, int]] = (),
) -> NDArray[np.uint8]:
    """Return an image with the best detections drawn, the best on top, uint8 [H, W, 3].

    Keypoints are drawn from a score of 0.3, or all if their scores are unknown.

    Args:
        edges: Pairs of keypoints that are joined by a line.
    """
    shown = found.above(min_score)
    count = min(len(shown), max_boxes)
    texts = [captions.of(*pair) for pair in zip(shown.names(), shown.scores.tolist(), strict=True)]
    colors = shown.labels[:count].tolist()
    if shown.tracks is not None:  # an object keeps its number and its color from picture to picture
        colors = shown.tracks[:count].tolist()
        texts = [
            f"#{track} {text}" if track >= 0 else text for track, text in zip(shown.tracks.tolist(), texts, strict=True)
        ]
    texts, boxes = texts[:count], shown.boxes[:count]
    masks = None if shown.masks is None else whole_masks(shown.first(count))[::-1]
    points = _drawn_keypoints(shown.first(count))
    points = None if points is None else points[::-1]
    return draw_boxes(image, boxes[::-1], colors[::-1], texts[::-1], masks=masks, keypoints=points, edges=edges)


def _drawn_keypoints(found: FoundObjects) -> NDArray[np.float32] | None:
    """Return keypoints [D, P, 2], or [D, P, 3] with whether each is drawn."""
    if found.keypoints is None or found.keypoint_scores is None:
        return found.keypoints
    drawn = found.keypoint_scores >= LEAST_KEYPOINT_SCORE
    return np.concatenate([found.keypoints, drawn[..., None].astype(np.float32)], -1)
