"""Data augmentation that TensorFlow's API lacks (all extensions of Boxwright)."""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Byte, Float, Fraction, Int32, Message, Positive, String

_MIN_VISIBLE = "Share of an object's area that must stay visible for it to stay; 0..1."
_OWN_SIZE = "0 for the image's own."


class RandomMosaic(Message):
    """Puts the image and three others around a random point (YOLOv4; an extension of Boxwright)."""

    proto_name: ClassVar[str] = "RandomMosaic"

    probability: Fraction = Field(1.0, description="Chance of doing it; 0..1.")
    height: Int32 = Field(0, ge=0, le=30000, description=f"Height of the result, in pixels; {_OWN_SIZE}")
    width: Int32 = Field(0, ge=0, le=30000, description=f"Width of the result, in pixels; {_OWN_SIZE}")
    min_centre: Float = Field(
        0.25, allow_inf_nan=False, gt=0, lt=1, description="Least place of the point, in units of the sides; 0..1."
    )
    max_centre: Float = Field(
        0.75, allow_inf_nan=False, gt=0, lt=1, description="Largest place of the point, in units of the sides; 0..1."
    )
    scale_min: Float = Field(
        0.5,
        allow_inf_nan=False,
        gt=0,
        le=100,
        description="Least scale of each image; 1 fits it into the whole result.",
    )
    scale_max: Float = Field(1.0, allow_inf_nan=False, gt=0, le=100, description="Largest scale of each image.")
    min_visible: Fraction = Field(0.2, description=_MIN_VISIBLE)
    colour: list[Byte] = Field(default_factory=list, description="Of what no image covers, RGB 0..255; gray if empty.")


class RandomMixup(Message):
    """Blends another image in; its objects come along (Zhang et al., 2019; an extension of Boxwright)."""

    proto_name: ClassVar[str] = "RandomMixup"

    probability: Fraction = Field(0.5, description="Chance of doing it; 0..1.")
    alpha: Float = Field(
        1.5, allow_inf_nan=False, gt=0, le=1e6, description="Shares are drawn from Beta(alpha, alpha)."
    )


class RandomCopyPaste(Message):
    """Pastes objects of another image, by masks where there are any (Ghiasi et al., 2021; an extension of Boxwright)."""

    proto_name: ClassVar[str] = "RandomCopyPaste"

    probability: Fraction = Field(0.5, description="Chance of doing it; 0..1.")
    max_objects: Int32 = Field(0, ge=0, description="The most objects that are pasted; 0 for as many as there are.")
    min_visible: Fraction = Field(0.2, description=_MIN_VISIBLE)


class LargeScaleJitter(Message):
    """Scales by a wide range, then crops and pads to one size (Ghiasi et al., 2021; an extension of Boxwright)."""

    proto_name: ClassVar[str] = "LargeScaleJitter"

    height: Int32 = Field(1024, ge=1, le=30000, description="Height of the result, in pixels.")
    width: Int32 = Field(1024, ge=1, le=30000, description="Width of the result, in pixels.")
    scale_min: Float = Field(
        0.1, allow_inf_nan=False, gt=0, le=100, description="Least scale; 1 fits the image into the result."
    )
    scale_max: Float = Field(2.0, allow_inf_nan=False, gt=0, le=100, description="Largest scale.")
    min_visible: Fraction = Field(0.2, description=_MIN_VISIBLE)
    colour: list[Byte] = Field(default_factory=list, description="Of the padding, RGB 0..255; gray if empty.")


class RandomErasing(Message):
    """Fills a rectangle in each object with noise, at random (Zhong et al., 2020; an extension of Boxwright)."""

    proto_name: ClassVar[str] = "RandomErasing"

    probability: Fraction = Field(0.5, description="Chance of doing it, for each object; 0..1.")
    min_area: Fraction = Field(0.02, description="Least area, as a share of the box's; 0..1.")
    max_area: Fraction = Field(0.2, description="Largest area, as a share of the box's; 0..1.")
    min_aspect_ratio: Float = Field(
        0.3, allow_inf_nan=False, ge=0.01, le=1, description="Least height over width; the largest is its inverse."
    )


class RandomTile(Message):
    """Crops a tile of a large image, around an object or anywhere (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "RandomTile"

    height: Int32 = Field(640, ge=1, description="Height of a tile, in pixels; smaller images stay whole.")
    width: Int32 = Field(640, ge=1, description="Width of a tile, in pixels.")
    object_probability: Fraction = Field(0.75, description="Chance of a tile that has the centre of some object; 0..1.")
    min_visible: Fraction = Field(0.3, description=_MIN_VISIBLE)


class DataAnchorSampling(Message):
    """Crops a square in which some object has the size of a random anchor, as for faces (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "DataAnchorSampling"

    size: Int32 = Field(640, ge=1, le=8192, description="Height and width of the result, in pixels.")
    scales: list[Positive] = Field(
        default_factory=list, description="Sides of anchors in pixels, rising; default: 16, 32, 64, 128, 256, 512."
    )


class RandomSquarePatch(Message):
    """Crops a square as large as the shorter side or smaller, and resizes it (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "RandomSquarePatch"

    size: Int32 = Field(1024, ge=1, le=8192, description="Height and width of the result, in pixels.")
    min_side: Fraction = Field(0.5, description="Least side of a smaller square, in shorter sides of the image; 0..1.")
    max_side: Fraction = Field(1.0, description="Most side of a smaller square; every other crop is the shorter side.")


class UserArgument(Message):
    """One argument of a function of yours (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "UserArgument"

    key: String = Field("", description="The argument's name.")
    value: String = Field("", description="Its value as JSON: 0.5, [1, 2], true, or a string in quotes.")


class UserAugmentation(Message):
    """A transform of your own, of torchvision or of Albumentations (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "UserAugmentation"

    callable: String = Field(
        "", description="package.module:function, which is called with the arguments and returns the transform."
    )
    arguments: list[UserArgument] = Field(default_factory=list, description="What the function is called with.")
