"""Similarities between boxes.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import field, number
from boxwright.config.message import Message


class NegSqDistSimilarity(Message):
    """Similarity = minus the squared Euclidean distance between box coordinates; no settings."""

class IouSimilarity(Message):
    """Similarity = intersection area over union area, 0..1; no settings."""

class IoaSimilarity(Message):
    """Similarity = intersection area over the area of the second box, 0..1; no settings."""

class ThresholdedIouSimilarity(Message):
    """Similarity = the score of the first box where IoU exceeds a threshold, else 0."""

    iou_threshold: float = number(0.5, "[0, 1]", "Pairs with IoU above this get the first box's score, the others 0.")

class RegionSimilarityCalculator(Message, oneof="region_similarity"):
    """Chooses the box similarity that the matcher compares; set exactly one."""

    neg_sq_dist_similarity: NegSqDistSimilarity | None = field(None,
        "Negative squared distance between box coordinates.")
    iou_similarity: IouSimilarity | None = field(None, "Intersection over union (IoU).")
    ioa_similarity: IoaSimilarity | None = field(None,
        "Intersection over area: overlap divided by the area of one of the two boxes.")
    thresholded_iou_similarity: ThresholdedIouSimilarity | None = field(None,
        "The first box's score where the IoU exceeds a threshold, otherwise 0.")
