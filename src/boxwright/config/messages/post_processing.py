"""Score conversion and non-maximum suppression.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import Enum, field, number
from boxwright.config.message import Message
from boxwright.config.messages.calibration import CalibrationConfig
from boxwright.config.rules import excludes, ordered, refuse


class PostProcessingScoreConverter(Enum):
    """Values of `PostProcessing.ScoreConverter`."""

    IDENTITY = 0
    SIGMOID = 1
    SOFTMAX = 2

class BatchNonMaxSuppression(Message):
    """Score filtering and non-maximum suppression (NMS) of decoded boxes."""

    score_threshold: float = number(0.0, "(-inf, inf)", "Only boxes scoring above this enter NMS.")
    iou_threshold: float = number(0.6, "[0, 1]", "Boxes overlapping a kept box by more than this IoU are dropped.")
    max_detections_per_class: int = number(100, "[0, inf)", "Most boxes kept per class and image.")
    max_total_detections: int = number(100, "[0, inf)", "Most boxes kept per image over all classes.")
    use_static_shapes: bool = field(False, "Pad NMS results to a fixed size.")
    use_class_agnostic_nms: bool = field(False,
        "Run NMS once over all classes, so boxes of different classes suppress each other.")
    max_classes_per_detection: int = number(1, "[0, inf)",
        "Most classes reported per kept box; used only with use_class_agnostic_nms.")
    soft_nms_sigma: float = number(0.0, "[0, inf)",
        "Width of Gaussian Soft-NMS, which lowers scores of overlapping boxes; 0 = ordinary NMS.")
    use_partitioned_nms: bool = field(False,
        "Use the tiled NMS algorithm; only used with static shapes.",
        no_effect="the same detections by another algorithm, for TPU")
    use_combined_nms: bool = field(False,
        "Use the fused TensorFlow combined NMS op; fails with use_class_agnostic_nms.")
    change_coordinate_frame: bool = field(True,
        "Express kept boxes relative to the clip window, e.g. the unpadded image area.")
    use_hard_nms: bool = field(False, "Use plain NMS without score decay; fails if soft_nms_sigma is not 0.")
    use_cpu_nms: bool = field(False, "Run NMS on the CPU.", no_effect="placement of an operation only")

    rules = (
        ordered("max_detections_per_class", "max_total_detections"),
        excludes("soft_nms_sigma", "use_hard_nms", "use_static_shapes", why="as in TensorFlow"),
        excludes("soft_nms_sigma", "use_class_agnostic_nms", why="together they are not supported; remove one"),
        refuse("max_classes_per_detection", "TensorFlow supports only 1, found {max_classes_per_detection}",
            when=lambda c: c.use_class_agnostic_nms and c.max_classes_per_detection > 1),
        excludes("use_combined_nms", "use_class_agnostic_nms", "soft_nms_sigma", why="as in TensorFlow"),
        refuse("use_combined_nms", "excludes change_coordinate_frame, which is true unless set; set it to false",
            when=lambda c: c.use_combined_nms and c.change_coordinate_frame),
    )

class PostProcessing(Message):
    """Turns raw network outputs into final detections."""

    batch_non_max_suppression: BatchNonMaxSuppression | None = field(None,
        "Score filter and NMS that remove duplicate boxes.")
    score_converter: PostProcessingScoreConverter = field(PostProcessingScoreConverter.IDENTITY,
        "Function that turns class logits into scores: IDENTITY, SIGMOID or SOFTMAX.")
    logit_scale: float = number(1.0, "(0, inf)",
        "Class logits are divided by this before score conversion; above 1 softens scores, never 0.")
    calibration_config: CalibrationConfig | None = field(None, "If set, maps converted scores to calibrated ones.")
