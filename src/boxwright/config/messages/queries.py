"""What detectors share whose queries detect an object each: D-FINE and RF-DETR (extensions of Boxwright)."""

from boxwright.config.field import field, number
from boxwright.config.message import Message
from boxwright.config.messages.post_processing import BatchNonMaxSuppression
from boxwright.config.rules import refuse


class QueryMatcher(Message):
    """The cost of matching a query with an object (an extension of Boxwright)."""

    class_cost: float = number(2.0, "[0, inf)", "Weight of the class's focal loss.")
    l1_cost: float = number(5.0, "[0, inf)", "Weight of the distance of the boxes.")
    giou_cost: float = number(2.0, "[0, inf)", "Weight of the generalized intersection over union.")

class QueryPostProcessing(Message):
    """Which pairs of queries and classes are detections (an extension of Boxwright)."""

    max_total_detections: int = number(300, "[1, 100000]", "The most detections of an image.")
    score_threshold: float = number(0.0, "[0, 1)", "Only scores above this are detections.")
    batch_non_max_suppression: BatchNonMaxSuppression | None = field(None, "Suppression, which this network does not "
        "need; excludes the fields above.")

    rules = (
        refuse("batch_non_max_suppression",
            "it has these fields itself; remove max_total_detections and score_threshold",
            when=lambda c: c.batch_non_max_suppression
            and (c.has("max_total_detections") or c.has("score_threshold"))),
    )
