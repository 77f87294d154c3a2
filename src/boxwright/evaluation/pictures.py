"""Pictures of samples, and of detections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boxwright.base.drawing import NAME_AND_SCORE, Captions, Details, draw_boxes, side_by_side, with_tracks
from boxwright.nn.ops.pasted_masks import whole_masks
from boxwright.types import Array, Categories, Detections, Sample
from boxwright.types.dense_pose import COLUMNS, KNOWN, PART

if TYPE_CHECKING:
    from boxwright.evaluation.build import EvaluationPlan

# Keypoints of a lower score are not drawn, nor lines to them.
LEAST_KEYPOINT_SCORE = 0.3


def draw_beside_truth(
    sample: Sample, detections: Detections[Array], categories: Categories, plan: EvaluationPlan
) -> NDArray[np.uint8]:
    """Return a picture of detections beside one of the ground truth, uint8 [H, W, 3]."""
    left = draw_detections(sample.image, detections, plan.min_score, plan.max_boxes, plan.captions, plan.keypoint_edges)
    titles = (f"detections, score {plan.min_score:g} or more", "truth")
    return side_by_side(left, draw_sample(sample, categories, edges=plan.keypoint_edges), titles)


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


def draw_detections(
    image: NDArray[np.uint8],
    detections: Detections[Array],
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
    shown = detections.above(min_score)
    count = min(len(shown), max_boxes)
    texts = [captions.of(*pair) for pair in zip(shown.names(), shown.scores.tolist(), strict=True)]
    tracks = None if shown.tracks is None else shown.tracks.tolist()
    colors, texts = with_tracks(shown.labels.tolist(), texts, tracks)
    best = shown.first(count)
    masks, points = None if best.masks is None else whole_masks(best)[::-1], _drawn_keypoints(best)
    surface = None if best.surface_parts is None else surface_points(best.boxes, best.surface_parts)[::-1]
    details = Details(masks, None if points is None else points[::-1], edges, surface)
    return draw_boxes(image, best.boxes[::-1], colors[:count][::-1], texts[:count][::-1], details)


def _drawn_keypoints(detections: Detections[Array]) -> NDArray[np.float32] | None:
    """Return keypoints [D, P, 2], or [D, P, 3] with whether each is drawn."""
    if detections.keypoints is None or detections.keypoint_scores is None:
        return detections.keypoints
    drawn = detections.keypoint_scores >= LEAST_KEYPOINT_SCORE
    return np.concatenate([detections.keypoints, drawn[..., None].astype(np.float32)], -1)


def surface_points(boxes: NDArray[np.float32], parts: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the middle of each place of objects' maps of parts as a point of DensePose, without v and u.

    Args:
        boxes: float32 [D, 4], xyxy in pixels.
        parts: uint8 [D, h, w]; the part at each place of a box, from 1; 0 for none.

    Returns:
        float32 [D, h × w, 6], in the columns of `types/masks.py`.
    """
    count, height, width = parts.shape
    points = np.zeros((count, height, width, COLUMNS), np.float32)
    x_min, y_min, x_max, y_max = boxes.T[..., None, None]
    points[..., 0] = x_min + (x_max - x_min) * (np.arange(width) + 0.5) / width
    points[..., 1] = y_min + (y_max - y_min) * ((np.arange(height) + 0.5) / height)[:, None]
    points[..., KNOWN], points[..., PART] = parts > 0, np.maximum(parts, 1) - 1
    return points.reshape(count, height * width, COLUMNS)
