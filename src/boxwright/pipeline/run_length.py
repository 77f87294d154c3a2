"""A recipe for a run of another length: whatever counts steps keeps its share of the run.

D-FINE's authors ask for the same of their recipe where the batch changes, and with it the steps: warm-up, the start and
end of augmentation, and the window of the weights' average.
"""

from __future__ import annotations

from boxwright.config.message import Message, find_fields
from boxwright.config.messages import TrainConfig
from boxwright.config.preset import from_preset

# Fields that count steps, and the decay of an average whose window is 1 / (1 - decay) steps.
_STEPS = frozenset(
    {
        *("total_steps", "warmup_steps", "hold_base_rate_steps", "decay_steps", "step", "burnin_steps"),
        *("from_step", "until_step"),
    }
)
_DECAY = "moving_average_decay"
# A window of ten steps: TF's own limit, (1 + n) / (10 + n), is below it in the first eighty.
_LEAST_DECAY = 0.9


def stretch(message: Message, steps: int, meant_for: int, *, presets_only: bool = False) -> list[str]:
    """Change all that counts steps in a message from a run of `meant_for` steps to one of `steps`.

    Args:
        presets_only: Whether fields that were set elsewhere than in a preset stay.

    Returns:
        What was changed, a phrase each.
    """
    changes, step_before = [], (0, 0)
    for part, name in find_fields(message, _STEPS | {_DECAY}):
        before, where = getattr(part, name), part.location(name)
        # 0, which turns warm-up, burn-in or a limit off, stays 0.
        if not before or (presets_only and not from_preset(where)):
            continue
        if name == _DECAY:
            after = min(max(1 - (1 - before) * meant_for / steps, _LEAST_DECAY), 1.0) if before < 1 else before
        else:
            after = max(round(before * steps / meant_for), 1)
        if name == "step":  # of a list of steps, which rise and have to do so still
            after = max(after, step_before[1] + 1) if before > step_before[0] else after
            step_before = before, after
        if name == "until_step":
            after = max(after, getattr(part, "from_step", 0) + 1)
        part.set(name, after, where)
        changes.append(f"{name} {before:g} → {getattr(part, name):g}")
    return changes


def stretch_preset(train: TrainConfig) -> str:
    """Stretch what a preset's recipe says over the run's own number of steps.

    Args:
        train: It says for how many steps the recipe is meant; it changes.

    Returns:
        What was done, in a sentence; empty where nothing was.
    """
    return _stretched(train, train.num_steps, train.recipe_steps)


def set_num_steps(train: TrainConfig, steps: int) -> str:
    """Change the length of a run, and with it what a preset's recipe says; return as `stretch_preset`."""
    meant_for = train.num_steps
    train.set("num_steps", steps, train.location("num_steps"))
    return _stretched(train, steps, meant_for)


def _stretched(train: TrainConfig, steps: int, meant_for: int) -> str:
    if not (steps and meant_for) or steps == meant_for:
        return ""
    changes = stretch(train, steps, meant_for, presets_only=True)
    if not changes:
        return ""
    changed = ", ".join(dict.fromkeys(changes))
    return (
        f"the preset's recipe of {meant_for} steps is fitted to {steps} ({changed}); what you set yourself is taken as "
        "it is"
    )
