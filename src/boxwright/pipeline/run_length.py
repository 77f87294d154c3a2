"""A recipe for a run of another length, or for another batch size.

Whatever counts steps keeps its share of the run. D-FINE's authors ask for the same of their recipe where the batch
changes, and with it the steps: warm-up, the start and end of augmentation, and the window of the weights' average.

Learning rates are in proportion to the batch. A batch of k times the images averages over k times as many gradients, so
that one step may go as far as k steps did: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour,
2017 (1706.02677), section 2.1. It is a rule for SGD. Adam and RMSProp divide a step by the gradient's own size, so that
it does not shrink with the batch; their rates stay, and a line says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from boxwright.config.message import Message, find_fields
from boxwright.config.messages import TrainConfig
from boxwright.config.preset import from_preset
from boxwright.config.tree import Location

# The rates of each schedule, the one it begins or rises to first; the entries of a manual one have theirs in
# `learning_rate` too.
SCHEDULE_RATES = {
    "constant_learning_rate": ("learning_rate",),
    "exponential_decay_learning_rate": ("initial_learning_rate", "burnin_learning_rate", "min_learning_rate"),
    "manual_step_learning_rate": ("initial_learning_rate",),
    "cosine_decay_learning_rate": ("learning_rate_base", "warmup_learning_rate"),
}
_SCALED = ("momentum_optimizer",)
_NAMES = {"adam_optimizer": "Adam", "adamw_optimizer": "AdamW", "rms_prop_optimizer": "RMSProp"}
RATES = frozenset(itertools.chain.from_iterable(SCHEDULE_RATES.values()))


def scaled_rate(rate: float, batch_size: int, meant_for: int) -> float:
    """Return the learning rate for a batch size, from one for batches of `meant_for` images."""
    return rate * batch_size / meant_for


def scale_rates(train: TrainConfig) -> str:
    """Scale the rates of a preset to the batch size; where any was set by somebody else, leave all.

    Args:
        train: It says for which batch size its rates are meant; its optimizer changes.

    Returns:
        What was done, in a sentence; empty where nothing was.
    """
    meant_for, batch_size = train.learning_rate_batch_size, train.batch_size
    rates = list(find_fields(train.optimizer, RATES)) if train.optimizer is not None else []
    if batch_size == meant_for or not rates or not all(from_preset(message.location(name)) for message, name in rates):
        return ""
    kind = train.optimizer.which("optimizer") if train.optimizer is not None else None
    if kind not in _SCALED:
        return (
            f"learning rates stay those of the preset, for batches of {meant_for}, though train_config.batch_size is "
            f"{batch_size}: {_NAMES.get(str(kind), kind)} divides steps by the gradients' own size"
        )
    changes = []
    for message, name in rates:
        before = getattr(message, name)
        message.set(name, scaled_rate(before, batch_size, meant_for), message.location(name))
        changes.append(f"{name} {before:g} → {getattr(message, name):g}")
    return (
        f"learning rates are scaled by {batch_size} / {meant_for}, as the preset's are for batches of {meant_for} and "
        f"train_config.batch_size is {batch_size} ({', '.join(changes)}); a rate of your own is taken as it is"
    )


# Fields that count steps, and the decay of an average whose window is 1 / (1 - decay) steps.
_STEPS = frozenset(
    {
        *("total_steps", "warmup_steps", "hold_base_rate_steps", "decay_steps", "step", "burnin_steps"),
        *("from_step", "until_step", "moving_average_ramp_steps", "restart_from_best_step"),
    }
)
_DECAY = "moving_average_decay"
# A window of ten steps: TF's own limit, (1 + n) / (10 + n), is below it in the first eighty.
_LEAST_DECAY = 0.9


def stretch(
    message: Message, steps: int, meant_for: int, follows: Callable[[Location | None], bool] = lambda place: True
) -> list[str]:
    """Change all that counts steps in a message from a run of `meant_for` steps to one of `steps`.

    Args:
        follows: Whether a field that was set at a place changes; all do by default.

    Returns:
        What was changed, a phrase each.
    """
    changes, step_before = [], (0, 0)
    for part, name in find_fields(message, _STEPS | {_DECAY}):
        before, where = getattr(part, name), part.location(name)
        # 0, which turns warm-up, burn-in or a limit off, stays 0.
        if not before or not follows(where):
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


def fit_recipe(train: TrainConfig, recipe_steps: int) -> list[str]:
    """Stretch a preset to the run for which the schedules of a file are meant that is laid over it.

    Args:
        train: The preset's; it changes.
        recipe_steps: Those of the file; 0 if it has none, and nothing changes.

    Returns:
        What was done, in a sentence; none where nothing was.
    """
    note = _stretched(train, recipe_steps, train.recipe_steps)
    return [note] if note else []


def stretch_recipe(train: TrainConfig) -> str:
    """Stretch what a recipe says, a preset's or that of a file with `recipe_steps`, over the run's own number of steps.

    Args:
        train: It says for how many steps the recipe is meant; it changes.

    Returns:
        What was done, in a sentence; empty where nothing was.
    """
    where = train.location("recipe_steps")
    train._recipe_file = "" if where is None or from_preset(where) else where.file
    return _stretched(train, train.num_steps, train.recipe_steps)


def set_num_steps(train: TrainConfig, steps: int) -> str:
    """Change the length of a run, and with it what a recipe says; return as `stretch_recipe`."""
    meant_for = train.num_steps
    train.set("num_steps", steps, train.location("num_steps"))
    return _stretched(train, steps, meant_for)


def _stretched(train: TrainConfig, steps: int, meant_for: int) -> str:
    if not (steps and meant_for) or steps == meant_for:
        return ""

    def follows(place: Location | None) -> bool:
        return from_preset(place) or (place is not None and place.file == train._recipe_file)

    changes = stretch(train, steps, meant_for, follows)
    if not changes:
        return ""
    whose = f"the recipe of {train._recipe_file}, of" if train._recipe_file else "the preset's recipe of"
    changed = ", ".join(dict.fromkeys(changes))
    return f"{whose} {meant_for} steps is fitted to {steps} ({changed}); what you set yourself is taken as it is"


def schedule_end(train: TrainConfig) -> int:
    """Return the step at which the learning rate's decay ends; 0 if it has no end."""
    optimizer = train.optimizer
    chosen = optimizer.chosen("optimizer") if optimizer is not None else None
    rate = chosen.learning_rate if chosen is not None else None
    cosine = rate.cosine_decay_learning_rate if rate is not None else None
    return 0 if cosine is None else int(cosine.total_steps)


