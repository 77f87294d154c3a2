"""Box coders.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import field, number
from boxwright.config.message import Message
from boxwright.config.rules import refuse


class FasterRcnnBoxCoder(Message):
    """Encodes a box as center shift over anchor size and log size ratio, each times a scale."""

    y_scale: float = number(10.0, "(0, inf)", "Multiplier on the encoded center y offset.")
    x_scale: float = number(10.0, "(0, inf)", "Multiplier on the encoded center x offset.")
    height_scale: float = number(5.0, "(0, inf)", "Multiplier on the encoded log height ratio.")
    width_scale: float = number(5.0, "(0, inf)", "Multiplier on the encoded log width ratio.")

class MeanStddevBoxCoder(Message):
    """Encodes a box as its corner differences from the anchor over one standard deviation."""

    stddev: float = number(0.01, "(0, inf)",
        "Standard deviation that divides each corner difference, in the units of the box coordinates.")

class SquareBoxCoder(Message):
    """Encodes a box by center shift and one log side length; decoded boxes are square."""

    y_scale: float = number(10.0, "(0, inf)", "Multiplier on the encoded center y offset.")
    x_scale: float = number(10.0, "(0, inf)", "Multiplier on the encoded center x offset.")
    length_scale: float = number(5.0, "(0, inf)", "Multiplier on the encoded log side length.")

class KeypointBoxCoder(Message):
    """Encodes a box as Faster R-CNN does, plus the offsets of its keypoints from the anchor center."""

    num_keypoints: int = number(0, "[0, 10000]", "Keypoints encoded per box; each adds a y and an x code.")
    y_scale: float = number(10.0, "(0, inf)",
        "Multiplier on encoded y offsets, of the box center and of the keypoints.")
    x_scale: float = number(10.0, "(0, inf)",
        "Multiplier on encoded x offsets, of the box center and of the keypoints.")
    height_scale: float = number(5.0, "(0, inf)", "Multiplier on the encoded log height ratio.")
    width_scale: float = number(5.0, "(0, inf)", "Multiplier on the encoded log width ratio.")

    rules = (
        refuse("num_keypoints", "expected at least 1, found {num_keypoints}", when=lambda c: c.num_keypoints < 1),
    )

class BoxCoder(Message, oneof="box_coder_oneof"):
    """Chooses how boxes are encoded relative to anchors; set exactly one."""

    faster_rcnn_box_coder: FasterRcnnBoxCoder | None = field(None,
        "Encode center shift and log size ratio (the usual SSD and Faster R-CNN choice).")
    mean_stddev_box_coder: MeanStddevBoxCoder | None = field(None,
        "Encode corner differences divided by a fixed standard deviation.")
    square_box_coder: SquareBoxCoder | None = field(None,
        "Encode center shift and a single log side length, for square boxes.")
    keypoint_box_coder: KeypointBoxCoder | None = field(None, "Faster R-CNN encoding extended with keypoint offsets.")


def code_size(config: BoxCoder) -> int:
    """Return how many numbers a box is encoded in."""
    if config.keypoint_box_coder is not None:
        return 4 + 2 * config.keypoint_box_coder.num_keypoints
    return 3 if config.square_box_coder is not None else 4
