"""Whether a run has diverged: its loss is finite, and a thousand times what it was."""

from __future__ import annotations

import math
import statistics
from collections import deque

from boxwright.base.errors import CheckpointError

_STEPS, _TIMES = 100, 1000


class DivergenceMonitor:
    """Compares the loss of each step with the median of the hundred before it.

    Attributes:
        diverged: Whether the last loss was over a thousand times that median.
        losses: The last hundred losses that were not; none of 0, of which nothing is a multiple.
    """

    def __init__(self) -> None:
        """Begin before the first step."""
        self.diverged = self._flagged = False
        self.losses: deque[float] = deque(maxlen=_STEPS)

    def observe(self, step: int, loss: float) -> str:
        """Take in a step's loss; return what to tell the user, the first time that it has diverged."""
        typical = statistics.median(self.losses) if self.losses else 0.0
        self.diverged = 0 < typical * _TIMES < loss
        if not self.diverged:
            self.losses += [loss] if loss > 0 else []
            return ""
        if self._flagged:
            return ""
        self._flagged = True
        return (
            f"step {step}: the run has diverged: the loss is {loss:.3g}, and was {typical:.3g}, the median of "
            f"{len(self.losses)} steps; lower the learning rate (--lr), or clip gradients "
            "(train_config.gradient_clipping_by_norm)"
        )

    def restore(self, losses: object) -> None:
        """Go on after the losses that a checkpoint holds; raise a CheckpointError for anything else."""
        if not isinstance(losses, list) or not all(isinstance(x, float) and math.isfinite(x) for x in losses):
            raise CheckpointError(f"the checkpoint's losses are not as they were written: {str(losses)[:120]}")
        self.losses.extend(losses)
