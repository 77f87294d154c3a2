"""Calibration of scores.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Enum, Float, Int32, Message


class TrainingDataType(Enum):
    """Values of `TrainingDataType`."""

    DATA_TYPE_UNKNOWN = 0
    ALL_CLASSES = 1
    CLASS_SPECIFIC = 2


class XYPairsXYPair(Message):
    """One point of a calibration curve."""

    proto_name: ClassVar[str] = "XYPairs.XYPair"

    x: Float = Field(0.0, allow_inf_nan=False, description="Score before calibration.")
    y: Float = Field(
        0.0, allow_inf_nan=False, description="Score after calibration; flat beyond the first and last points."
    )


class XYPairs(Message):
    """Points of a piecewise linear calibration curve."""

    proto_name: ClassVar[str] = "XYPairs"

    x_y_pair: list[XYPairsXYPair] = Field(
        default_factory=list, description="One point of the curve; list them in strictly increasing x."
    )
    training_data_type: TrainingDataType = Field(
        TrainingDataType.DATA_TYPE_UNKNOWN,
        no_effect="a note of where the curve comes from",
        description="Note on which data the curve was fitted to.",
    )


class FunctionApproximation(Message):
    """Calibration curve shared by all classes."""

    proto_name: ClassVar[str] = "FunctionApproximation"

    x_y_pairs: XYPairs | None = Field(None, description="Points of the piecewise linear curve.")


class ClassIdFunctionApproximationsClassIdXyPairsMapEntry(Message):
    """Calibration curve of one class."""

    proto_name: ClassVar[str] = "ClassIdFunctionApproximations.ClassIdXyPairsMapEntry"

    key: Int32 = Field(
        0, description="Column of the class in the score tensor, counting a background column as 0 if present."
    )
    value: XYPairs | None = Field(None, description="Curve used for this class.")


class ClassIdFunctionApproximations(Message):
    """Separate calibration curve for each class."""

    proto_name: ClassVar[str] = "ClassIdFunctionApproximations"

    class_id_xy_pairs_map: list[ClassIdFunctionApproximationsClassIdXyPairsMapEntry] = Field(
        default_factory=list, description="Class index to its curve; classes not listed keep their scores."
    )


class SigmoidParameters(Message):
    """Parameters of the sigmoid 1 / (1 + exp(a * x + b)), x being the score."""

    proto_name: ClassVar[str] = "SigmoidParameters"

    a: Float = Field(-1.0, allow_inf_nan=False, description="Slope; negative keeps the order of scores.")
    b: Float = Field(0.0, allow_inf_nan=False, description="Offset inside the exponent.")


class SigmoidCalibration(Message):
    """Sigmoid calibration shared by all classes; not supported by the TF builder."""

    proto_name: ClassVar[str] = "SigmoidCalibration"

    sigmoid_parameters: SigmoidParameters | None = Field(None, description="Parameters of the sigmoid.")


class ClassIdSigmoidCalibrationsClassIdSigmoidParametersMapEntry(Message):
    """Sigmoid calibration of one class."""

    proto_name: ClassVar[str] = "ClassIdSigmoidCalibrations.ClassIdSigmoidParametersMapEntry"

    key: Int32 = Field(0, description="Index of the class.")
    value: SigmoidParameters | None = Field(None, description="Sigmoid parameters used for this class.")


class ClassIdSigmoidCalibrations(Message):
    """Separate sigmoid calibration for each class; not supported by the TF builder."""

    proto_name: ClassVar[str] = "ClassIdSigmoidCalibrations"

    class_id_sigmoid_parameters_map: list[ClassIdSigmoidCalibrationsClassIdSigmoidParametersMapEntry] = Field(
        default_factory=list, description="Class index to its sigmoid parameters."
    )


class TemperatureScalingCalibration(Message):
    """Calibration by one temperature for all classes; use with the IDENTITY score converter."""

    proto_name: ClassVar[str] = "TemperatureScalingCalibration"

    scaler: Float = Field(
        0.0, allow_inf_nan=False, gt=0, description="Temperature the logits are divided by; above 1 softens the scores."
    )


class CalibrationConfig(Message):
    """Maps detection scores to calibrated probabilities; set exactly one field."""

    proto_name: ClassVar[str] = "CalibrationConfig"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "calibrator": (
            "function_approximation",
            "class_id_function_approximations",
            "sigmoid_calibration",
            "class_id_sigmoid_calibrations",
            "temperature_scaling_calibration",
        )
    }

    function_approximation: FunctionApproximation | None = Field(
        None, description="One piecewise linear curve for all classes."
    )
    class_id_function_approximations: ClassIdFunctionApproximations | None = Field(
        None, description="A piecewise linear curve per class."
    )
    sigmoid_calibration: SigmoidCalibration | None = Field(
        None,
        note="as its description says; TF's builder stops with an error",
        description="One sigmoid for all classes; TF has no builder for it and fails.",
    )
    class_id_sigmoid_calibrations: ClassIdSigmoidCalibrations | None = Field(
        None,
        note="as its description says; TF's builder stops with an error",
        description="A sigmoid per class; TF has no builder for it and fails.",
    )
    temperature_scaling_calibration: TemperatureScalingCalibration | None = Field(
        None, description="Divide logits by one temperature."
    )
