"""Score converters: from logits to scores.

Dimensions: C columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def identity(logits: Tensor) -> Tensor:
    """Return logits [..., C] unchanged."""
    return logits


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax over the last axis of logits [..., C]."""
    return torch.softmax(logits, dim=-1)


@dataclass(frozen=True)
class ScoreConverter:
    """Scale, convert and calibrate logits.

    Attributes:
        function: `identity`, `torch.sigmoid` or `softmax`.
        calibration: Applied to the scores; `identity` for none.
    """

    function: Callable[[Tensor], Tensor] = identity
    logit_scale: float = 1.0
    calibration: Callable[[Tensor], Tensor] = identity

    def __call__(self, logits: Tensor) -> Tensor:
        """Return scores [..., C]."""
        # No division by 1, which would be a pass over all logits.
        scaled = logits / self.logit_scale if self.logit_scale != 1.0 else logits
        return self.calibration(self.function(scaled))
