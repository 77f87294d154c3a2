"""Moving averages of weights: TF2's object detection's, and those of DETRs whose decay rises exponentially."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from boxwright.base.distributed import local
from boxwright.nn.optimization.undo import in_parts, undone_unless


def average_decay(most: float, count: int, ramp_steps: int = 0) -> float:
    """Return the decay of the update after `count` others, which is update n = count + 1.

    Args:
        most: What the decay rises to.
        ramp_steps: The decay is most · (1 − e^(−n / ramp_steps)), and 0 at the first update, which copies the weights;
            0 for TF's, the smaller of `most` and (1 + n) / (10 + n).
    """
    if not ramp_steps:
        return min(most, (2 + count) / (11 + count))
    return -most * math.expm1(-(count + 1) / ramp_steps) if count else 0.0


class MovingAverage:
    """Moving averages of weights: s ← dₙ·s + (1 − dₙ)·p after update n = 1, 2, ….

    dₙ is that of `average_decay`, so that early weights fade quickly, and s starts at 0, as in TF2's object detection.
    Statistics of normalization are averaged only where they are named; TF's are not.

    Attributes:
        decay: What dₙ rises to.
        ramp_steps: As in `average_decay`.
        shadow: The averages by name: of all weights, and of the statistics that were named.
        statistics: The names of those.
    """

    def __init__(
        self, network: nn.Module, decay: float, statistics: Iterable[str] = (), *, ramp_steps: int = 0
    ) -> None:
        """Initialize the averages: of weights with 0, of statistics with what they are.

        Args:
            decay: What dₙ rises to.
            statistics: The names of buffers that are averaged too.
            ramp_steps: As in `average_decay`.
        """
        self.decay, self.ramp_steps, self.statistics = decay, ramp_steps, tuple(statistics)
        self._most = decay
        # By parameter: `named_parameters` lists a shared weight once, and has no statistics of normalization.
        self.shadow = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
        # A buffer that never changes keeps its value to the bit.
        self.shadow |= {name: network.get_buffer(name).clone() for name in self.statistics}

    def decay_after(self, count: int) -> float:
        """Return the decay of the update after `count` others."""
        return average_decay(self._most, count, self.ramp_steps)

    def shorten(self, divisor: int) -> None:
        """Divide the window of the given decay, 1 / (1 - decay) updates, by a number from now on."""
        self._most = max(1 - (1 - self.decay) * divisor, 0.0) if divisor > 1 else self.decay

    @torch.no_grad()
    def update(self, network: nn.Module, count: int, *, finite: Tensor | None = None) -> None:
        """Update the averages after an optimizer step.

        Args:
            finite: A bool scalar on the weights' device; if false, the averages are unchanged.
        """
        weights, decay = self.followed(network), self.decay_after(count)
        averages = [local(average) for average in self.shadow.values()]
        followed = [local(weights[name]) for name in self.shadow]
        for part in in_parts(averages, 0):
            with undone_unless(finite, averages[part]):
                torch._foreach_lerp_(averages[part], followed[part], 1 - decay)

    def followed(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the network's own tensors whose averages are kept, by name."""
        parameters: dict[str, Tensor] = {name: value.detach() for name, value in network.named_parameters()}
        return parameters | {name: network.get_buffer(name) for name in self.statistics}

    def load(self, shadow: dict[str, Tensor]) -> None:
        """Load stored averages.

        Raises:
            ValueError: If one has another shape.
        """
        for name, value in self.shadow.items():
            if shadow[name].shape != value.shape:
                raise ValueError(f"average of {name}: shape {list(shadow[name].shape)}, not {list(value.shape)}")
            value.copy_(shadow[name])
