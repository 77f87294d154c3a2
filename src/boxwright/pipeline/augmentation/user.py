"""`UserAugmentation`: a transform returned by a user's function.

That function runs with the rights of the training process, and only in training: never when a configuration is checked
or checkpoints are read.
"""

from __future__ import annotations

import importlib
import json
import re
from typing import Any

import numpy as np

from boxwright.base.errors import ConfigError
from boxwright.data.augmentation.albumentations_transform import albumentations_transform, is_of_albumentations
from boxwright.data.augmentation.own_transform import OwnTransform
from boxwright.data.augmentation.torchvision_transform import TorchvisionTransform, is_of_torchvision
from boxwright.data.augmentation.transform import Transform
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
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise config.refusal(
            "callable",
            f"{name}: {error}; modules are imported as in Python: install its package, or add its folder to PYTHONPATH",
        ) from error
    except Exception as error:  # user code may raise anything
        raise config.refusal("callable", f"importing {module} raised {type(error).__name__}: {error}") from error
    try:
        return found(**arguments)
    except Exception as error:  # user code may raise anything
        raise config.refusal("callable", f"{name} raised {type(error).__name__}: {error}") from error
