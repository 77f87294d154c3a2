"""Learning-rate schedules: functions of the step, counted from 0 (TF's `learning_schedules`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """The same rate at every step."""

    rate: float

    def __call__(self, step: int) -> float:
        """Return the rate."""
        return self.rate


@dataclass(frozen=True)
class ExponentialDecay:
    """A burn-in rate, then a decay from the end of the burn-in.

    Attributes:
        decay_steps: Steps in which the rate falls by `decay_factor`.
        burnin_rate: The rate of the first `burnin_steps`; 0 for `rate`.
    """

    rate: float
    decay_steps: int
    decay_factor: float
    staircase: bool = True
    burnin_rate: float = 0.0
    burnin_steps: int = 0
    floor: float = 0.0

    def __call__(self, step: int) -> float:
        """Return the rate."""
        if step < self.burnin_steps:
            # 0 stands for "not set", as in TF.
            return self.burnin_rate or self.rate
        exponent = (step - self.burnin_steps) / self.decay_steps
        return max(self.rate * self.decay_factor ** (math.floor(exponent) if self.staircase else exponent), self.floor)


@dataclass(frozen=True)
class InverseTimeDecay:
    """Another schedule's rate divided by 1 + decay · step, as in Keras's optimizers."""

    schedule: Schedule
    decay: float

    def __call__(self, step: int) -> float:
        """Return the rate."""
        return self.schedule(step) / (1 + self.decay * step)


@dataclass(frozen=True)
class ManualSteps:
    """A piecewise constant rate.

    Attributes:
        boundaries: The steps at which the next rate begins.
        rates: The rate of each interval, one more than boundaries.
        warmup: Whether the rate rises linearly over the first interval, from its rate to the next.
    """

    boundaries: Sequence[int]
    rates: Sequence[float]
    warmup: bool = False

    def __call__(self, step: int) -> float:
        """Return the rate."""
        stretch = sum(step >= boundary for boundary in self.boundaries)
        if self.warmup and stretch == 0 and self.boundaries:
            return self.rates[0] + (self.rates[1] - self.rates[0]) * step / self.boundaries[0]
        return self.rates[stretch]


@dataclass(frozen=True)
class CosineDecay:
    """A warm-up, a plateau, then half a cosine down to 0, or to a share of the peak.

    Attributes:
        total_steps: The step at which the decay ends.
        warmup_rate: The rate at step 0 of a warm-up.
        warmup_power: The rate rises in proportion to this power of the step, at least 1; 1 for a line.
        hold_steps: Steps at the peak before the decay.
        end_share: The share of the peak to which the rate decays, and at which it stays.
    """

    rate: float
    total_steps: int
    warmup_rate: float = 0.0
    warmup_steps: int = 0
    hold_steps: int = 0
    end_share: float = 0.0
    warmup_power: float = 1.0

    def __call__(self, step: int) -> float:
        """Return the rate."""
        if step < self.warmup_steps:
            # In this order a power of 1 gives TF's rates to the last bit.
            rise = (self.rate - self.warmup_rate) * step / self.warmup_steps
            return self.warmup_rate + rise * math.pow(step / self.warmup_steps, self.warmup_power - 1)
        start = self.warmup_steps + self.hold_steps
        if step < start:
            return self.rate
        # As in TF; the cosine itself would rise again.
        end = self.rate * self.end_share
        if step > self.total_steps or self.total_steps <= start:
            return end
        return end + 0.5 * (self.rate - end) * (1 + math.cos(math.pi * (step - start) / (self.total_steps - start)))


def mismatch(schedule: Schedule, num_steps: int) -> str:
    """Return a warning if a schedule does not fit the number of steps, else an empty string."""
    last = num_steps - 1
    if schedule(last) == 0:
        first, past = 0, last  # bisects for the first step with rate 0
        while first < past:
            middle = (first + past) // 2
            first, past = (first, middle) if schedule(middle) == 0 else (middle + 1, past)
        if first < last:
            return f"the learning rate is 0 from step {first} on, and training goes to step {num_steps}"
    if last > 0 and schedule(last) > schedule(last - 1):
        return f"the learning rate still rises at the last step, {num_steps}: the warm-up is longer than the training"
    return ""
