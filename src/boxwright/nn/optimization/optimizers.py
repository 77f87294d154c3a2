"""Optimizers with the arithmetic of the Keras optimizers that TF2's object detection uses, and AdamW.

They differ from PyTorch's where it shows: momentum keeps the rate inside the accumulator, Adam adds its epsilon before
the bias correction, RMSProp adds it under the root. Weights may have a learning rate or decay of their own, by name.
Gradients are clipped by the norm of all together, or each by its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from boxwright.base.distributed import gathered, is_sharded, local
from boxwright.nn.optimization.trainable import by_part, matching
from boxwright.nn.optimization.undo import in_parts, undone_unless

# Scales gradients in place, given the norm of all together.
Clip = Callable[[list[Tensor], Tensor], None]


def global_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together, a scalar; of sharded ones, the whole gradients'."""
    if not gradients or any(is_sharded(gradient) for gradient in gradients):
        return gathered(torch.nn.utils.get_total_norm(gradients))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm


def clip_by_global_norm(gradients: list[Tensor], norm: Tensor, limit: float) -> None:
    """Scale gradients in place so that their norm is at most `limit`; 0 for no limit.

    As tf.clip_by_global_norm: no epsilon in the divisor.
    """
    if limit > 0:
        # A norm of 0 gives infinity, clamped to 1.
        torch._foreach_mul_(gradients, (limit / norm).clamp(max=1.0))


def clip_each_by_norm(gradients: list[Tensor], norm: Tensor, limit: float) -> None:
    """Scale each gradient in place so that its own norm is at most `limit`; 0 for no limit.

    As TF1's `slim.learning.clip_gradient_norms`, by tf.clip_by_norm.
    """
    del norm
    if limit <= 0 or not gradients:
        return
    if any(is_sharded(gradient) for gradient in gradients):
        norms = [gathered(torch.linalg.vector_norm(gradient)) for gradient in gradients]
    else:
        norms = list(torch._foreach_norm(gradients))
    # As above, a norm of 0 gives infinity, clamped to 1.
    torch._foreach_mul_(gradients, [(limit / own).clamp(max=1.0) for own in norms])


Tensors = list[Tensor]


class UpdateRule(Protocol):
    """How parameters follow their gradients.

    Attributes:
        slots: Names of what is remembered of each parameter, and what it starts at.
    """

    slots: ClassVar[dict[str, float]]

    def __call__(self, parameters: Tensors, gradients: Tensors, slots: list[Tensors], rate: float, count: int) -> None:
        """Update parameters and slots, in place.

        Args:
            slots: For each name of `slots`, one tensor a parameter.
        """
        ...


@dataclass(frozen=True)
class Parameters:
    """Parameters that are trained alike.

    Attributes:
        factor: Times the learning rate.
        decay: Share of each, times its rate, that a step takes away, in place of what the rule takes; None for that.
    """

    tensors: Tensors
    factor: float = 1.0
    decay: float | None = None


