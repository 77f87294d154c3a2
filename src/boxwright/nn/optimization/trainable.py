"""Trainable weights: TF's `update_trainable_variables` and `freeze_variables`, and freezing in stages."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import regex
from torch import Tensor, nn

from boxwright.base.errors import ConfigError
from boxwright.base.limits import PATTERN_SECONDS

_LONGEST = 100


@dataclass(frozen=True)
class FreezeStage:
    """Weights that are frozen up to a step.

    Attributes:
        until_step: The step from which they are trained.
    """

    until_step: int
    patterns: tuple[str, ...]


@dataclass(frozen=True)
class Freezing:
    """Which weights are trained. Patterns match anywhere in a name, as in TF's Estimator (`re.search`).

    Attributes:
        update: Patterns of the only weights to train; none for all.
        freeze: Patterns of weights not to train; they override `update`.
    """

    update: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    stages: tuple[FreezeStage, ...] = ()


class Trainable:
    """The weights of a network, and which of them a configuration trains at a step.

    It decides where training begins and, stage by stage, of the stage's own weights. In between `requires_grad` is the
    caller's, as anywhere in PyTorch.
    """

    def __init__(self, network: nn.Module, freezing: Freezing, names: Mapping[str, tuple[str, ...]]) -> None:
        """Match the patterns.

        Args:
            network: The network; parameters frozen by its layers, or by the caller, stay frozen.
            names: All names of each parameter that patterns may match, its own first.

        Raises:
            ConfigError: If a pattern matches nothing, or leaves nothing to train.
        """
        self._all = dict(network.named_parameters())
        self._parameters = {name: p for name, p in self._all.items() if p.requires_grad}
        shapes = {name: p.ndim for name, p in network.named_parameters()}
        self._biases = [
            name
            for name in self._parameters
            # Normalization's biases have weights of one dimension.
            if name.endswith(".bias") and shapes.get(f"{name.removesuffix('bias')}weight", 1) > 1
        ]
        # A detector that was trained before may be frozen already, as the patterns say.
        self._names = {name: names[name] for name in self._all}
        update = matching(freezing.update, self._names, "train_config.update_trainable_variables")
        frozen = matching(freezing.freeze, self._names, "train_config.freeze_variables")
        self._learn = (update & set(self._parameters) if freezing.update else set(self._parameters)) - frozen
        self._stages = [
            (stage.until_step, matching(stage.patterns, self._names, f"train_config.freeze_stage[{number}].variables"))
            for number, stage in enumerate(freezing.stages)
        ]
        if not self._learn:
            raise ConfigError("train_config.freeze_variables: nothing is left to train")

    def at(self, step: int) -> frozenset[str]:
        """Return the names of the weights trained at a step; raises a ConfigError if there are none."""
        waiting: set[str] = set()
        for until, names in self._stages:
            waiting |= names if step < until else set()
        learning = frozenset(self._learn - waiting)
        if not learning:
            raise ConfigError(f"train_config.freeze_stage: nothing learns at step {step}")
        return learning

    def rebound(self, network: nn.Module) -> Trainable:
        """Return the same decisions for a network whose weights are other tensors of the same names."""
        other = copy.copy(self)
        other._all = dict(network.named_parameters())
        other._parameters = {name: other._all[name] for name in self._parameters}
        return other

    def begin(self, step: int) -> None:
        """Set `requires_grad` of all weights as the configuration says for the step at which training begins."""
        learning = self.at(step)
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name in learning)

    def advance(self, step: int) -> None:
        """Set `requires_grad` of the weights that the configuration begins to train at a step."""
        if step in self.changes():
            for name in self.at(step) - self.at(step - 1) if step else ():
                self._parameters[name].requires_grad_()

    def learning(self) -> frozenset[str]:
        """Return the names of the weights that learn now."""
        return frozenset(name for name, parameter in self._all.items() if parameter.requires_grad)

    def changed(self, step: int) -> int:
        """Return how many weights learn, or do not, against the configuration."""
        return len(self.learning() ^ self.at(step))

    def bias_gradients(self) -> list[Tensor]:
        """Return the gradients of the trained convolutions' biases, without normalization's, as in TF."""
        gradients = (self._parameters[name].grad for name in self._biases)
        return [gradient for gradient in gradients if gradient is not None]

    def report(self, step: int) -> str:
        """Return a log line about frozen weights; empty if all weights are always trained."""
        learning = self.at(step)
        if len(learning) == len(self._parameters):
            return ""
        count = sum(self._parameters[name].numel() for name in learning)
        total = sum(p.numel() for p in self._parameters.values())
        parts = by_part(name for name in self._parameters if name not in learning)
        return (
            f"frozen: {len(self._parameters) - len(learning)} of {len(self._parameters)} variables ({parts}); "
            f"{count:,} of {total:,} weights learn"
        )

    def changes(self) -> list[int]:
        """Return the steps at which more weights start to be trained."""
        return sorted({until for until, _ in self._stages})


def matching(patterns: Iterable[str], names: Mapping[str, tuple[str, ...]], path: str) -> set[str]:
    """Return the weights, by our names, of which a pattern matches a name anywhere in it, as `re.search` does.

    Args:
        names: All names of each weight, its own first.
        path: The patterns' field, for errors.

    Raises:
        ConfigError: If a pattern matches nothing, is none, or takes too long.
    """
    matched: set[str] = set()
    for pattern in patterns:
        matches = _compiled(pattern, path)
        hits = {ours for ours, own in names.items() if any(matches(name) for name in own)}
        if not hits:
            ours, own = next(iter(names.items()))
            tf = f" or TensorFlow's such as {own[1]!r}" if len(own) > 1 else ""
            raise ConfigError(
                f"{path}: {pattern!r} hits none of the {len(names)} variables; names are ours, such as {ours!r}{tf}"
            )
        matched |= hits
    return matched


def _compiled(pattern: str, path: str) -> Callable[[str], bool]:
    """Return a search function for a pattern, with a time limit: some patterns would take years."""
    try:
        # The `regex` package, which can stop a search after a time; `re` cannot.
        compiled = regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError, MemoryError) as error:
        shown = pattern if len(pattern) <= _LONGEST else f"{pattern[:_LONGEST]}…"
        raise ConfigError(f"{path}: {shown!r} is not a regular expression: {error}") from None
    limit = PATTERN_SECONDS.value
    until = time.monotonic() + limit

    def search(name: str) -> bool:
        try:
            return compiled.search(name, timeout=max(until - time.monotonic(), 0.001)) is not None
        except TimeoutError:
            raise ConfigError(
                f"{path}: {pattern[:_LONGEST]!r} takes more than {limit} s to match (nested repetitions); "
                f"simplify it ({PATTERN_SECONDS.variable} sets another limit)"
            ) from None

    return search


def by_part(names: Iterable[str]) -> str:
    """Return how many of some variables each part of the network has, in words."""
    counts: dict[str, int] = {}
    for name in names:
        part = name.split(".")[0]
        counts[part] = counts.get(part, 0) + 1
    return ", ".join(f"{part} {count}" for part, count in counts.items())
