"""Tensors of another project's file, by our names."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class MappedTensors:
    """A file's tensors for a network.

    Attributes:
        values: By our names.
        names: Our names to the file's.
        unused: The file's names of unused tensors, each with the reason.
        is_classifier: Whether the file is of an image classifier, and so has nothing but the backbone.
    """

    values: dict[str, Tensor]
    names: dict[str, str]
    unused: dict[str, str]
    is_classifier: bool = False