def _keeps_last_rate(train: TrainConfig) -> bool:
    """Return whether the rate decays to a share of its peak before the run ends, and learns with it from then on."""
    if train.optimizer is None:
        return False
    shares = [getattr(message, name) for message, name in find_fields(train.optimizer, {"end_factor"})]
    return sum(shares) > 0 and schedule_end(train) < train.num_steps


def schedule_mismatch(train: TrainConfig) -> str:
    """Return a line about a learning rate whose decay does not end with the run; empty if it does, or has no end."""
    end, steps = schedule_end(train), train.num_steps
    if not (end and steps) or end == steps or _keeps_last_rate(train):
        return ""
    return f"the learning rate ends at step {end}, the run at {steps}; --stretch_schedule ends both together"


def stretch_schedule(train: TrainConfig) -> str:
    """Stretch all that counts steps, wherever it was set, so that the learning rate's decay ends with the run.

    A decay that ends before the run, at a rate above 0, is meant so, and nothing changes.

    Returns:
        What was done, in a sentence; empty where there was nothing to do.

    Raises:
        ConfigError: Where the schedule has no end, or the run has none.
    """
    end, steps = schedule_end(train), train.num_steps
    if not end:
        raise train.refusal("optimizer", "--stretch_schedule: the learning rate has no end; a cosine's is total_steps")
    if not steps:
        raise train.refusal("num_steps", "--stretch_schedule: the run has no end; set num_steps, or --epochs")
    if end == steps:
        return ""
    if _keeps_last_rate(train):
        return f"nothing is stretched: from step {end} on the learning rate stays at its end_factor, to step {steps}"
    changed = ", ".join(dict.fromkeys(stretch(train, steps, end)))
    return f"the schedule of {end} steps is stretched to {steps} ({changed})"
