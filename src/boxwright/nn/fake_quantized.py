"""Values rounded to 8 bits in training and inference, as in TF's graphs for integer hardware."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LEVELS = 255
_DECAY = 0.999


class FakeQuantized(nn.Module):
    """Rounds to the 256 levels of a range that it averages over training batches; the gradient passes within the range.

    As in TF the average is that of the batches seen, without the range that it starts with.
    """

    minimum: Tensor
    maximum: Tensor
    num_batches_tracked: Tensor

    def __init__(self, minimum: float = 0.0, maximum: float = 6.0) -> None:
        """Start with a range, which holds until training sees a batch."""
        super().__init__()
        self.register_buffer("minimum", torch.tensor(minimum))
        self.register_buffer("maximum", torch.tensor(maximum))
        # A number with a fraction, so that a step that is undone takes it back, too.
        self.register_buffer("num_batches_tracked", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the same shape, rounded."""
        if self.training:
            self._average(inputs.detach())
        low, high = self.minimum, self.maximum
        scale = (high - low) / _LEVELS
        # 0 is a level always, so the range moves by a part of one.
        zero = torch.where(scale > 0, torch.floor(-low / scale + 0.5), 0).clamp(0, _LEVELS)
        within = inputs.clamp(-zero * scale, (_LEVELS - zero) * scale)
        rounded = torch.where(scale > 0, torch.floor(within / scale + 0.5) * scale, 0)
        return (within + (rounded - within).detach()).to(inputs.dtype)

    @torch.no_grad()
    def _average(self, inputs: Tensor) -> None:
        before = self.num_batches_tracked
        # The weights of all batches so far, and of those before this one: 1 - 0.999^n.
        total, earlier = 1 - _DECAY ** (before + 1), _DECAY * (1 - _DECAY**before)
        for stored, seen in ((self.minimum, inputs.min().clamp(max=0)), (self.maximum, inputs.max().clamp(min=0))):
            stored.copy_((earlier * stored + (1 - _DECAY) * seen.float()) / total)
        before.add_(1)
