"""What a step changes, kept on the device, so that the step can be undone after the next has begun."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from boxwright.training.sharding import local
from boxwright.training.state import TrainingState

__all__ = ["Snapshot", "copied_into", "copy_all"]


def copied_into(memory: list[Tensor], values: list[Tensor]) -> list[Tensor]:
    """Return copies of values, in the memory of earlier ones where that fits."""
    if not values or [one.shape for one in values] != [one.shape for one in memory]:
        return [value.clone() for value in values]
    copy_all(memory, values)
    return memory


def copy_all(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy many tensors into others; those of one type by one call, which a GPU does in a few launches.

    A list of several types is copied tensor by tensor.
    """
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for place, value in zip(places, values, strict=True):
        into, of = by_type.setdefault(place.dtype, ([], []))
        into.append(place)
        of.append(value)
    for into, of in by_type.values():
        torch._foreach_copy_(into, of)


class Snapshot:
    """A state as it was before a step; its memory is kept from step to step."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._places: list[Tensor] = []
        self._values: list[Tensor] = []
        self._without_slots: list[Tensor] = []
        self._count = self._step = self._samples = 0

    @torch.no_grad()
    def take(self, state: TrainingState, statistics: list[Tensor]) -> None:
        """Keep what an update is about to change.

        Args:
            state: The state; the step's forward pass has changed its statistics.
            statistics: Those before that pass, in the order of `Network.statistics`.
        """
        weights = [one for group in state.optimizer.param_groups for one in group["params"] if one.grad is not None]
        slots = state.optimizer.state
        self._without_slots = [one for one in weights if not slots.get(one)]
        changing = [*weights, *(value for one in weights for value in slots.get(one, {}).values())]
        if state.average is not None:
            changing += state.average.shadow.values()
        changing = [local(one) for one in changing]
        self._places = [*changing, *state.detector.network.statistics()]
        self._values = copied_into(self._values, [*changing, *statistics])
        self._count = state.optimizer.param_groups[0]["count"]
        self._step, self._samples = state.step, state.samples

    @torch.no_grad()
    def restore(self, state: TrainingState) -> None:
        """Bring a state back to what it was when it was taken."""
        copy_all(self._places, self._values)
        for one in self._without_slots:
            state.optimizer.state.pop(one, None)
        for group in state.optimizer.param_groups:
            group["count"] = self._count
        state.step, state.samples = self._step, self._samples
