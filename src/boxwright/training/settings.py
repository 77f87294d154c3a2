"""What a run needs that a configuration does not say, and who hears of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from boxwright.errors import TrainingError
from boxwright.evaluation.evaluator import Evaluation

# Beyond these and NumPy's and torch's generators disagree on what a seed is.
_SEEDS = 2**63

__all__ = ["RunSettings", "Silent", "TrainingObserver"]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run needs that a configuration does not say.

    Attributes:
        checkpoint_every_n: Steps between checkpoints; the last step has one always.
        max_to_keep: How many of the newest checkpoints stay, beside the best and those kept by the hour.
        log_every_n: Steps between lines of the log.
        summarize_every_n: Steps between pictures of losses and inputs in the log; 0 for none.
        evaluate: Whether to evaluate, where there is an evaluation reader.
        evaluate_every_n: Steps between evaluations; 0 for one at each checkpoint.
        best_metric: By which the best checkpoint is chosen; empty for the first that is computed.
        patience: Evaluations in a row without a better one after which training stops; 0 for never.
        seed: Decides fresh weights, order and augmentation; None for the run's own, which begins with 0.
        workers: Processes that prepare samples.
        data_timeout: Seconds without a batch after which the workers count as stuck, and the run saves and ends.
        skip_bad_records: Whether samples that cannot be read are left out, counted and named.
        skip_not_finite: Whether a step of which a loss or gradient is not finite is left out, not the end.
        max_seconds: Seconds of training after which the run saves and ends; 0 for no limit.
        compile: Whether the network is compiled; pays off after some hundreds of steps.
        tf32: Whether a GPU may round factors of float32 products to 10 bits.
        profile: Whether to measure some steps, write a trace, and end.
        track: Trackers that hear of it too: "wandb", "mlflow".
        device: "cpu", "cuda", or "auto" for a GPU where there is one.
    """

    checkpoint_every_n: int = 1000
    max_to_keep: int = 5
    log_every_n: int = 20
    summarize_every_n: int = 100
    evaluate: bool = True
    evaluate_every_n: int = 0
    best_metric: str = ""
    patience: int = 0
    seed: int | None = None
    workers: int = 1
    data_timeout: float = 600.0
    skip_bad_records: bool = False
    skip_not_finite: bool = False
    max_seconds: float = 0.0
    compile: bool = False
    tf32: bool = False
    profile: bool = False
    track: tuple[str, ...] = ()
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("checkpoint_every_n", "max_to_keep", "log_every_n", "data_timeout"):
            if not getattr(self, name) >= 1:
                raise TrainingError(f"{name}: expected at least 1, found {getattr(self, name)}")
        for name in ("summarize_every_n", "evaluate_every_n", "patience", "workers", "max_seconds"):
            if not getattr(self, name) >= 0:
                raise TrainingError(f"{name}: expected 0 or more, found {getattr(self, name)}")
        if self.seed is not None and not 0 <= self.seed < _SEEDS:
            raise TrainingError(f"seed: expected 0 to {_SEEDS - 1}, found {self.seed}")


class TrainingObserver(Protocol):
    """Hears what a run does; the command line prints it."""

    def message(self, text: str) -> None:
        """Hear a line of text.

        Args:
            text: The line.
        """
        ...

    def step(self, step: int, total: int, values: dict[str, float], images_per_second: float) -> None:
        """Hear of a step.

        Args:
            step: Steps done.
            total: Steps in all.
            values: Loss terms and learning rate.
            images_per_second: Lately.
        """
        ...

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """Hear of an evaluation.

        Args:
            step: Steps done.
            evaluation: What was found.
        """
        ...


class Silent:
    """Hears everything and says nothing."""

    def message(self, text: str) -> None:
        """Hear a line of text.

        Args:
            text: The line.
        """

    def step(self, step: int, total: int, values: dict[str, float], images_per_second: float) -> None:
        """Hear of a step.

        Args:
            step: Steps done.
            total: Steps in all.
            values: Loss terms and learning rate.
            images_per_second: Lately.
        """

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """Hear of an evaluation.

        Args:
            step: Steps done.
            evaluation: What was found.
        """
