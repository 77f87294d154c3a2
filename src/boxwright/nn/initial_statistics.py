"""Moving statistics of batch normalization without the values that they began with.

A moving average that began at s is, after n updates with decay d, dⁿ·s + (1 − dⁿ)·a, where a averages what the updates
brought. Statistics begin with mean 0 and variance 1. After a short run they still hold a share dⁿ of that, which is far
from the statistics of any layer; Adam's averages have such a start too, taken out in the same way (Kingma and Ba, 2015,
section 3). Training never reads the statistics, so that only their use changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from boxwright.base.device import in_float64

if TYPE_CHECKING:
    from boxwright.nn.network import Network

_MEAN, _VARIANCE = _KINDS = ("running_mean", "running_var")
# Beside so large a share nothing but rounding is left.
_MOST = 1 - 1e-7


@dataclass(frozen=True)
class StatisticsGroup:
    """Layers whose statistics have equal shares of their initial values, now and later.

    Attributes:
        layers: Their names in the network.
        decay: What a training pass leaves of the share; 1 for frozen layers.
        share: In [0, 1], of the initial values in the statistics.
        average_share: The same in the moving average of the statistics, where one is kept.
    """

    layers: tuple[str, ...]
    decay: float
    share: float
    average_share: float


@dataclass(frozen=True)
class InitialShares:
    """The shares of initial values that statistics still hold: a number on the CPU for all layers updated together.

    Layers that are in no group got their statistics with weights, and hold none.
    """

    groups: tuple[StatisticsGroup, ...] = ()

    def after(self, passes: int, average_decay: float | None = None) -> InitialShares:
        """Return the shares after so many more training passes of the network.

        Args:
            average_decay: The decay of the moving average that is updated after them; None where none is.
        """
        return InitialShares(tuple(_after(group, passes, average_decay) for group in self.groups))

    def by_layer(self) -> dict[str, float]:
        """Return the shares by the names of layers."""
        return {layer: group.share for group in self.groups for layer in group.layers}

    def without(self, tensors: Collection[str]) -> InitialShares:
        """Return the shares after tensors of these names were loaded: their layers hold none any more."""
        groups = []
        for group in self.groups:
            layers = tuple(layer for layer in group.layers if f"{layer}.{_VARIANCE}" not in tensors)
            groups += [replace(group, layers=layers)] if layers else []
        return InitialShares(tuple(groups))

    def of_average(self) -> InitialShares:
        """Return the shares for a network that has the averages in place of its statistics."""
        return InitialShares(tuple(replace(group, share=group.average_share) for group in self.groups))

    def __bool__(self) -> bool:
        """Return whether any layer began with the initial values."""
        return bool(self.groups)


def _after(group: StatisticsGroup, passes: int, average_decay: float | None) -> StatisticsGroup:
    share, average_share = group.share * group.decay**passes, group.average_share
    if average_decay is not None:
        average_share = average_decay * average_share + (1 - average_decay) * share
    return replace(group, share=share, average_share=average_share)


def shares_of_new(network: Network) -> InitialShares:
    """Return shares of 1 for the layers whose statistics are the initial ones; others came with weights."""
    shares = {name: 1.0 for name, norm in _norms(network) if _is_initial(norm)}
    return shares_of_layers(network, shares, shares)


def shares_of_layers(network: Network, shares: Mapping[str, float], averages: Mapping[str, float]) -> InitialShares:
    """Return the shares that a checkpoint names, for a network in training.

    Args:
        shares: By the names of layers.
        averages: Those of the statistics' moving average; one that a layer lacks begins with the layer's statistics.
    """
    frozen = {
        f"{part}{'.' if part else ''}{name}"
        for part in network.frozen_statistics
        for name, _ in network.get_submodule(part).named_modules()
    }
    layers: dict[tuple[float, float, float], list[str]] = {}
    for name, norm in _norms(network):
        if name in shares:
            decay = 1.0 if name in frozen else statistics_decay(norm) ** calls_per_pass(network, name)
            layers.setdefault((decay, shares[name], averages.get(name, shares[name])), []).append(name)
    return InitialShares(tuple(StatisticsGroup(tuple(names), *key) for key, names in layers.items()))


def calls_per_pass(network: nn.Module, name: str) -> int:
    """Return how often a training pass calls a layer: a module that is called several times has `calls_per_pass`."""
    calls, module = 1, network
    for part in name.split("."):
        module = module.get_submodule(part)
        calls *= getattr(module, "calls_per_pass", 1)
    return calls


def without_initial(tensors: Mapping[str, Tensor], shares: Mapping[str, float]) -> dict[str, Tensor]:
    """Return the statistics among some tensors, by name, without the share of their initial values.

    Statistics that never saw a batch are left out: they consist of nothing else. So are those of layers whose variance
    shows that they hold less, as where a network calls a layer more often than it says; a warning names the first.

    Args:
        tensors: Of a network, by name.
        shares: By the names of layers.
    """
    changed: dict[str, Tensor] = {}
    impossible = impossible_shares(tensors, shares)
    if impossible:
        warnings.warn(
            f"batch normalization of {impossible[0]} holds less of mean 0 and variance 1 than was counted, and is used "
            "as it is; a module that a pass calls several times needs calls_per_pass",
            stacklevel=3,
        )
    for layer, share in shares.items():
        mean, variance = f"{layer}.{_MEAN}", f"{layer}.{_VARIANCE}"
        if layer not in impossible and share <= _MOST and mean in tensors and variance in tensors:
            # In float64: of a variance of 6e-4 beside a share of 0.9, float32 would keep three digits.
            changed[mean] = (in_float64(tensors[mean]) / (1 - share)).to(tensors[mean])
            rest = (in_float64(tensors[variance]) - share).clamp(min=0)
            changed[variance] = (rest / (1 - share)).to(tensors[variance])
    return changed


@torch.no_grad()
def take_out_initial(network: Network) -> None:
    """Take the initial values out of a network's statistics, for good: they then are as if they came with weights.

    Nothing changes in a network that does not debias.
    """
    if not network.debiases:
        return
    network.load_state_dict(without_initial(network.state_dict(), network.initial_shares.by_layer()), strict=False)
    network.initial_shares = InitialShares()


@contextmanager
def initial_taken_out(network: Network) -> Iterator[None]:
    """Let a network in training be used: its statistics are without their initial values until the end."""
    shares, layers = network.initial_shares, network.initial_shares.by_layer()
    kept = {f"{layer}.{kind}": network.get_buffer(f"{layer}.{kind}").clone() for layer in layers for kind in _KINDS}
    try:
        take_out_initial(network)
        yield
    finally:
        with torch.no_grad():
            network.load_state_dict(kept, strict=False)
        network.initial_shares = shares


def impossible_shares(tensors: Mapping[str, Tensor], shares: Mapping[str, float]) -> list[str]:
    """Return the layers whose variance is below its share of the initial 1, so that the share is another one."""
    layers = []
    for layer, share in shares.items():
        variance = tensors.get(f"{layer}.{_VARIANCE}")
        # A batch's variance is at least 0; the rest is for rounding.
        if variance is not None and bool((variance < share * (1 - 1e-3)).any()):
            layers.append(layer)
    return layers


def normalized_layers(network: nn.Module) -> list[str]:
    """Return the names of the layers that keep statistics."""
    return [name for name, _ in _norms(network)]


def statistics_decay(norm: nn.BatchNorm2d) -> float:
    """Return what an update leaves of the statistics; 0 for a cumulative average, whose first update replaces them."""
    return 0.0 if norm.momentum is None else 1 - norm.momentum


def _norms(network: nn.Module) -> Iterator[tuple[str, nn.BatchNorm2d]]:
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_var is not None:
            yield name, module


def _is_initial(norm: nn.BatchNorm2d) -> bool:
    mean, variance = norm.running_mean, norm.running_var
    return mean is not None and variance is not None and bool((mean == 0).all() and (variance == 1).all())
