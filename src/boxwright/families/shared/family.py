"""What the rest of the package asks a family of detectors, and the check of classes that their builders share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from boxwright.config import messages as m
from boxwright.config.message import Message
from boxwright.families.shared.source_weights import FileFacts, SourceWeights
from boxwright.nn.criteria.target_assigner import ClassColumns
from boxwright.nn.detector import Detector
from boxwright.nn.network import Network
from boxwright.nn.tensorflow_names.named_layers import Namers
from boxwright.types import Categories


def check_classes(config: Message, num_classes: int, columns: ClassColumns, categories: Categories | None) -> None:
    """Raise for a model without classes, or with fewer classes than the categories need."""
    if columns.num_classes < 1:
        raise config.refusal("num_classes", f"expected at least 1, found {num_classes}")
    if categories is not None and categories.num_slots > columns.num_classes:
        wanted = categories.num_slots + num_classes - columns.num_classes
        raise config.refusal("num_classes", f"{num_classes}, but {_counted(categories)}; set it to {wanted}")


def _counted(categories: Categories) -> str:
    """Describe the number of classes, or for a label map with gaps the largest id."""
    first, last = categories.items[0], categories.items[-1]
    if len(categories) == categories.num_slots:
        names = ", ".join(item.name for item in categories.items[:3]) + (", …" if len(categories) > 3 else "")
        return f"the data have {len(categories)} classes, with ids {first.id} to {last.id} ({names})"
    return (
        f"the label map's {len(categories)} classes have ids up to {last.id} ({last.name}), and a class head has an "
        "output for every id up to the largest"
    )


Tensors = Mapping[str, Tensor]


def _can_train(model: Any, reader: m.InputReader) -> None:
    del model, reader


def _no_layout(network: Any, tensors: Tensors, path: Path, facts: FileFacts) -> SourceWeights | None:
    del network, tensors, path, facts
    return None


def _not_described(tensors: Tensors, path: Path, facts: FileFacts) -> tuple[Message, Categories | None] | None:
    del tensors, path, facts
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
            layout that the family knows. Its last argument is what is known beside the weights.
        describe_weights: Returns the message of the detector that a file's weights are of, and its classes if they are
            known; None if the weights are of another family. Its last argument is what is known beside the weights,
            which do not show everything.
        write_transformers: Writes a detector of its message for the transformers library into a folder, and returns the
            file of weights; None if transformers has no such detector.
        learns_in_bfloat16: Whether networks that compute in bfloat16 learn as well as in float32, by
            `benchmarks/precision.py`: on a GPU presets then train so.
    """

    network: type[Network]
    build: Callable[..., Detector]
    tf1: Namers = field(default_factory=dict)
    tf2: Namers = field(default_factory=dict)
    check_training: Callable[[Any, m.InputReader], None] = _can_train
    foreign_weights: Callable[[Any, Tensors, Path, FileFacts], SourceWeights | None] = _no_layout
    describe_weights: Callable[[Tensors, Path, FileFacts], tuple[Message, Categories | None] | None] = _not_described
    write_transformers: Callable[[Detector, Any, Path], Path] | None = None
    learns_in_bfloat16: bool = False
