"""Steps whose losses or gradients are NaN or infinite change nothing.

On the CPU, and in float16, that is known before the update. On a GPU the program does not wait to know: the device
leaves the update out by a flag, and the program reads the step's numbers while the next step runs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from boxwright.base.errors import TrainingError
from boxwright.data.batch import Batch
from boxwright.training.state import TrainingState
from boxwright.training.step_report import StepReport, is_finite

# Below this scale float16 gradients do not overflow for their size: they are not finite.
_LEAST_SCALE = 2.0**-10


class NotFiniteError(TrainingError):
    """A loss or gradient is NaN or infinite; the state is as before the step.

    Attributes:
        batch: What was to be learned from, this process's part of it.
    """

    def __init__(self, report: StepReport, batch: Batch) -> None:
        """Describe the step."""
        losses, norm = report.losses, report.gradient_norm
        what = "gradient" if all(is_finite(loss) for loss in losses.values()) else "loss"
        terms = ", ".join(f"{name} {value:g}" for name, value in losses.items())
        super().__init__(
            f"step {report.before.step + 1}: the {what} is not finite: {terms}; gradient norm {norm:g}; "
            f"learning rate {report.rate:g}"
        )
        self.losses, self.gradient_norm, self.batch = losses, norm, batch


def check_step(report: StepReport, state: TrainingState) -> None:
    """Go back to before the step where it was not finite, if that is not known yet; waits for it.

    Statistics of normalization are not among what goes back: a step restores them itself.
    """
    # A report lost its batch when the step was known to be finite; reading it again would cost a wait.
    if report.batch is None or report.finite:
        return
    state.go_back(report.before)
    state.scaler.update()  # a scaler that is not told of the end of a step refuses the next
    raise NotFiniteError(report, report.batch)


def check_previous_step(previous: StepReport | None, state: TrainingState) -> None:
    """As `check_step`, of the step before, if there was one."""
    if previous is not None:
        check_step(previous, state)


def all_finite(numbers: Tensor) -> Tensor:
    """Return whether all numbers are, a bool scalar on their device."""
    # Of NaN and of infinities the difference is NaN, which equals nothing.
    return (numbers - numbers == 0).all()


def overflowed(report: StepReport, scaler: torch.amp.GradScaler) -> bool:
    """Return whether gradients were too large for float16, which a smaller scale cures; in float16 this waits."""
    return (
        scaler.is_enabled()
        and all(is_finite(loss) for loss in report.losses.values())
        and not is_finite(report.gradient_norm)
        and scaler.get_scale() > _LEAST_SCALE
    )
