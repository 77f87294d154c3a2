"""Conversions of other projects' tensors: mostly none, or a reordering of box coordinates."""

from __future__ import annotations

from torch import Tensor


def unchanged(value: Tensor) -> Tensor:
    """Return the tensor unchanged."""
    return value


def vertical_first(value: Tensor) -> Tensor:
    """Reorder the outputs of a box predictor from x y w h for each anchor to y x h w."""
    return value.reshape(-1, 4, *value.shape[1:])[:, [1, 0, 3, 2]].reshape(value.shape)
