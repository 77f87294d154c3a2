"""Random crops, with and without padding.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import field, number
from boxwright.config.message import Message
from boxwright.config.rules import ordered, refuse

# Meanings that several fields share.
OVERLAP_THRESH = "Boxes with less than this fraction of their area inside the crop are dropped; 0..1."
RANDOM_COEF = "Probability of leaving the image unchanged; 0 = always apply, 1 = never."
PAD_COLOR = "RGB fill value of the padding, three numbers in image pixel units; unset = mean image color."
MIN_ASPECT_RATIO = "Smallest width/height ratio the crop may have; the default 0 is invalid, so set it."
MAX_ASPECT_RATIO = "Largest width/height ratio the crop may have; the default 0 is invalid, so set it."
MIN_AREA = "Smallest crop area as a fraction of the image area; the default 0 is invalid, so set it."
MAX_AREA = "Largest crop area as a fraction of the image area; the default 0 is invalid, so set it."

CROP_WINDOW = (
    ordered("min_aspect_ratio", "max_aspect_ratio"),
    ordered("min_area", "max_area"),
    refuse("", "aspect ratios and areas above 0 are needed", when=lambda c: c.min_aspect_ratio <= 0 or c.max_area <= 0),
)

class RandomCropImage(Message):
    """Randomly crops the image and keeps the boxes that remain sufficiently inside."""

    min_object_covered: float = number(1.0, "[0, 1]", "Crop must contain at least this fraction of some box's area.")
    min_aspect_ratio: float = number(0.75, "(0, inf)", "Smallest width/height ratio the crop may have.")
    max_aspect_ratio: float = number(1.33, "(0, inf)", "Largest width/height ratio the crop may have.")
    min_area: float = number(0.1, "(0, 1]", "Smallest crop area as a fraction of the image area.")
    max_area: float = number(1.0, "(0, 1]", "Largest crop area as a fraction of the image area.")
    overlap_thresh: float = number(0.3, "[0, inf)", OVERLAP_THRESH)
    clip_boxes: bool = field(True, "Cut boxes at the crop border; false keeps their full extent, beyond the crop.")
    random_coef: float = number(0.0, "[0, inf)", RANDOM_COEF)

    rules = CROP_WINDOW

class RandomCropPadImage(Message):
    """Randomly crops the image, then pads the crop to a random larger size."""

    min_object_covered: float = number(1.0, "[0, 1]", "Crop must contain at least this fraction of some box's area.")
    min_aspect_ratio: float = number(0.75, "(0, inf)", "Smallest width/height ratio the crop may have.")
    max_aspect_ratio: float = number(1.33, "(0, inf)", "Largest width/height ratio the crop may have.")
    min_area: float = number(0.1, "(0, 1]", "Smallest crop area as a fraction of the image area.")
    max_area: float = number(1.0, "(0, 1]", "Largest crop area as a fraction of the image area.")
    overlap_thresh: float = number(0.3, "[0, inf)", OVERLAP_THRESH)
    clip_boxes: bool = field(True, "Cut boxes at the crop border; false keeps their full extent, beyond the crop.")
    random_coef: float = number(0.0, "[0, 1]", RANDOM_COEF)
    min_padded_size_ratio: list[float] = number([], "(0, inf)",
        "Smallest padded size relative to the input image, two numbers: height, width.", length=2)
    max_padded_size_ratio: list[float] = number([], "(0, inf)",
        "Largest padded size relative to the input image, two numbers: height, width.", length=2)
    pad_color: list[float] = field([], PAD_COLOR, length=3)

    rules = CROP_WINDOW

class RandomCropToAspectRatio(Message):
    """Crops the largest window of a given aspect ratio at a random position."""

    aspect_ratio: float = number(1.0, "(-inf, inf)", "Width/height ratio of the crop; must be positive.")
    overlap_thresh: float = number(0.3, "[0, inf)", OVERLAP_THRESH)
    clip_boxes: bool = field(True, "Cut boxes at the crop border; false keeps their full extent, beyond the crop.")

    rules = (
        refuse("aspect_ratio", "expected a number above 0, found {aspect_ratio}", when=lambda c: c.aspect_ratio <= 0),
    )

class SSDRandomCropOperation(Message):
    """One crop setting of ssd_random_crop."""

    min_object_covered: float = number(0.0, "[0, 1]", "Crop must contain at least this fraction of some box's area.")
    min_aspect_ratio: float = number(0.0, "(0, inf)", MIN_ASPECT_RATIO)
    max_aspect_ratio: float = number(0.0, "(0, inf)", MAX_ASPECT_RATIO)
    min_area: float = number(0.0, "(0, 1]", MIN_AREA)
    max_area: float = number(0.0, "(0, 1]", MAX_AREA)
    overlap_thresh: float = number(0.0, "[0, inf)", OVERLAP_THRESH)
    clip_boxes: bool = field(True, "Cut boxes at the crop border; false keeps their full extent, beyond the crop.")
    random_coef: float = number(0.0, "[0, inf)", RANDOM_COEF)

    rules = CROP_WINDOW

class SSDRandomCrop(Message):
    """SSD-style crop: picks one of several crop settings at random for each image."""

    operations: list[SSDRandomCropOperation] = field([],
        "Crop settings to choose from with equal chance; empty = built-in SSD set.")

class SSDRandomCropPadOperation(Message):
    """One crop-and-pad setting of ssd_random_crop_pad."""

    min_object_covered: float = number(0.0, "[0, 1]", "Crop must contain at least this fraction of some box's area.")
    min_aspect_ratio: float = number(0.0, "(0, inf)", MIN_ASPECT_RATIO)
    max_aspect_ratio: float = number(0.0, "(0, inf)", MAX_ASPECT_RATIO)
    min_area: float = number(0.0, "(0, 1]", MIN_AREA)
    max_area: float = number(0.0, "(0, 1]", MAX_AREA)
    overlap_thresh: float = number(0.0, "[0, inf)", OVERLAP_THRESH)
    clip_boxes: bool = field(True, "Cut boxes at the crop border; false keeps their full extent, beyond the crop.")
    random_coef: float = number(0.0, "[0, 1]", RANDOM_COEF)
    min_padded_size_ratio: list[float] = number([], "(0, inf)",
        "Smallest padded size relative to the input image, two numbers: height, width.", length=2)
    max_padded_size_ratio: list[float] = number([], "(0, inf)",
        "Largest padded size relative to the input image, two numbers: height, width.", length=2)
    pad_color_r: float = number(0.0, "(-inf, inf)", "Red value of the padding, in pixel units.")
    pad_color_g: float = number(0.0, "(-inf, inf)", "Green value of the padding, in pixel units.")
    pad_color_b: float = number(0.0, "(-inf, inf)", "Blue value of the padding, in pixel units.")

    rules = CROP_WINDOW

class SSDRandomCropPad(Message):
    """SSD-style crop and pad: picks one of several settings at random for each image."""

    operations: list[SSDRandomCropPadOperation] = field([],
        "Crop-and-pad settings to choose from with equal chance; empty = built-in set.")

class SSDRandomCropFixedAspectRatioOperation(Message):
    """One crop setting of ssd_random_crop_fixed_aspect_ratio."""

    min_object_covered: float = number(0.0, "[0, 1]", "Crop must contain at least this fraction of some box's area.")
    min_area: float = number(0.0, "(0, 1]", MIN_AREA)
    max_area: float = number(0.0, "(0, 1]", MAX_AREA)
    overlap_thresh: float = number(0.0, "[0, inf)", OVERLAP_THRESH)
    clip_boxes: bool = field(True, "Cut boxes at the crop border; false keeps their full extent, beyond the crop.")
    random_coef: float = number(0.0, "[0, 1]", RANDOM_COEF)

    rules = (
        ordered("min_area", "max_area"),
    )

class SSDRandomCropFixedAspectRatio(Message):
    """SSD-style random crop where every crop has the same aspect ratio."""

    operations: list[SSDRandomCropFixedAspectRatioOperation] = field([],
        "Crop settings to choose from with equal chance; empty = built-in set.")
    aspect_ratio: float = number(1.0, "(-inf, inf)", "Width/height ratio of every crop; must be positive.")

    rules = (
        refuse("aspect_ratio", "expected a number above 0, found {aspect_ratio}",
            when=lambda c: c.operations and c.aspect_ratio <= 0),
    )

class SSDRandomCropPadFixedAspectRatioOperation(Message):
    """One crop setting of ssd_random_crop_pad_fixed_aspect_ratio."""

    min_object_covered: float = number(0.0, "[0, 1]", "Crop must contain at least this fraction of some box's area.")
    min_aspect_ratio: float = number(0.0, "(0, inf)", MIN_ASPECT_RATIO)
    max_aspect_ratio: float = number(0.0, "(0, inf)", MAX_ASPECT_RATIO)
    min_area: float = number(0.0, "(0, 1]", MIN_AREA)
    max_area: float = number(0.0, "(0, 1]", MAX_AREA)
    overlap_thresh: float = number(0.0, "[0, inf)", OVERLAP_THRESH)
    clip_boxes: bool = field(True, "Cut boxes at the crop border; false keeps their full extent, beyond the crop.")
    random_coef: float = number(0.0, "[0, 1]", RANDOM_COEF)

    rules = CROP_WINDOW

class SSDRandomCropPadFixedAspectRatio(Message):
    """SSD-style random crop, then padding to a fixed aspect ratio."""

    operations: list[SSDRandomCropPadFixedAspectRatioOperation] = field([],
        "Crop settings to choose from with equal chance; empty = built-in set.")
    aspect_ratio: float = number(1.0, "(-inf, inf)", "Width/height ratio of the padded image; must be positive.")
    min_padded_size_ratio: list[float] = number([], "(0, inf)",
        "Smallest padded size relative to the image, two numbers: height, width.", length=2)
    max_padded_size_ratio: list[float] = number([], "(0, inf)",
        "Largest padded size relative to the image, two numbers: height, width.", length=2)

    rules = (
        refuse("aspect_ratio", "expected a number above 0, found {aspect_ratio}", when=lambda c: c.aspect_ratio <= 0),
    )
