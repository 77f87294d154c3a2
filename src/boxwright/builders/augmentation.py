"""`PreprocessingStep`: data augmentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from boxwright.builders.choice import build_chosen
from boxwright.config import messages as m
from boxwright.data.augmentation.caffe import (
    CaffeDistort,
    OverlapCrop,
    RandomExpand,
    RandomInterpolationResize,
)
from boxwright.data.augmentation.color import (
    DistortColor,
    RandomBrightness,
    RandomContrast,
    RandomHue,
    RandomSaturation,
)
from boxwright.data.augmentation.crop import RandomCrop, SsdRandomCrop
from boxwright.data.augmentation.flip import RandomHorizontalFlip, RandomRotation90, RandomVerticalFlip
from boxwright.data.augmentation.transform import Chain, Transform
from boxwright.errors import ConfigError

__all__ = ["build_augmentation"]


def build_augmentation(steps: Sequence[m.PreprocessingStep]) -> Chain:
    """Build the chain of transforms."""
    return Chain(tuple(build_chosen(step, "preprocessing_step", _STEPS) for step in steps))


def _crop(config: m.RandomCropImage | m.SSDRandomCropOperation) -> RandomCrop:
    if config.min_aspect_ratio > config.max_aspect_ratio or config.min_area > config.max_area:
        raise ConfigError(
            f"{config.proto_name}: the least aspect ratio or area is over the largest "
            f"({config.min_aspect_ratio} and {config.max_aspect_ratio}, {config.min_area} and {config.max_area})"
        )
    if config.min_aspect_ratio <= 0 or config.max_area <= 0:
        raise ConfigError(f"{config.proto_name}: aspect ratios and areas above 0 are needed")
    return RandomCrop(
        min_object_covered=config.min_object_covered,
        aspect_ratios=(config.min_aspect_ratio, config.max_aspect_ratio),
        areas=(config.min_area, config.max_area),
        overlap_threshold=config.overlap_thresh,
        clip_boxes=config.clip_boxes,
        keep_probability=config.random_coef,
    )


def _ssd_crop(config: m.SSDRandomCrop) -> Transform:
    if not config.operations:
        return SsdRandomCrop()
    return SsdRandomCrop(tuple(_crop(operation) for operation in config.operations))


def _distort(config: m.RandomDistortColor) -> Transform:
    if config.color_ordering not in (0, 1):
        raise ConfigError(f"random_distort_color.color_ordering: expected 0 or 1, found {config.color_ordering}")
    return DistortColor(config.color_ordering)


def _caffe_distort(config: m.CaffeDistort) -> Transform:
    for what in ("contrast", "saturation"):
        least, most = getattr(config, f"min_{what}"), getattr(config, f"max_{what}")
        if least > most:
            raise ConfigError(f"caffe_distort: min_{what} {least} is over max_{what} {most}")
    return CaffeDistort(
        config.probability,
        config.brightness,
        (config.min_contrast, config.max_contrast),
        (config.min_saturation, config.max_saturation),
        config.hue,
    )


def _expand(config: m.RandomExpand) -> Transform:
    colour = tuple(config.colour)
    if not colour:
        return RandomExpand(config.probability, config.max_ratio)
    if len(colour) != 3 or not all(0 <= value <= 255 for value in colour):
        raise ConfigError(f"random_expand.colour: expected three values of 0..255, found {list(colour)}")
    red, green, blue = colour
    return RandomExpand(config.probability, config.max_ratio, (red, green, blue))


def _overlap_crop(config: m.OverlapCrop) -> Transform:
    scales, ratios = (config.min_scale, config.max_scale), (config.min_aspect_ratio, config.max_aspect_ratio)
    # A window of scale s has room for ratios of s² to 1/s²; the largest must have one.
    if scales[0] > scales[1] or ratios[0] > 1 or ratios[1] < 1:
        raise ConfigError(
            f"overlap_crop: expected min_scale <= max_scale and min_aspect_ratio <= 1 <= max_aspect_ratio, "
            f"found scales {scales[0]} to {scales[1]}, ratios {ratios[0]} to {ratios[1]}"
        )
    if not config.min_overlap:
        return OverlapCrop(scales=scales, aspect_ratios=ratios)
    return OverlapCrop(tuple(config.min_overlap), scales, ratios)


def _resize(config: m.RandomInterpolationResize) -> Transform:
    if config.height < 1 or config.width < 1:
        raise ConfigError(
            f"random_interpolation_resize: expected height and width, found {config.height} and {config.width}"
        )
    return RandomInterpolationResize((config.height, config.width))


_STEPS: dict[str, Callable[[Any], Transform]] = {
    "random_horizontal_flip": lambda c: RandomHorizontalFlip(c.probability, tuple(c.keypoint_flip_permutation)),
    "random_vertical_flip": lambda c: RandomVerticalFlip(c.probability, tuple(c.keypoint_flip_permutation)),
    "random_rotation90": lambda c: RandomRotation90(c.probability, tuple(c.keypoint_rot_permutation)),
    "random_adjust_brightness": lambda c: RandomBrightness(c.max_delta),
    "random_adjust_contrast": lambda c: RandomContrast(c.min_delta, c.max_delta),
    "random_adjust_hue": lambda c: RandomHue(c.max_delta),
    "random_adjust_saturation": lambda c: RandomSaturation(c.min_delta, c.max_delta),
    "random_distort_color": _distort,
    "random_crop_image": _crop,
    "ssd_random_crop": _ssd_crop,
    "caffe_distort": _caffe_distort,
    "random_expand": _expand,
    "overlap_crop": _overlap_crop,
    "random_interpolation_resize": _resize,
}
