"""Calibration: curves that convert scores to calibrated probabilities.

Curves apply to every column of scores, including the background's, as in TensorFlow.

Dimensions: C columns, N points of a curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Calibration = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PiecewiseLinear:
    """Linear between points, and constant beyond the first and last."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __call__(self, scores: Tensor) -> Tensor:
        """Return the same shape."""
        x, y = scores.new_tensor(self.x), scores.new_tensor(self.y)
        right = torch.searchsorted(x, scores.contiguous(), right=True)
        left, right = (right - 1).clamp(min=0), right.clamp(max=len(x) - 1)
        span = x[right] - x[left]
        # Left of the first point and right of the last both ends are the same point.
        share = torch.where(span > 0, (scores - x[left]) / torch.where(span > 0, span, 1.0), 0.0)
        return y[left] + share * (y[right] - y[left])


@dataclass(frozen=True)
class SigmoidCurve:
    """Platt scaling: 1 / (1 + exp(a x + b)).

    Attributes:
        a: The slope; below 0 the order of scores is kept.
    """

    a: float = -1.0
    b: float = 0.0

    def __call__(self, scores: Tensor) -> Tensor:
        """Return the same shape."""
        return torch.sigmoid(-(self.a * scores + self.b))


@dataclass(frozen=True)
class ByColumn:
    """Curves for some columns; the others are unchanged."""

    curves: Mapping[int, Calibration]

    def __call__(self, scores: Tensor) -> Tensor:
        """Return [..., C]."""
        columns = list(scores.unbind(-1))
        for number, curve in self.curves.items():
            # As in TF, curves of ids that the detector lacks have no effect.
            if 0 <= number < len(columns):
                columns[number] = curve(columns[number])
        return torch.stack(columns, dim=-1)
