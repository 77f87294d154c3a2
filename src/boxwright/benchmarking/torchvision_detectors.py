"""Torchvision's detectors, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torchvision
from numpy.typing import NDArray
from torch import nn

from boxwright.base.errors import ConfigError

Pictures = Sequence[NDArray[np.uint8]]
Run = Callable[[], Any]


def torchvision_detector(name: str) -> nn.Module:
    """Build a detector of torchvision's with fresh weights.

    Args:
        name: As torchvision calls it; with `@640` behind it, at inputs of that side.

    Returns:
        The detector, in evaluation mode, for 91 classes.

    Raises:
        ConfigError: For a name that it has not.
    """
    kind, _, side = name.partition("@")
    known = torchvision.models.list_models(module=torchvision.models.detection)
    if kind not in known or (side and not side.isdecimal()):
        raise ConfigError(f"torchvision:{name}: expected NAME or NAME@SIDE, with a name of: {', '.join(known)}")
    sides = {"min_size": int(side), "max_size": int(side)} if side else {}
    try:
        model = torchvision.models.get_model(kind, weights=None, weights_backbone=None, num_classes=91, **sides)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"torchvision:{name}: cannot be built so: {error}") from None
    return model.eval().to(memory_format=torch.channels_last)  # type: ignore[no-any-return]


def their_detection(model: nn.Module, pictures: Pictures) -> Run:
    """Return what finds objects in pictures by one of torchvision's, and brings them back."""
    device = next(model.parameters()).device

    def run() -> Any:
        with torch.inference_mode():
            found = model.eval()([torch.from_numpy(one).to(device).permute(2, 0, 1).float() / 255 for one in pictures])
            return [{name: value.cpu() for name, value in one.items()} for one in found]

    return run
