"""The augmentation steps of Caffe's SSD and RefineDet, extensions of Boxwright."""

from boxwright.config.field import number
from boxwright.config.message import Message
from boxwright.config.rules import ordered, refuse


class CaffeDistort(Message):
    """Changes brightness, contrast, saturation and hue in 8 bits (an extension of Boxwright)."""

    probability: float = number(0.5, "[0, 1]", "How often each of the four is changed.")
    brightness: float = number(32.0, "[0, inf)", "Most that is added to or taken from every level.")
    min_contrast: float = number(0.5, "[0, inf)", "Least factor of every level.")
    max_contrast: float = number(1.5, "[0, inf)", "Largest factor of every level.")
    min_saturation: float = number(0.5, "[0, inf)", "Least factor of the saturation.")
    max_saturation: float = number(1.5, "[0, inf)", "Largest factor of the saturation.")
    hue: float = number(18.0, "[0, inf)", "Most that is added to or taken from the hue, in half degrees.")

    rules = (
        ordered("min_contrast", "max_contrast"), ordered("min_saturation", "max_saturation"),
    )

class RandomExpand(Message):
    """Places the image on a larger canvas of one color (an extension of Boxwright)."""

    probability: float = number(0.5, "[0, 1]", "How often.")
    max_ratio: float = number(4.0, "[1, 100]", "Most by which both sides grow.")
    color: list[int] = number([123, 117, 104], "[0, 255]", "RGB of the canvas.", length=3, was="colour")

class OverlapCrop(Message):
    """Crops to a window that overlaps some object enough (an extension of Boxwright)."""

    min_overlap: list[float] = number([0.1, 0.3, 0.5, 0.7, 0.9, 0.0], "[0, 1]",
        "Least IoU with some object, for each window that is sought.")
    min_scale: float = number(0.3, "(0, 1]", "Least side of a window, in units of the image.")
    max_scale: float = number(1.0, "(0, 1]", "Largest side of a window.")
    min_aspect_ratio: float = number(0.5, "(0, inf)", "Least width over height, in units of the image.")
    max_aspect_ratio: float = number(2.0, "(0, inf)", "Largest width over height.")

    rules = (
        # A window of scale s has room for ratios of s² to 1/s²; the largest must have one.
        ordered("min_scale", "max_scale"),
        refuse("min_aspect_ratio",
            "expected min_aspect_ratio <= 1 <= max_aspect_ratio, found {min_aspect_ratio} and {max_aspect_ratio}",
            when=lambda c: not c.min_aspect_ratio <= 1 <= c.max_aspect_ratio),
    )

class RandomInterpolationResize(Message):
    """Resizes by an interpolation chosen at random from five (an extension of Boxwright)."""

    height: int = number(0, "[0, 32768]", "Rows afterwards, as the image_resizer's.")
    width: int = number(0, "[0, 32768]", "Columns afterwards, as the image_resizer's.")

    rules = (
        refuse("", "expected height and width, found {height} and {width}", when=lambda c: c.height < 1 or c.width < 1),
    )
