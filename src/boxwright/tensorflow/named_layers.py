"""A layer and where TensorFlow keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

__all__ = ["CONV_AXES", "DEPTHWISE_AXES", "NORM", "Named", "TfVariable", "learnt_names"]

# Layers of a part, each with the path or scope that TensorFlow has it under.
Named = Iterator[tuple[nn.Module, str]]
# Our names of a normalization's tensors → TensorFlow's.
NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
CONV_AXES = (3, 2, 0, 1)  # [h, w, in, out] → [out, in, h, w]
DEPTHWISE_AXES = (2, 3, 0, 1)  # [h, w, in, multiplier] → [in, multiplier, h, w]


@dataclass(frozen=True)
class TfVariable:
    """A variable of TensorFlow's.

    Attributes:
        key: Its key in a checkpoint.
        axes: The transposition that brings it to our layout; empty for none.
    """

    key: str
    axes: tuple[int, ...] = ()


def learnt_names(norm: nn.Module) -> list[str]:
    """Return our names of what a normalization has in TensorFlow: all statistics; gain and bias where they learn."""
    return [name for name in NORM if "running" in name or getattr(norm, name).requires_grad]
