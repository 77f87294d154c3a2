"""Checks of a run's plan: its learning rate, its first weights, what stays frozen, and its average."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch import nn

from boxwright.base.errors import BoxwrightError, first_line
from boxwright.config.message import find_fields
from boxwright.nn.detector import Detector
from boxwright.nn.initial_statistics import normalized_layers, shares_of_layers
from boxwright.nn.optimization.moving_average import average_decay
from boxwright.nn.optimization.schedules import Constant, Schedule, mismatch
from boxwright.nn.optimization.trainable import Trainable, by_part
from boxwright.pipeline import messages as m
from boxwright.pipeline.training import ENDLESS, TrainingPlan
from boxwright.training.preflight.records import Finding, some
from boxwright.types.scopes import ChannelOrder, Scope
from boxwright.weights.find_weights import find_weights
from boxwright.weights.load_weights import LoadReport, load_weights
from boxwright.weights.tensorflow.variables import parameter_names

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
            "stretch its decay over num_steps (a cosine's with --stretch_schedule), or train fewer steps",
        )
    elif problem := mismatch(schedule, num_steps):
        yield Finding(
            "learning_rate",
            "warning",
            problem,
            "fit total_steps or warmup_steps to num_steps, as --stretch_schedule does",
        )
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
        names = [f"{part.field_path(name)} {getattr(part, name)}" for part, name in late]
        yield Finding(
            "steps",
            "warning",
            f"never happens in {num_steps} steps: {some(names)}",
            "fit it to num_steps; a preset's are fitted where a file names the preset",
        )
    if waiting:
        names = [f"{part.field_path(name)} {getattr(part, name)}" for part, name in waiting]
        yield Finding(
            "steps", "warning", f"never learns in {num_steps} steps: {some(names)}", "end the stage within the run"
        )


_LEAST_RESTORED = 0.5


def check_checkpoint(
    detector: Detector, source: str, scope: Scope, *, channels: ChannelOrder = "RGB", folder: str = ""
) -> Iterable[Finding]:
    """Yield whether weights can be restored, and which tensors keep their initial values.

    Args:
        channels: The color order of the source's first convolution.
    """
    try:
        path, _ = find_weights(source, folder)
        # Into the examined detector, which no run uses, by the run's own function: its refusals are found here.
        loaded = load_weights(detector, path, scope, channels=channels)
    except BoxwrightError as error:
        head = ' (for another number of classes, use fine_tune_checkpoint_type: "detection")'
        yield Finding(
            "checkpoint",
            "fatal",
            f"{source}: {first_line(error)}" + (head if "shape" in str(error) else ""),
            "boxwright train would fail; set another checkpoint or fine_tune_checkpoint_type",
        )
        return
    yield _judged(source, scope, loaded)


def _judged(source: str, scope: Scope, loaded: LoadReport) -> Finding:
    total = len(loaded.restored) + len(loaded.kept)
    share = len(loaded.restored) / max(total, 1)
    text = f"{source}: {len(loaded.restored)} of {total} tensors are restored ({scope})"
    reasons = sorted(set(loaded.kept.values()))
    if loaded.kept:
        text += f"; {len(loaded.kept)} keep their initial values: {'; '.join(reasons[:3])}"
    if share < _LEAST_RESTORED:
        return Finding("checkpoint", "warning", text, "is it a checkpoint of this network?")
    return Finding("checkpoint", "fine", text)


# Statistics may be averaged over at most this share of a run's updates.
_LONGEST_WINDOW = 0.4


def check_frozen(plan: TrainingPlan, detector: Detector, checkpoint: str = "") -> Iterable[Finding]:
    """Yield a finding where a run from random weights never trains some of them, or never their statistics."""
    network = detector.network
    if checkpoint or plan.fine_tune.source or plan.pretrained:
        return
    parts = [
        part
        for part in network.frozen_statistics
        if any(isinstance(module, nn.BatchNorm2d) for module in network.get_submodule(part).modules())
    ]
    if parts:
        where = ", ".join(filter(None, parts)) or "the network"
        yield Finding(
            "frozen",
            "warning",
            f"the run starts from random weights, but batch normalization of {where} keeps its first "
            "statistics, which are of no image: little or nothing may be learned",
            "set fine_tune_checkpoint, or a backbone with pretrained; or freeze_batchnorm: false",
        )
    if plan.num_steps < 1:
        return
    learning = Trainable(network, plan.freezing, parameter_names(network)).at(plan.num_steps - 1)
    # Gains and biases that a configuration fixes start at values that do no harm.
    still = [name for name, weight in network.named_parameters() if name not in learning and weight.ndim > 1]
    if still:
        yield Finding(
            "frozen",
            "warning",
            f"the run starts from random weights, and {len(still)} variables ({by_part(still)}) stay so to its end",
            "set fine_tune_checkpoint, or remove freeze_variables",
        )


def check_statistics(plan: TrainingPlan, detector: Detector) -> Iterable[Finding]:
    """Yield a finding where batch normalization's statistics are averaged over more of the run than its end.

    The window of a decay is 1 / (1 - decay) updates. Statistics over half of a run are those of weights long past; and
    of those that came with weights, of other data, much is left.
    """
    steps, network = plan.num_steps, detector.network
    if steps < 1 or steps == ENDLESS:
        return
    decays: dict[float, int] = {}
    for group in shares_of_layers(network, dict.fromkeys(normalized_layers(network), 1.0), {}).groups:
        if group.decay < 1:
            decays[group.decay] = decays.get(group.decay, 0) + len(group.layers)
    updates = steps * plan.accumulation
    slow = {decay: count for decay, count in decays.items() if 1 / (1 - decay) > updates * _LONGEST_WINDOW}
    if slow:
        decay, count = max(slow.items())
        yield Finding(
            "statistics",
            "warning",
            f"batch normalization of {count} layers averages {1 / (1 - decay):.0f} updates (decay {decay:.4g}), and "
            f"the run has {updates}: what is evaluated lags behind the weights",
            f"set decay in batch_norm to {max(1 - 10 / updates, 0.9):.3g} or less, or train longer",
        )


def check_average(plan: TrainingPlan, *, evaluated: bool) -> Iterable[Finding]:
    """Yield which steps the moving average is of, if it is evaluated.

    The decay rises as `average_decay` says. A constant one of 0.9999 would leave 94 % of an average of 600 steps to the
    first weights, with an average precision of 0.
    """
    decay, steps = plan.optimizer.average_decay, plan.num_steps
    if not evaluated or decay is None or steps < 1 or steps == ENDLESS:
        return
    last = average_decay(decay, steps - 1, plan.optimizer.average_ramp_steps)
    count = min(round(1 / (1 - last)), steps) if last < 1 else steps
    text = f"evaluated is the moving average, mostly of the last {count} of {steps} steps"
    if not plan.optimizer.average_statistics:
        yield Finding("moving_average", "fine", f"{text}; batch normalization has training's own statistics")
    else:
        yield Finding("moving_average", "fine", f"{text}, statistics included")
