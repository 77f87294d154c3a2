"""What a run starts from and what it ends with: frozen weights that are random, and the average that is evaluated."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from boxwright.builders.training import ENDLESS, TrainingPlan
from boxwright.models.detector import Detector
from boxwright.optimization.trainable import Trainable, by_part
from boxwright.preflight.finding import Finding
from boxwright.tensorflow.variables import names_of


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
