"""`PreprocessingStep`s that TensorFlow's API lacks.

`UserAugmentation`: a transform returned by a user's function.

That function runs with the rights of the training process, and only in training: never when a configuration is checked
or checkpoints are read.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from boxwright.base.errors import ConfigError
from boxwright.data.augmentation.corruption import RandomErasing
from boxwright.data.augmentation.crop import RandomTile
from boxwright.data.augmentation.face_crops import DataAnchorSampling, RandomSquarePatch
from boxwright.data.augmentation.mosaic import CopyPaste, MixUp, Mosaic
from boxwright.data.augmentation.pad import LargeScaleJitter
from boxwright.data.augmentation.transform import SampleProvider, Transform
from boxwright.data.augmentation.user_transforms import (
    OwnTransform,
    TorchvisionTransform,
    albumentations_transform,
    is_of_albumentations,
    is_of_torchvision,
)
from boxwright.pipeline import messages as m
from boxwright.types import Sample

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def build_user_augmentation(config: m.UserAugmentation, *, call: bool) -> Transform:
    """Build the transform returned by a user's function.

    Args:
        call: Whether to import and call the function; otherwise only the message is checked.

    Returns:
        The transform: torchvision's and Albumentations' wrapped, any other as it is.
    """
    arguments = {argument.key: json.loads(argument.value) for argument in config.arguments}
    if not call:
        return _not_called
    transform = _call(config, arguments)
    if is_of_torchvision(transform):
        return TorchvisionTransform(transform)
    if is_of_albumentations(transform):
        return albumentations_transform(transform)
    if not callable(transform):
        raise config.refusal(
            "callable",
            f"{config.callable} returned {type(transform).__name__}; expected a transform of "
            "torchvision (v2) or Albumentations, or a function of (sample, rng) that returns a sample",
        )
    return OwnTransform(transform)


def _not_called(sample: Sample, rng: np.random.Generator) -> Sample:
    del sample, rng
    raise ConfigError("user_augmentation: this chain was built without the data, to be checked only")


def _call(config: m.UserAugmentation, arguments: dict[str, Any]) -> Any:
    name = config.callable
    module, _, path = name.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in path.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise config.refusal(
            "callable",
            f"{name}: {error}; modules are imported as in Python: install its package, or add its folder to PYTHONPATH",
        ) from error
    except Exception as error:  # user code may raise anything
        raise config.refusal("callable", f"importing {module} raised {type(error).__name__}: {error}") from error
    try:
        return target(**arguments)
    except Exception as error:  # user code may raise anything
        raise config.refusal("callable", f"{name} raised {type(error).__name__}: {error}") from error


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
