"""What other projects' tensors need to become ours: mostly nothing, or another order of a box's four numbers."""

from __future__ import annotations

from torch import Tensor


def unchanged(value: Tensor) -> Tensor:
    """Return a tensor as it is."""
    return value


def vertical_first(value: Tensor) -> Tensor:
    """Reorder the outputs of a box predictor, x y w h for each anchor, to y x h w."""
    return value.reshape(-1, 4, *value.shape[1:])[:, [1, 0, 3, 2]].reshape(value.shape)
