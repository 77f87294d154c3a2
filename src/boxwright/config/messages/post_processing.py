"""Score conversion, calibration of scores, and non-maximum suppression.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from __future__ import annotations

from itertools import pairwise

from boxwright.config.field import Enum, field, number
from boxwright.config.message import Message
from boxwright.config.rules import excludes, ordered, refuse


class TrainingDataType(Enum):
    """Values of `TrainingDataType`."""

    DATA_TYPE_UNKNOWN = 0
    ALL_CLASSES = 1
    CLASS_SPECIFIC = 2

class XYPairsXYPair(Message, name="XYPairs.XYPair"):
    """One point of a calibration curve."""

    x: float = number(0.0, "(-inf, inf)", "Score before calibration.")
    y: float = number(0.0, "(-inf, inf)", "Score after calibration; flat beyond the first and last points.")

class XYPairs(Message):
    """Points of a piecewise linear calibration curve."""

    x_y_pair: list[XYPairsXYPair] = field([], "One point of the curve; list them in strictly increasing x.")
    training_data_type: TrainingDataType = field(TrainingDataType.DATA_TYPE_UNKNOWN,
        "Note on which data the curve was fitted to.", no_effect="a note of where the curve comes from")

    rules = (
        refuse("", "a curve needs at least one x_y_pair", when=lambda c: not c.x_y_pair),
        refuse("x_y_pair", "the x of a curve's points must rise",
            when=lambda c: any(first.x > second.x for first, second in pairwise(c.x_y_pair))),
    )

class FunctionApproximation(Message):
    """Calibration curve shared by all classes."""

    x_y_pairs: XYPairs | None = field(None, "Points of the piecewise linear curve.")

    rules = (
        refuse("", "a curve needs at least one x_y_pair", when=lambda c: c.x_y_pairs is None),
    )

class ClassIdFunctionApproximationsClassIdXyPairsMapEntry(Message,
    name="ClassIdFunctionApproximations.ClassIdXyPairsMapEntry"):
    """Calibration curve of one class."""

    key: int = field(0, "Column of the class in the score tensor, counting a background column as 0 if present.")
    value: XYPairs | None = field(None, "Curve used for this class.")

    rules = (
        refuse("", "a curve needs at least one x_y_pair", when=lambda c: c.value is None),
    )

class ClassIdFunctionApproximations(Message):
    """Separate calibration curve for each class."""

    class_id_xy_pairs_map: list[ClassIdFunctionApproximationsClassIdXyPairsMapEntry] = field([],
        "Class index to its curve; classes not listed keep their scores.")

class SigmoidParameters(Message):
    """Parameters of the sigmoid 1 / (1 + exp(a * x + b)), x being the score."""

    a: float = number(-1.0, "(-inf, inf)", "Slope; negative keeps the order of scores.")
    b: float = number(0.0, "(-inf, inf)", "Offset inside the exponent.")

class SigmoidCalibration(Message):
    """Sigmoid calibration shared by all classes; not supported by the TF builder."""

    sigmoid_parameters: SigmoidParameters | None = field(None, "Parameters of the sigmoid.")

class ClassIdSigmoidCalibrationsClassIdSigmoidParametersMapEntry(Message,
    name="ClassIdSigmoidCalibrations.ClassIdSigmoidParametersMapEntry"):
    """Sigmoid calibration of one class."""

    key: int = field(0, "Index of the class.")
    value: SigmoidParameters | None = field(None, "Sigmoid parameters used for this class.")

class ClassIdSigmoidCalibrations(Message):
    """Separate sigmoid calibration for each class; not supported by the TF builder."""

    class_id_sigmoid_parameters_map: list[ClassIdSigmoidCalibrationsClassIdSigmoidParametersMapEntry] = field([],
        "Class index to its sigmoid parameters.")

class TemperatureScalingCalibration(Message):
    """Calibration by one temperature for all classes; use with the IDENTITY score converter."""

    scaler: float = number(0.0, "(0, inf)", "Temperature the logits are divided by; above 1 softens the scores.")

    rules = (
        refuse("scaler", "expected more than 0, found {scaler}", when=lambda c: c.scaler <= 0),
    )

class CalibrationConfig(Message, oneof="calibrator"):
    """Maps detection scores to calibrated probabilities; set exactly one field."""

    function_approximation: FunctionApproximation | None = field(None, "One piecewise linear curve for all classes.")
    class_id_function_approximations: ClassIdFunctionApproximations | None = field(None,
        "A piecewise linear curve per class.")
    sigmoid_calibration: SigmoidCalibration | None = field(None, "One sigmoid for all classes; TF has no builder for "
        "it and fails.", note="as its description says; TF's builder stops with an error")
    class_id_sigmoid_calibrations: ClassIdSigmoidCalibrations | None = field(None, "A sigmoid per class; TF has no "
        "builder for it and fails.", note="as its description says; TF's builder stops with an error")
    temperature_scaling_calibration: TemperatureScalingCalibration | None = field(None,
        "Divide logits by one temperature.")


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
