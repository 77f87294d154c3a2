"""Score conversion and non-maximum suppression.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Enum, Float, Int32, Message
from boxwright.config.messages.calibration import CalibrationConfig


class PostProcessingScoreConverter(Enum):
    """Values of `PostProcessing.ScoreConverter`."""

    IDENTITY = 0
    SIGMOID = 1
    SOFTMAX = 2


class BatchNonMaxSuppression(Message):
    """Score filtering and non-maximum suppression (NMS) of decoded boxes."""

    proto_name: ClassVar[str] = "BatchNonMaxSuppression"

    score_threshold: Float = Field(0.0, allow_inf_nan=False, description="Only boxes scoring above this enter NMS.")
    iou_threshold: Float = Field(
        0.6, ge=0, le=1, description="Boxes overlapping a kept box by more than this IoU are dropped; 0..1."
    )
    max_detections_per_class: Int32 = Field(100, ge=0, description="Most boxes kept per class and image.")
    max_total_detections: Int32 = Field(100, ge=0, description="Most boxes kept per image over all classes.")
    use_static_shapes: Bool = Field(False, description="Pad NMS results to a fixed size.")
    use_class_agnostic_nms: Bool = Field(
        False, description="Run NMS once over all classes, so boxes of different classes suppress each other."
    )
    max_classes_per_detection: Int32 = Field(
        1, ge=0, description="Most classes reported per kept box; used only with use_class_agnostic_nms."
    )
    soft_nms_sigma: Float = Field(
        0.0,
        allow_inf_nan=False,
        ge=0,
        description="Width of Gaussian Soft-NMS, which lowers scores of overlapping boxes; 0 = ordinary NMS.",
    )
    use_partitioned_nms: Bool = Field(
        False,
        no_effect="the same detections by another algorithm, for TPU",
        description="Use the tiled NMS algorithm; only used with static shapes.",
    )
    use_combined_nms: Bool = Field(
        False, description="Use the fused TensorFlow combined NMS op; fails with use_class_agnostic_nms."
    )
    change_coordinate_frame: Bool = Field(
        True, description="Express kept boxes relative to the clip window, e.g. the unpadded image area."
    )
    use_hard_nms: Bool = Field(
        False, description="Use plain NMS without score decay; fails if soft_nms_sigma is not 0."
    )
    use_cpu_nms: Bool = Field(False, no_effect="placement of an operation only", description="Run NMS on the CPU.")


class PostProcessing(Message):
    """Turns raw network outputs into final detections."""

    proto_name: ClassVar[str] = "PostProcessing"

    batch_non_max_suppression: BatchNonMaxSuppression | None = Field(
        None, description="Score filter and NMS that remove duplicate boxes."
    )
    score_converter: PostProcessingScoreConverter = Field(
        PostProcessingScoreConverter.IDENTITY,
        description="Function that turns class logits into scores: IDENTITY, SIGMOID or SOFTMAX.",
    )
    logit_scale: Float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="Class logits are divided by this before score conversion; above 1 softens scores, never 0.",
    )
    calibration_config: CalibrationConfig | None = Field(
        None, description="If set, maps converted scores to calibrated ones."
    )
