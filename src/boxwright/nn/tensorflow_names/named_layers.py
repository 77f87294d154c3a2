"""Layers and their variables in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from boxwright.nn.heads.convolutional import ConvolutionalHead

# Layers of a part, each with its path or scope in TensorFlow.
Named = Iterator[tuple[nn.Module, str]]
# The class of a part (a backbone, a neck, a head) → what names the layers of one in a network.
Namers = Mapping[type[nn.Module], Callable[[Any, Any], Named]]
# Our names of a normalization's tensors → TensorFlow's.
NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
CONV_AXES = (3, 2, 0, 1)  # [h, w, in, out] → [out, in, h, w]
DEPTHWISE_AXES = (2, 3, 0, 1)  # [h, w, in, multiplier] → [in, multiplier, h, w]


class UnnamedPartError(Exception):
    """A version of TensorFlow has no equivalent of a part of a network; the text describes the part."""


@dataclass(frozen=True)
class TfVariable:
    """A TensorFlow variable.

    Attributes:
        axes: The transposition to our layout; empty for none.
        multiplier: Of a depthwise kernel: output channels per input channel.
        side: Height and width of the input of a dense layer, whose kernel is [h · w · in, out] in TF; else 0.
        dense_shape: Of the whole variable in a classifier, of which the network keeps a part; else empty.
        steps: Along each axis of that, the distance between values that are kept.
    """

    key: str
    axes: tuple[int, ...] = ()
    multiplier: int = 1
    side: int = 0
    dense_shape: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def to_ours(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array in our layout; unchanged if its rank differs."""
        if self.dense_shape and array.shape == self.dense_shape:
            array = array[tuple(slice(None, None, step) for step in self.steps)]
        if self.side and array.ndim == 2 and array.shape[0] % self.side**2 == 0:
            array = array.reshape(self.side, self.side, -1, array.shape[1])
        if not self.axes or array.ndim != len(self.axes):
            return array
        ours = array.transpose(self.axes)
        # [in, multiplier, h, w] → [in · multiplier, 1, h, w]
        return ours.reshape(-1, 1, *ours.shape[2:]) if self.axes == DEPTHWISE_AXES else ours

    def to_theirs(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return one of our arrays in TensorFlow's layout."""
        if self.multiplier > 1:
            array = array.reshape(-1, self.multiplier, *array.shape[2:])
        theirs = array.transpose(np.argsort(self.axes)) if self.axes else array
        return theirs.reshape(-1, theirs.shape[-1]) if self.side else theirs


def check_head(head: ConvolutionalHead) -> None:
    """Raise for a predictor with layers that TF's lacks."""
    if not head.as_in_tensorflow:
        raise UnnamedPartError("a predictor with normalization, or with layers of its own before it")


def learned_names(norm: nn.Module) -> list[str]:
    """Return our names of a normalization's variables in TensorFlow: statistics, and gain and bias if trainable."""
    known = (name for name in NORM if hasattr(norm, name))  # of groups there are no statistics
    # TensorFlow creates no gamma where scale is false, and no beta where center is; here these are constants.
    # Frozen weights look the same: weights are loaded and named before anything is frozen.
    return [name for name in known if "running" in name or getattr(norm, name).requires_grad]
