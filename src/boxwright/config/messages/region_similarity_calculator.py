"""Similarities between boxes.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Float, Message


class NegSqDistSimilarity(Message):
    """Similarity = minus the squared Euclidean distance between box coordinates; no settings."""

    proto_name: ClassVar[str] = "NegSqDistSimilarity"


class IouSimilarity(Message):
    """Similarity = intersection area over union area, 0..1; no settings."""

    proto_name: ClassVar[str] = "IouSimilarity"


class IoaSimilarity(Message):
    """Similarity = intersection area over the area of the second box, 0..1; no settings."""

    proto_name: ClassVar[str] = "IoaSimilarity"


class ThresholdedIouSimilarity(Message):
    """Similarity = the score of the first box where IoU exceeds a threshold, else 0."""

    proto_name: ClassVar[str] = "ThresholdedIouSimilarity"

    iou_threshold: Float = Field(
        0.5, ge=0, le=1, description="Pairs with IoU above this get the first box's score, the others 0; 0..1."
    )


class RegionSimilarityCalculator(Message):
    """Chooses the box similarity that the matcher compares; set exactly one."""

    proto_name: ClassVar[str] = "RegionSimilarityCalculator"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "region_similarity": (
            "neg_sq_dist_similarity",
            "iou_similarity",
            "ioa_similarity",
            "thresholded_iou_similarity",
        )
    }

    neg_sq_dist_similarity: NegSqDistSimilarity | None = Field(
        None, description="Negative squared distance between box coordinates."
    )
    iou_similarity: IouSimilarity | None = Field(None, description="Intersection over union (IoU).")
    ioa_similarity: IoaSimilarity | None = Field(
        None, description="Intersection over area: overlap divided by the area of one of the two boxes."
    )
    thresholded_iou_similarity: ThresholdedIouSimilarity | None = Field(
        None, description="The first box's score where the IoU exceeds a threshold, otherwise 0."
    )
