"""The augmentation steps of Caffe's SSD and RefineDet, extensions of Boxwright."""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Byte, Float, Fraction, Int32, Message


class CaffeDistort(Message):
    """Changes brightness, contrast, saturation and hue in 8 bits (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "CaffeDistort"

    probability: Float = Field(0.5, ge=0, le=1, description="How often each of the four is changed.")
    brightness: Float = Field(
        32.0, allow_inf_nan=False, ge=0, description="Most that is added to or taken from every level."
    )
    min_contrast: Float = Field(0.5, allow_inf_nan=False, ge=0, description="Least factor of every level.")
    max_contrast: Float = Field(1.5, allow_inf_nan=False, ge=0, description="Largest factor of every level.")
    min_saturation: Float = Field(0.5, allow_inf_nan=False, ge=0, description="Least factor of the saturation.")
    max_saturation: Float = Field(1.5, allow_inf_nan=False, ge=0, description="Largest factor of the saturation.")
    hue: Float = Field(
        18.0, allow_inf_nan=False, ge=0, description="Most that is added to or taken from the hue, in half degrees."
    )


class RandomExpand(Message):
    """Places the image on a larger canvas of one colour (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "RandomExpand"

    probability: Float = Field(0.5, ge=0, le=1, description="How often.")
    max_ratio: Float = Field(4.0, le=100, ge=1, description="Most by which both sides grow.")
    colour: list[Byte] = Field(
        default_factory=list, description="Red, green, blue of the canvas, 0..255; 123, 117, 104 where empty."
    )


class OverlapCrop(Message):
    """Crops to a window that overlaps some object enough (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "OverlapCrop"

    min_overlap: list[Fraction] = Field(
        default_factory=list,
        description="Least IoU with some object, for each window that is sought; where empty .1, .3, .5, .7, .9 and 0.",
    )
    min_scale: Float = Field(0.3, gt=0, le=1, description="Least side of a window, in units of the image.")
    max_scale: Float = Field(1.0, gt=0, le=1, description="Largest side of a window.")
    min_aspect_ratio: Float = Field(
        0.5, allow_inf_nan=False, gt=0, description="Least width over height, in units of the image."
    )
    max_aspect_ratio: Float = Field(2.0, allow_inf_nan=False, gt=0, description="Largest width over height.")


class RandomInterpolationResize(Message):
    """Resizes by an interpolation chosen at random from five (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "RandomInterpolationResize"

    height: Int32 = Field(0, ge=0, le=32768, description="Rows afterwards, as the image_resizer's.")
    width: Int32 = Field(0, ge=0, le=32768, description="Columns afterwards, as the image_resizer's.")
