"""Learning rates for another batch size: in proportion to it.

A batch of k times the images averages over k times as many gradients, so that one step may go as far as k steps did:
Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017 (1706.02677), section 2.1. It is a rule
for SGD. Adam and RMSProp divide a step by the gradient's own size, so that it does not shrink with the batch; their
rates stay, and a line says so.
"""

from __future__ import annotations

import itertools

from boxwright.config.message import find_fields
from boxwright.config.messages import TrainConfig
from boxwright.config.preset import from_preset

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
    """Return the learning rate for a batch size.

    Args:
        rate: The learning rate for batches of `meant_for` images.
        meant_for: How many images it had where the rate was found to be good.

    Returns:
        `rate` × `batch_size` / `meant_for`.
    """
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
