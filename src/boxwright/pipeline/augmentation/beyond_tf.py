"""`PreprocessingStep`s that TensorFlow's API lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boxwright.data.augmentation.copy_paste import CopyPaste
from boxwright.data.augmentation.erasing import RandomErasing
from boxwright.data.augmentation.face_crops import DataAnchorSampling, RandomSquarePatch
from boxwright.data.augmentation.mixup import MixUp
from boxwright.data.augmentation.mosaic import Mosaic
from boxwright.data.augmentation.others import SampleProvider
from boxwright.data.augmentation.scale_jitter import LargeScaleJitter
from boxwright.data.augmentation.tile import RandomTile
from boxwright.data.augmentation.transform import Transform
from boxwright.pipeline import messages as m


def _mosaic(config: m.RandomMosaic, others: SampleProvider) -> Transform:
    size = (config.height, config.width) if config.height else None
    center, scales = (config.min_center, config.max_center), (config.scale_min, config.scale_max)
    color = tuple(map(float, config.color))
    return Mosaic(others, config.probability, size, center, scales, config.min_visible, color)


def _mixup(config: m.RandomMixup, others: SampleProvider) -> Transform:
    return MixUp(others, config.probability, config.alpha, config.min_weight)


def _copy_paste(config: m.RandomCopyPaste, others: SampleProvider) -> Transform:
    return CopyPaste(others, config.probability, config.max_objects, config.min_visible)


def _jitter(config: m.LargeScaleJitter) -> Transform:
    scales = (config.scale_min, config.scale_max)
    return LargeScaleJitter((config.height, config.width), scales, config.min_visible, tuple(map(float, config.color)))


def _erasing(config: m.RandomErasing) -> Transform:
    return RandomErasing(config.probability, (config.min_area, config.max_area), config.min_aspect_ratio)


def _tile(config: m.RandomTile) -> Transform:
    return RandomTile((config.height, config.width), config.object_probability, config.min_visible)


def _anchored(config: m.DataAnchorSampling) -> Transform:
    return DataAnchorSampling(config.size, tuple(map(float, config.scales)))


def _patch(config: m.RandomSquarePatch) -> Transform:
    return RandomSquarePatch(config.size, (config.min_side, config.max_side))


# The builders of these also take the other samples.
MIXING_STEPS: dict[str, Callable[[Any, SampleProvider], Transform]] = {
    "random_mosaic": _mosaic,
    "random_mixup": _mixup,
    "random_copy_paste": _copy_paste,
}
SINGLE_STEPS: dict[str, Callable[[Any], Transform]] = {
    "large_scale_jitter": _jitter,
    "random_erasing": _erasing,
    "random_tile": _tile,
    "data_anchor_sampling": _anchored,
    "random_square_patch": _patch,
}
