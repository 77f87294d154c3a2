"""What the rest of the package asks a family of detectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from boxwright.config import messages as m
from boxwright.config.message import Message
from boxwright.families.shared.source_weights import SourceWeights
from boxwright.nn.detector import Detector
from boxwright.nn.network import Network
from boxwright.nn.tensorflow_names.named_layers import Namers
from boxwright.types import Categories

Tensors = Mapping[str, Tensor]


def _can_train(model: Any, reader: m.InputReader) -> None:
    del model, reader


def _no_layout(network: Any, tensors: Tensors, path: Path) -> SourceWeights | None:
    del network, tensors, path
    return None


def _not_described(tensors: Tensors, path: Path) -> tuple[Message, Categories | None] | None:
    del tensors, path
    return None


@dataclass(frozen=True)
class Family:
    """A family of detectors: the constant `FAMILY` in the `build.py` of its folder.

    Attributes:
        network: The class of its networks.
        build: Returns a detector of its message, the classes if they are known and, for more than red, green and blue,
            the number of channels of images.
        tf1: What names the layers of a part in TensorFlow 1; parts that it never had are missing.
        tf2: The same for TensorFlow 2.
        check_training: Raises a ConfigError where its message and the reader of training data cannot train.
        foreign_weights: Returns a network's weights from a file of another project's; None if its names are not of a
            layout that the family knows.
        describe_weights: Returns the message of the detector that a file's weights are of, and its classes if they are
            known; None if the weights are of another family.
        write_transformers: Writes a detector of its message for the transformers library into a folder, and returns the
            file of weights; None if transformers has no such detector.
    """

    network: type[Network]
    build: Callable[..., Detector]
    tf1: Namers = field(default_factory=dict)
    tf2: Namers = field(default_factory=dict)
    check_training: Callable[[Any, m.InputReader], None] = _can_train
    foreign_weights: Callable[[Any, Tensors, Path], SourceWeights | None] = _no_layout
    describe_weights: Callable[[Tensors, Path], tuple[Message, Categories | None] | None] = _not_described
    write_transformers: Callable[[Detector, Any, Path], Path] | None = None
