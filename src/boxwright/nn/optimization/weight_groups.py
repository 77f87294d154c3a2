"""Weights with a learning rate or decay of their own, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from boxwright.nn.optimization.optimizers import Parameters
from boxwright.nn.optimization.trainable import by_part, matching


@dataclass(frozen=True)
class WeightGroup:
    """Weights whose names match a pattern anywhere in them.

    Attributes:
        factor: Times the learning rate; None for what earlier groups say.
        decay: As in `Parameters`; None for what earlier groups say.
    """

    patterns: tuple[str, ...]
    factor: float | None = None
    decay: float | None = None


def grouped(
    network: nn.Module, groups: Sequence[WeightGroup], names: Mapping[str, tuple[str, ...]]
) -> tuple[list[Parameters], list[str]]:
    """Divide the weights that are trained into those that are trained alike; also return a log line for each.

    Args:
        network: Its weights that need no gradient are left out.
        groups: Where two name a weight, the later counts.
        names: All names of each weight that patterns may match, its own first.

    Raises:
        ConfigError: If a pattern matches nothing.
    """
    weights = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    own: dict[str, tuple[float, float | None]] = dict.fromkeys(weights, (1.0, None))
    known = {name: names.get(name, (name,)) for name in weights}
    for number, group in enumerate(groups):
        path = f"train_config.optimizer.parameter_group[{number}].variables"
        for name in matching(group.patterns, known, path):
            factor, decay = own[name]
            own[name] = (
                factor if group.factor is None else group.factor,
                decay if group.decay is None else group.decay,
            )
    alike: dict[tuple[float, float | None], dict[str, Tensor]] = {}
    for name, weight in weights.items():
        alike.setdefault(own[name], {})[name] = weight
    found = [Parameters(list(some.values()), factor, decay) for (factor, decay), some in alike.items()]
    return found, [_said(factor, decay, list(some)) for (factor, decay), some in alike.items()] if groups else []


def _said(factor: float, decay: float | None, names: list[str]) -> str:
    rate = "the learning rate" if factor == 1 else f"{factor:g} of the learning rate"
    decays = "the optimizer's decay" if decay is None else f"a decay of {decay:g}"
    return f"parameter group: {len(names)} variables ({by_part(names)}) at {rate}, with {decays}"
