"""What a training step reports: numbers that may still be on their way from the device.

Steps whose losses or gradients are NaN or infinite change nothing.

On the CPU, and in float16, that is known before the update. On a GPU the program does not wait to know: the device
leaves the update out by a flag, and the program reads the step's numbers while the next step runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from boxwright.base.errors import TrainingError
from boxwright.data.batch import Batch
from boxwright.nn.criteria.criterion import Description
from boxwright.training.state import Counters, TrainingState


def is_finite(value: float) -> bool:
    """Return whether a number is neither infinite nor NaN."""
    return value - value == 0


@dataclass(frozen=True)
class StepReport:
    """What a step reports.

    Attributes:
        before: Of the state, when the step began.
        numbers: Their values, of the whole batch, and the norm of all gradients together, before clipping; on the CPU,
            where they may still be on their way.
        arrived: The event to wait for before numbers are read from a GPU.
        batch: This process's part of the batch, until it is known whether the step was finite; else None.
        description: How the batch was assigned, where that was asked for; of the last part.
        skipped: Whether the weights stayed, as float16 gradients overflowed.
    """

    before: Counters
    names: tuple[str, ...]
    numbers: Tensor
    arrived: torch.cuda.Event | None
    rate: float
    batch: Batch | None
    description: Description | None = None
    skipped: bool = False

    @cached_property
    def losses(self) -> dict[str, float]:
        """TF's loss names to values; waits for the step."""
        return dict(zip(self.names, self._read[:-1], strict=True))

    @property
    def gradient_norm(self) -> float:
        """Return the norm of all gradients together, before clipping; waits for the step."""
        return self._read[-1]

    @property
    def finite(self) -> bool:
        """Whether all numbers are; waits for the step."""
        return all(is_finite(number) for number in self._read)

    def finished(self, description: Description | None, *, pending: bool, skipped: bool) -> StepReport:
        """Return the report of a step that has been taken.

        Args:
            pending: Whether it is not known yet if the step was finite.
        """
        return replace(self, description=description, skipped=skipped, batch=self.batch if pending else None)

    @cached_property
    def _read(self) -> list[float]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return list(self.numbers.tolist())


def send_report(
    before: Counters, losses: Mapping[str, Tensor], numbers: Tensor, rate: float, batch: Batch
) -> StepReport:
    """Send a step's numbers to the CPU without waiting for them.

    Args:
        numbers: Their values and the norm of the gradients, [n + 1], on the device.
    """
    arrived = None
    if numbers.is_cuda:
        numbers = numbers.to("cpu", non_blocking=True)  # into pinned memory
        arrived = torch.cuda.Event()
        arrived.record()
    return StepReport(before, tuple(losses), numbers, arrived, rate, batch)


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
    # NaN and infinities minus themselves are NaN, which equals nothing.
    return (numbers - numbers == 0).all()


def overflowed(report: StepReport, scaler: torch.amp.GradScaler) -> bool:
    """Return whether gradients were too large for float16, which a smaller scale cures; in float16 this waits."""
    return (
        scaler.is_enabled()
        and all(is_finite(loss) for loss in report.losses.values())
        and not is_finite(report.gradient_norm)
        and scaler.get_scale() > _LEAST_SCALE
    )
