"""What the rest of the package asks a family of detectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from boxwright.config import messages as m
from boxwright.nn.detector import Detector
from boxwright.nn.network import Network


def _nothing(model: Any, reader: m.InputReader) -> None:
    del model, reader


@dataclass(frozen=True)
class Family:
    """A family of detectors, as the constant `FAMILY` of its `build.py`.

    Attributes:
        network: The class of its networks.
        build: Returns a detector of its message, the classes if they are known and, for more than red, green and blue,
            the number of channels of images.
        check_training: Raises a ConfigError where its message and the reader of training data cannot train.
    """

    network: type[Network]
    build: Callable[..., Detector]
    check_training: Callable[[Any, m.InputReader], None] = _nothing