class Optimizer:
    """Applies an update rule to all parameters with gradients, tensor lists at a time.

    With the attributes and the checkpoints of torch.optim's optimizers, but not of their class, whose first call
    imports PyTorch's compiler, a second of each start.

    Attributes:
        param_groups: Parameters that are trained alike, with their rate and the count of their updates.
        state: What is remembered of each parameter, by the rule's names.
    """

    def __init__(self, parameters: Iterable[Tensor] | Iterable[Parameters], rule: UpdateRule) -> None:
        """Set up.

        Args:
            parameters: What to train; the rate is 0 until it is set.
        """
        given = list(parameters)
        alike = [group for group in given if isinstance(group, Parameters)]
        alike = alike or [Parameters([tensor for tensor in given if isinstance(tensor, Tensor)])]
        # The count is in the group, so that a checkpoint has it: Adam's bias corrections go on from there.
        self.param_groups: list[dict[str, Any]] = [{"params": group.tensors, "lr": 0.0, "count": 0} for group in alike]
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self.rule = rule
        # Beside the groups, which a checkpoint replaces: these are the configuration's.
        self._factors = [group.factor for group in alike]
        self._decays = [group.decay for group in alike]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters():
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return groups and slots, with parameters by number."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters())}
        return {
            "state": {numbers[parameter]: slots for parameter, slots in self.state.items()},
            "param_groups": [
                {**group, "params": [numbers[parameter] for parameter in group["params"]]}
                for group in self.param_groups
            ],
        }

    def load_state_dict(self, content: dict[str, Any]) -> None:
        """Take over the rates, counts and slots of an optimizer of as many parameters.

        Those of earlier versions have only the parameters that need a gradient.

        Raises:
            ValueError: If its groups are others.
        """
        stored = [len(group["params"]) for group in content["param_groups"]]
        parameters = [group["params"] for group in self.param_groups]
        if stored != [len(group) for group in parameters]:
            parameters = [[tensor for tensor in group if tensor.requires_grad] for group in parameters]
            parameters = [group for group in parameters if group]
        if stored != [len(group) for group in parameters]:
            own = [len(group["params"]) for group in self.param_groups]
            raise ValueError(f"optimizer: groups of {stored} parameters, not of {own}")
        numbers = [number for group in content["param_groups"] for number in group["params"]]
        state = {
            parameter: {
                name: value.to(parameter) if isinstance(value, Tensor) else value
                for name, value in content["state"][number].items()
            }
            for number, parameter in zip(numbers, chain.from_iterable(parameters), strict=True)
            if number in content["state"]
        }
        for group, loaded in zip(self.param_groups, content["param_groups"], strict=True):
            group.update((name, value) for name, value in loaded.items() if name != "params")
        self.state = state

    def set_rate(self, rate: float) -> None:
        """Set the learning rate, of which each group takes its own multiple."""
        for group, factor in zip(self.param_groups, self._factors, strict=True):
            group["lr"] = rate * factor

    @torch.no_grad()
    def step(self, *, finite: Tensor | None = None) -> None:
        """Update every parameter that has a gradient.

        Updates are counted for all parameters together, as Keras does, whether or not one was frozen for a while.

        Args:
            finite: A bool scalar on the parameters' device: where it is false, parameters and slots stay as they are.
                The update is counted all the same.
        """
        for group, decay in zip(self.param_groups, self._decays, strict=True):
            rule = self.rule if decay is None else _undecayed(self.rule)
            parameters = [p for p in group["params"] if p.grad is not None]
            slots = [self._slot(parameters, name, start) for name, start in self.rule.slots.items()]
            changing = [[local(tensor) for tensor in tensors] for tensors in (parameters, *slots)]
            gradients = [local(p.grad) for p in parameters]
            for part in in_parts(changing[0], len(slots)):
                of_part = [tensors[part] for tensors in changing]
                with undone_unless(finite, [tensor for tensors in of_part for tensor in tensors]):
                    if decay:
                        torch._foreach_mul_(of_part[0], 1 - group["lr"] * decay)
                    rule(of_part[0], gradients[part], of_part[1:], group["lr"], group["count"])
            group["count"] += bool(parameters)

    def _parameters(self) -> Tensors:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _slot(self, parameters: Tensors, name: str, start: float) -> Tensors:
        for parameter in parameters:
            slots = self.state.setdefault(parameter, {})
            if name not in slots:
                slots[name] = torch.full_like(parameter, start)
        return [self.state[parameter][name] for parameter in parameters]


def _undecayed(rule: UpdateRule) -> UpdateRule:
    return replace(rule, weight_decay=0.0) if isinstance(rule, AdamW) else rule


@dataclass(frozen=True)
class Momentum:
    """v ← m·v + lr·g; p ← p − v."""

    momentum: float = 0.9
    slots: ClassVar[dict[str, float]] = {"momentum": 0.0}

    def __call__(self, parameters: Tensors, gradients: Tensors, slots: list[Tensors], rate: float, count: int) -> None:
        """Update, as `UpdateRule` says."""
        (velocity,) = slots
        torch._foreach_mul_(velocity, self.momentum)
        torch._foreach_add_(velocity, gradients, alpha=rate)
        torch._foreach_sub_(parameters, velocity)


@dataclass(frozen=True)
class MomentumTF1:
    """v ← m·v + g; p ← p − lr·v: TF1's, whose rate is not in the accumulator."""

    momentum: float = 0.9
    slots: ClassVar[dict[str, float]] = {"momentum": 0.0}

    def __call__(self, parameters: Tensors, gradients: Tensors, slots: list[Tensors], rate: float, count: int) -> None:
        """Update, as `UpdateRule` says."""
        (velocity,) = slots
        torch._foreach_mul_(velocity, self.momentum)
        torch._foreach_add_(velocity, gradients)
        torch._foreach_sub_(parameters, velocity, alpha=rate)


@dataclass(frozen=True)
class RMSProp:
    """s ← 0.9·s + 0.1·g²; v ← m·v + lr·g/√(s + ε); p ← p − v: Keras's, as TF2's object detection sets it up."""

    momentum: float = 0.9
    epsilon: float = 1.0
    slots: ClassVar[dict[str, float]] = {"squares": 0.0, "momentum": 0.0}

    def __call__(self, parameters: Tensors, gradients: Tensors, slots: list[Tensors], rate: float, count: int) -> None:
        """Update, as `UpdateRule` says.

        Args:
            slots: The averages of squares, and the accumulators.
        """
        _rms_prop(parameters, gradients, slots, rate, 0.9, self.momentum, self.epsilon)


