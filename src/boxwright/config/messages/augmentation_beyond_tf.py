"""Data augmentation that TensorFlow's API lacks, with that of Caffe's SSD and RefineDet (extensions of Boxwright)."""

from __future__ import annotations

import json
import re

from boxwright.config.field import field, number
from boxwright.config.message import Message
from boxwright.config.rules import distinct, ordered, refuse, rising, together


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


class RandomMosaic(Message):
    """Puts the image and three others around a random point (YOLOv4; an extension of Boxwright)."""

    probability: float = number(1.0, "[0, 1]", "Chance of doing it.")
    height: int = number(0, "[0, 30000]", "Height of the result, in pixels; 0 for the image's own.")
    width: int = number(0, "[0, 30000]", "Width of the result, in pixels; 0 for the image's own.")
    min_center: float = number(0.25, "(0, 1)", "Smallest relative position of the point.", was="min_centre")
    max_center: float = number(0.75, "(0, 1)", "Largest relative position of the point.", was="max_centre")
    scale_min: float = number(0.5, "(0, 100]", "Least scale of each image; 1 fits it into the whole result.")
    scale_max: float = number(1.0, "(0, 100]", "Largest scale of each image.")
    min_visible: float = number(0.2, "[0, 1]", "Share of an object's area that must stay visible for it to stay.")
    color: list[int] = number([114, 114, 114], "[0, 255]", "RGB of what no image covers.", length=3, was="colour")

    rules = (
        together("height", "width"), ordered("min_center", "max_center"), ordered("scale_min", "scale_max"),
    )

class RandomAffineMosaic(Message):
    """Puts the image and three others into the quadrants of a canvas, which is turned, shifted and scaled as a whole.

    As DEIM (Huang et al., 2024; an extension of Boxwright).
    """

    probability: float = number(1.0, "[0, 1]", "Chance of doing it.")
    shorter_side: int = number(320, "[1, 8192]", "Each image is resized so that its shorter side has this length.",
        unit="pixels")
    degrees: float = number(10.0, "[0, 180]", "Most that the canvas is turned to either side.")
    shift: float = number(0.1, "[0, 1]", "Most that it is shifted, in units of its sides.")
    scale_min: float = number(0.5, "(0, 100]", "Least scale of the canvas.")
    scale_max: float = number(1.5, "(0, 100]", "Largest scale of the canvas.")
    color: list[int] = number([0, 0, 0], "[0, 255]", "RGB of what no image covers.", length=3)

    rules = (
        ordered("scale_min", "scale_max"),
    )

class RandomMixup(Message):
    """Blends another image in; its objects come along (Zhang et al., 2019; an extension of Boxwright)."""

    probability: float = number(0.5, "[0, 1]", "Chance of doing it.")
    alpha: float = number(1.5, "(0, 1e6]", "Shares are drawn from Beta(alpha, alpha).")
    min_weight: float = number(0.0, "[0, 1]", "Least weight in the loss of an object, which has its image's share; 1: "
        "all in full.")

class RandomCopyPaste(Message):
    """Pastes objects of another image, by masks if there are any (Ghiasi et al., 2021; an extension of Boxwright)."""

    probability: float = number(0.5, "[0, 1]", "Chance of doing it.")
    max_objects: int = number(0, "[0, inf)", "The most objects that are pasted; 0 for as many as there are.")
    min_visible: float = number(0.2, "[0, 1]", "Share of an object's area that must stay visible for it to stay.")

class LargeScaleJitter(Message):
    """Scales by a wide range, then crops and pads to one size (Ghiasi et al., 2021; an extension of Boxwright)."""

    height: int = number(1024, "[1, 30000]", "Height of the result, in pixels.")
    width: int = number(1024, "[1, 30000]", "Width of the result, in pixels.")
    scale_min: float = number(0.1, "(0, 100]", "Least scale; 1 fits the image into the result.")
    scale_max: float = number(2.0, "(0, 100]", "Largest scale.")
    min_visible: float = number(0.2, "[0, 1]", "Share of an object's area that must stay visible for it to stay.")
    color: list[int] = number([114, 114, 114], "[0, 255]", "RGB of the padding.", length=3, was="colour")

    rules = (
        ordered("scale_min", "scale_max"),
    )

