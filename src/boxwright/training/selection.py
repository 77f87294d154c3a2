"""Which checkpoint is best, and when waiting for a better one ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from boxwright.base.errors import CheckpointError, ConfigError


def lower_is_better(metric: str) -> bool:
    """Tell errors from successes by a metric's name."""
    return metric.startswith("Loss/")


@dataclass(frozen=True)
class Selection:
    """The evaluations so far, as far as choosing goes.

    Attributes:
        metric: What is compared; empty for the first metric that an evaluation gives.
        patience: Evaluations in a row without a better one after which training stops; 0 for never.
        best: The best value yet; None before there is one.
        evaluated: The step of the last evaluation; -1 before the first.
    """

    metric: str = ""
    patience: int = 0
    best: float | None = None
    best_step: int = -1
    waited: int = 0
    evaluated: int = -1

    @property
    def exhausted(self) -> bool:
        """Whether patience is at its end."""
        return 0 < self.patience <= self.waited

    def after(self, step: int, metrics: dict[str, float]) -> Selection:
        """Take in an evaluation.

        Returns:
            The selection after it; `best_step` is `step` where this one is the best.

        Raises:
            ConfigError: Where the metric is not among those computed.
        """
        if not metrics and not self.metric:  # groundtruth is ignored: there is nothing to choose by
            return replace(self, evaluated=step)
        metric = self.metric or next(iter(metrics), "")
        if metric not in metrics:
            raise ConfigError(
                f"the best checkpoint is to be chosen by {metric!r}, which is not computed; "
                f"computed: {', '.join(metrics) or 'nothing'}"
            )
        value, seen = metrics[metric], replace(self, metric=metric, evaluated=step)
        if self._is_better(metric, value):
            return replace(seen, best=value, best_step=step, waited=0)
        return replace(seen, waited=self.waited + 1)

    def _is_better(self, metric: str, value: float) -> bool:
        # NaN, or TF's -1 for a metric without groundtruth: such an evaluation is never the best, but patience counts
        # it.
        if value != value or (value < 0 and not lower_is_better(metric)):  # nothing to measure
            return False
        if self.best is None:
            return True
        return value < self.best if lower_is_better(metric) else value > self.best

    def content(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"metric": self.metric, "best": self.best, "best_step": self.best_step} | {
            "waited": self.waited,
            "evaluated": self.evaluated,
        }

    def restored(self, content: dict[str, Any]) -> Selection:
        """Continue from a checkpoint; with another metric, selection restarts.

        Args:
            content: What `content` returned.

        Returns:
            The selection there, with this one's metric and patience.

        Raises:
            CheckpointError: Where it is not what `content` returns.
        """
        kinds: dict[str, Any] = {"metric": str, "best": float | None, "best_step": int, "waited": int, "evaluated": int}
        if set(content) != set(kinds) or not all(isinstance(content[name], kind) for name, kind in kinds.items()):
            raise CheckpointError(f"the checkpoint's evaluations are not as they were written: {str(content)[:120]}")
        if self.metric and content["metric"] != self.metric:
            return replace(self, evaluated=content["evaluated"])
        return replace(self, **content)