@dataclass(frozen=True)
class RMSPropTF1:
    """s ← d·s + (1−d)·g²; v ← m·v + lr·g/√(s + ε); p ← p − v, where s starts at 1: TF1's."""

    momentum: float = 0.9
    decay: float = 0.9
    epsilon: float = 1.0
    slots: ClassVar[dict[str, float]] = {"squares": 1.0, "momentum": 0.0}

    def __call__(self, parameters: Tensors, gradients: Tensors, slots: list[Tensors], rate: float, count: int) -> None:
        """Update, as `UpdateRule` says.

        Args:
            slots: The averages of squares, and the accumulators.
        """
        _rms_prop(parameters, gradients, slots, rate, self.decay, self.momentum, self.epsilon)


def _rms_prop(
    parameters: Tensors,
    gradients: Tensors,
    slots: list[Tensors],
    rate: float,
    decay: float,
    momentum: float,
    epsilon: float,
) -> None:
    squares, velocity = slots
    torch._foreach_mul_(squares, decay)
    torch._foreach_addcmul_(squares, gradients, gradients, value=1 - decay)
    divisor = torch._foreach_add(squares, epsilon)
    torch._foreach_sqrt_(divisor)
    torch._foreach_mul_(velocity, momentum)
    torch._foreach_addcdiv_(velocity, gradients, divisor, value=rate)
    torch._foreach_sub_(parameters, velocity)


@dataclass(frozen=True)
class Adam:
    """m ← β₁·m + (1−β₁)·g; v ← β₂·v + (1−β₂)·g²; p ← p − lr·√(1−β₂ᵗ)/(1−β₁ᵗ)·m/(√v + ε).

    β₁ is 0.9 and β₂ 0.999, as the configuration has no field for them; ε stands outside the bias
    correction.
    """

    epsilon: float = 1e-8
    slots: ClassVar[dict[str, float]] = {"mean": 0.0, "squares": 0.0}

    def __call__(self, parameters: Tensors, gradients: Tensors, slots: list[Tensors], rate: float, count: int) -> None:
        """Update, as `UpdateRule` says.

        Args:
            slots: The averages of gradients and of squares.
        """
        mean, squares = slots
        torch._foreach_lerp_(mean, gradients, 0.1)
        torch._foreach_mul_(squares, 0.999)
        torch._foreach_addcmul_(squares, gradients, gradients, value=0.001)
        divisor = torch._foreach_sqrt(squares)
        torch._foreach_add_(divisor, self.epsilon)
        # One factor for all weights: Keras corrects the rate, and so leaves epsilon outside of the correction.
        corrected = rate * (1 - 0.999 ** (count + 1)) ** 0.5 / (1 - 0.9 ** (count + 1))
        torch._foreach_addcdiv_(parameters, mean, divisor, value=-corrected)


@dataclass(frozen=True)
class AdamW:
    """m ← β₁·m + (1−β₁)·g; v ← β₂·v + (1−β₂)·g²; p ← (1 − lr·w)·p − lr·m̂/(√v̂ + ε).

    Adam with decoupled weight decay (Loshchilov and Hutter, 2019, algorithm 2). Kernels decay; biases
    and the gains of normalization, which have one dimension, do not.
    """

    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    slots: ClassVar[dict[str, float]] = {"mean": 0.0, "squares": 0.0}

    def __call__(self, parameters: Tensors, gradients: Tensors, slots: list[Tensors], rate: float, count: int) -> None:
        """Update, as `UpdateRule` says.

        Args:
            slots: The averages of gradients and of squares.
        """
        mean, squares = slots
        # Decay before the update, and by the rate of this step: decoupled from the gradient's averages.
        kernels = [p for p in parameters if p.ndim > 1]
        if kernels:
            torch._foreach_mul_(kernels, 1 - rate * self.weight_decay)
        torch._foreach_lerp_(mean, gradients, 1 - self.beta1)
        torch._foreach_mul_(squares, self.beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - self.beta2)
        divisor = torch._foreach_div(squares, 1 - self.beta2 ** (count + 1))
        torch._foreach_sqrt_(divisor)
        torch._foreach_add_(divisor, self.epsilon)
        torch._foreach_addcdiv_(parameters, mean, divisor, value=-rate / (1 - self.beta1 ** (count + 1)))


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
    """Divide the weights into those that are trained alike, where they are trained; also return a log line for each.

    Args:
        network: Its weights that need no gradient are among them, as they may need one later.
        groups: Where two name a weight, the later counts.
        names: All names of each weight that patterns may match, its own first.

    Raises:
        ConfigError: If a pattern matches nothing.
    """
    weights = dict(network.named_parameters())
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
    parameter_groups = [Parameters(list(some.values()), factor, decay) for (factor, decay), some in alike.items()]
    lines = [_said(factor, decay, list(some)) for (factor, decay), some in alike.items()]
    return parameter_groups, lines if groups else []


def _said(factor: float, decay: float | None, names: list[str]) -> str:
    rate = "the learning rate" if factor == 1 else f"{factor:g} of the learning rate"
    decays = "the optimizer's decay" if decay is None else f"a decay of {decay:g}"
    return f"parameter group: {len(names)} variables ({by_part(names)}) at {rate}, with {decays}"
