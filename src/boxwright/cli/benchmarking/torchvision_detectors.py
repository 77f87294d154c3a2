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
    """Return a torchvision detector for 91 classes with random weights, in evaluation mode.

    Args:
        name: Torchvision's name; with `@640` appended, for inputs of that side.
    """
    kind, _, side = name.partition("@")
    known = torchvision.models.list_models(module=torchvision.models.detection)
    if kind not in known or (side and not side.isdecimal()):
        raise ConfigError(f"torchvision:{name}: expected NAME or NAME@SIDE, with a name of: {', '.join(known)}")
    sides = {"min_size": int(side), "max_size": int(side)} if side else {}
    try:
        # 91 is the number of torchvision's published detectors: COCO's largest id, 90, and the background.
        model: nn.Module = torchvision.models.get_model(
            kind, weights=None, weights_backbone=None, num_classes=91, **sides
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"torchvision:{name}: cannot be built: {error}") from None
    return model.eval().to(memory_format=torch.channels_last)


def their_detection(model: nn.Module, pictures: Pictures) -> Run:
    """Return a function that detects objects in pictures and copies the detections to the CPU."""
    device = next(model.parameters()).device

    def run() -> Any:
        with torch.inference_mode():
            detections = model.eval()(
                [torch.from_numpy(one).to(device).permute(2, 0, 1).float() / 255 for one in pictures]
            )
            return [{name: value.cpu() for name, value in one.items()} for one in detections]

    return run
