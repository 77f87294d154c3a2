"""What a step changes, kept on the device, so that the step can be undone after the next has begun."""

from __future__ import annotations

import torch
from torch import Tensor

from boxwright.training.state import TrainingState

__all__ = ["Snapshot"]


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
            statistics: Those before that pass, in the order of the network's buffers.
        """
        weights = [one for group in state.optimizer.param_groups for one in group["params"] if one.grad is not None]
        slots = state.optimizer.state
        self._without_slots = [one for one in weights if not slots.get(one)]
        changing = [*weights, *(value for one in weights for value in slots.get(one, {}).values())]
        if state.average is not None:
            changing += state.average.shadow.values()
        self._places = [*changing, *state.detector.network.buffers()]
        values = [*changing, *statistics]
        if [value.shape for value in values] == [value.shape for value in self._values]:
            torch._foreach_copy_(self._values, values)
        else:
            self._values = [value.clone() for value in values]
        self._count = state.optimizer.param_groups[0]["count"]
        self._step, self._samples = state.step, state.samples

    @torch.no_grad()
    def restore(self, state: TrainingState) -> None:
        """Bring a state back to what it was when it was taken."""
        torch._foreach_copy_(self._places, self._values)
        for one in self._without_slots:
            state.optimizer.state.pop(one, None)
        for group in state.optimizer.param_groups:
            group["count"] = self._count
        state.step, state.samples = self._step, self._samples