class RandomErasing(Message):
    """Fills a rectangle in each object with noise, at random (Zhong et al., 2020; an extension of Boxwright)."""

    probability: float = number(0.5, "[0, 1]", "Chance of doing it, for each object.")
    min_area: float = number(0.02, "[0, 1]", "Least area, as a share of the box's.")
    max_area: float = number(0.2, "[0, 1]", "Largest area, as a share of the box's.")
    min_aspect_ratio: float = number(0.3, "[0.01, 1]", "Least height over width; the largest is its inverse.")

    rules = (
        ordered("min_area", "max_area"),
    )

class RandomTile(Message):
    """Crops a tile of a large image, around an object or anywhere (an extension of Boxwright)."""

    height: int = number(640, "[1, inf)", "Height of a tile, in pixels; smaller images stay whole.")
    width: int = number(640, "[1, inf)", "Width of a tile, in pixels.")
    object_probability: float = number(0.75, "[0, 1]", "Chance of a tile that has the center of some object.")
    min_visible: float = number(0.3, "[0, 1]", "Share of an object's area that must stay visible for it to stay.")

class DataAnchorSampling(Message):
    """Crops a square in which some object has the size of a random anchor, as for faces (an extension of Boxwright)."""

    size: int = number(640, "[1, 8192]", "Height and width of the result, in pixels.")
    scales: list[float] = number([16, 32, 64, 128, 256, 512], "(0, inf)", "Sides of anchors, rising.", unit="pixels")

    rules = (
        rising("scales"),
    )

class RandomSquarePatch(Message):
    """Crops a square as large as the shorter side or smaller, and resizes it (an extension of Boxwright)."""

    size: int = number(1024, "[1, 8192]", "Height and width of the result, in pixels.")
    min_side: float = number(0.5, "[0, 1]", "Least side of a smaller square, in shorter sides of the image.")
    max_side: float = number(1.0, "[0, 1]", "Most side of a smaller square; every other crop is the shorter side.")

    rules = (
        ordered("min_side", "max_side"),
    )

class RandomSizeCrop(Message):
    """Resizes the shorter side to one of several lengths and crops a square, at random (an extension of Boxwright)."""

    probability: float = number(0.5, "[0, 1]", "Chance of doing it.")
    shorter_sides: list[int] = number([400, 500, 600], "[1, 8192]", "Lengths of the shorter side; one is drawn.",
        unit="pixels")
    min_side: int = number(384, "[1, 8192]", "Least side of the square; the shorter side where that is smaller.",
        unit="pixels")
    max_side: int = number(600, "[1, 8192]", "Most side of the square; the shorter side where that is smaller.",
        unit="pixels")

    rules = (
        refuse("shorter_sides", "no length", when=lambda c: not c.shorter_sides),
        ordered("min_side", "max_side"),
    )

class UserArgument(Message):
    """One argument of a function of yours (an extension of Boxwright)."""

    key: str = field("", "The argument's name.")
    value: str = field("", "Its value as JSON: 0.5, [1, 2], true, or a string in quotes.")

    rules = (
        refuse("key", "expected a name, found {key}", when=lambda c: not c.key.isidentifier()),
        refuse("value",
            "{key}: expected JSON such as 0.5, [1, 2], true or '\"text\"' (a string in quotes of its own), "
            "found {value}",
            when=lambda c: not _is_json(c.value)),
    )

class UserAugmentation(Message):
    """A transform of your own, of torchvision or of Albumentations (an extension of Boxwright)."""

    callable: str = field("", "package.module:function, which is called with the arguments and returns the transform.")
    arguments: list[UserArgument] = field([], "What the function is called with.")

    rules = (
        refuse("callable", "expected package.module:function, found {callable}",
            when=lambda c: not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", c.callable)),
        distinct("arguments", "key"),
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
