"""Box coders.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Float, Int32, Message


class FasterRcnnBoxCoder(Message):
    """Encodes a box as center shift over anchor size and log size ratio, each times a scale."""

    proto_name: ClassVar[str] = "FasterRcnnBoxCoder"

    y_scale: Float = Field(10.0, allow_inf_nan=False, gt=0, description="Multiplier on the encoded center y offset.")
    x_scale: Float = Field(10.0, allow_inf_nan=False, gt=0, description="Multiplier on the encoded center x offset.")
    height_scale: Float = Field(
        5.0, allow_inf_nan=False, gt=0, description="Multiplier on the encoded log height ratio."
    )
    width_scale: Float = Field(5.0, allow_inf_nan=False, gt=0, description="Multiplier on the encoded log width ratio.")


class MeanStddevBoxCoder(Message):
    """Encodes a box as its corner differences from the anchor over one standard deviation."""

    proto_name: ClassVar[str] = "MeanStddevBoxCoder"

    stddev: Float = Field(
        0.01,
        gt=0,
        allow_inf_nan=False,
        description="Standard deviation that divides each corner difference, in the units of the box coordinates.",
    )


class SquareBoxCoder(Message):
    """Encodes a box by center shift and one log side length; decoded boxes are square."""

    proto_name: ClassVar[str] = "SquareBoxCoder"

    y_scale: Float = Field(10.0, allow_inf_nan=False, gt=0, description="Multiplier on the encoded center y offset.")
    x_scale: Float = Field(10.0, allow_inf_nan=False, gt=0, description="Multiplier on the encoded center x offset.")
    length_scale: Float = Field(
        5.0, allow_inf_nan=False, gt=0, description="Multiplier on the encoded log side length."
    )


class KeypointBoxCoder(Message):
    """Encodes a box as Faster R-CNN does, plus the offsets of its keypoints from the anchor center."""

    proto_name: ClassVar[str] = "KeypointBoxCoder"

    num_keypoints: Int32 = Field(
        0, ge=0, le=10000, description="Keypoints encoded per box; each adds a y and an x code."
    )
    y_scale: Float = Field(
        10.0,
        allow_inf_nan=False,
        gt=0,
        description="Multiplier on encoded y offsets, of the box center and of the keypoints.",
    )
    x_scale: Float = Field(
        10.0,
        allow_inf_nan=False,
        gt=0,
        description="Multiplier on encoded x offsets, of the box center and of the keypoints.",
    )
    height_scale: Float = Field(
        5.0, allow_inf_nan=False, gt=0, description="Multiplier on the encoded log height ratio."
    )
    width_scale: Float = Field(5.0, allow_inf_nan=False, gt=0, description="Multiplier on the encoded log width ratio.")


class BoxCoder(Message):
    """Chooses how boxes are encoded relative to anchors; set exactly one."""

    proto_name: ClassVar[str] = "BoxCoder"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "box_coder_oneof": ("faster_rcnn_box_coder", "mean_stddev_box_coder", "square_box_coder", "keypoint_box_coder")
    }

    faster_rcnn_box_coder: FasterRcnnBoxCoder | None = Field(
        None, description="Encode center shift and log size ratio (the usual SSD and Faster R-CNN choice)."
    )
    mean_stddev_box_coder: MeanStddevBoxCoder | None = Field(
        None, description="Encode corner differences divided by a fixed standard deviation."
    )
    square_box_coder: SquareBoxCoder | None = Field(
        None, description="Encode center shift and a single log side length, for square boxes."
    )
    keypoint_box_coder: KeypointBoxCoder | None = Field(
        None, description="Faster R-CNN encoding extended with keypoint offsets."
    )
