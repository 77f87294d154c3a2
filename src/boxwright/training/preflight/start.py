"""What a run starts from and what it ends with: frozen weights that are random, and the average that is evaluated.

The check of the weights that a run starts from.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from boxwright.base.errors import BoxwrightError, first_line
from boxwright.nn.detector import Detector
from boxwright.nn.initial_statistics import normalized_layers, shares_of_layers
from boxwright.nn.optimization.trainable import Trainable, by_part
from boxwright.pipeline.training import ENDLESS, TrainingPlan
from boxwright.training.preflight.finding import Finding
from boxwright.types.scopes import ChannelOrder, Scope
from boxwright.weights.find_weights import find_weights
from boxwright.weights.load_weights import LoadReport, load_weights
from boxwright.weights.tensorflow.variables import names_of

_LITTLE = 0.5


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
    if share < _LITTLE:
        return Finding("checkpoint", "warning", text, "is it a checkpoint of this network?")
    return Finding("checkpoint", "fine", text)


# Statistics may be averaged over at most this share of a run's updates.
_MOST_OF_A_RUN = 0.4


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
    learning = Trainable(network, plan.freezing, names_of(network)).at(plan.num_steps - 1)
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
    slow = {decay: count for decay, count in decays.items() if 1 / (1 - decay) > updates * _MOST_OF_A_RUN}
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

    The decay is at most (1 + n) / (10 + n) after n steps. A constant one of 0.9999 would leave 94 % of an average of
    600 steps to the first weights, with an average precision of 0.
    """
    decay, steps = plan.optimizer.average_decay, plan.num_steps
    if not evaluated or decay is None or steps < 1 or steps == ENDLESS:
        return
    last = min(decay, (1 + steps) / (10 + steps))
    count = min(round(1 / (1 - last)), steps) if last < 1 else steps
    text = f"evaluated is the moving average, mostly of the last {count} of {steps} steps"
    if not plan.optimizer.average_statistics:
        yield Finding("moving_average", "fine", f"{text}; batch normalization has training's own statistics")
    else:
        yield Finding("moving_average", "fine", f"{text}, statistics included")
