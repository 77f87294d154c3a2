"""The learning rate over a run, and what a run is too short for."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from boxwright.config.message import find_fields
from boxwright.nn.optimization.schedules import Constant, Schedule, mismatch
from boxwright.pipeline import messages as m
from boxwright.training.preflight.finding import Finding, some

# A schedule is sampled, as a run may have millions of steps.
_POINTS = 1000
# A rate below 1 % of the highest teaches next to nothing; one that ends above 90 % of it has not decayed.
_LITTLE, _MOST_OF_A_RUN, _HARDLY = 0.01, 0.5, 0.9


def check_schedule(schedule: Schedule, num_steps: int) -> Iterable[Finding]:
    """Yield problems of a learning rate schedule; `num_steps` is 0 or less if unknown."""
    if num_steps < 1:
        yield Finding("learning_rate", "fatal", "train_config.num_steps is not set", "set it")
        return
    steps = np.unique(np.linspace(0, num_steps - 1, min(num_steps, _POINTS)).astype(np.int64)).tolist()
    rates = np.array([schedule(step) for step in steps])
    top = float(rates.max())
    if not np.isfinite(rates).all() or top <= 0:
        yield Finding("learning_rate", "fatal", f"it rises to {top:g}: nothing is learned", "set a rate above 0")
        return
    little = float((rates < _LITTLE * top).mean())
    if little > _MOST_OF_A_RUN:
        first = next(step for step, rate in zip(steps, rates, strict=True) if rate < _LITTLE * top)
        yield Finding(
            "learning_rate",
            "warning",
            f"for {little:.0%} of {num_steps} steps it is below 1 % of its maximum of {top:g} (first at step {first}; "
            f"at the end it is {rates[-1]:.2g}): most of the run learns nothing",
            "stretch its decay (decay_steps, step boundaries, total_steps) over num_steps, or train fewer steps",
        )
    elif problem := mismatch(schedule, num_steps):
        yield Finding("learning_rate", "warning", problem, "fit total_steps or warmup_steps to num_steps")
    elif (rises := float(rates.argmax()) / len(rates)) > _MOST_OF_A_RUN:
        yield Finding(
            "learning_rate",
            "warning",
            f"it rises to its maximum of {top:.3g} only at step {steps[int(rates.argmax())]} of {num_steps}: for "
            f"{rises:.0%} of them the run warms up",
            "fit warmup_steps to num_steps: a tenth of them is enough",
        )
    elif not isinstance(schedule, Constant) and float(rates[-1]) > _HARDLY * top and num_steps > 1:
        yield Finding(
            "learning_rate",
            "warning",
            f"it hardly decays: it is {rates[-1]:.3g} after {num_steps} steps, at most {top:.3g}",
            "shorten the decay (decay_steps, step boundaries, total_steps) so that it ends with the run, or set "
            "constant_learning_rate",
        )
    else:
        yield Finding(
            "learning_rate", "fine", f"{rates[0]:.3g} at first, at most {top:.3g}, {rates[-1]:.3g} at the end"
        )


def check_never(config: m.TrainConfig, num_steps: int) -> Iterable[Finding]:
    """Yield a finding where something is to begin, or a freeze to end, at a step that the run does not reach."""
    late = [(part, name) for part, name in find_fields(config, {"from_step"}) if getattr(part, name) >= num_steps]
    waiting = [
        (stage, name)
        for freeze in config.freeze_stage
        for stage, name in find_fields(freeze, {"until_step"})
        if getattr(stage, name) >= num_steps
    ]
    if late:
        names = [f"{part.path_of(name)} {getattr(part, name)}" for part, name in late]
        yield Finding(
            "steps",
            "warning",
            f"never happens in {num_steps} steps: {some(names)}",
            "fit it to num_steps; a preset's are fitted where a file names the preset",
        )
    if waiting:
        names = [f"{part.path_of(name)} {getattr(part, name)}" for part, name in waiting]
        yield Finding(
            "steps", "warning", f"never learns in {num_steps} steps: {some(names)}", "end the stage within the run"
        )
