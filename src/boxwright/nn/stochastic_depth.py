"""Stochastic depth (Huang et al., 2016): training skips a block for some images, and scales up its other outputs.

With torchvision's draws, so that a seed gives the same; torchvision's own layer takes seconds to import.
"""

from __future__ import annotations

from torch import Tensor, nn


class StochasticDepth(nn.Module):
    """Drops the rows of a batch at random in training."""

    def __init__(self, rate: float) -> None:
        """Store the share of images for which a block is skipped, in [0, 1)."""
        super().__init__()
        self.rate = rate

    def forward(self, outputs: Tensor) -> Tensor:
        """Return a block's outputs [B, …], without its shortcut; 0 for images that skip it."""
        if not self.training or self.rate == 0:
            return outputs
        kept = outputs.new_empty([outputs.shape[0]] + [1] * (outputs.ndim - 1)).bernoulli_(1 - self.rate)
        return outputs * kept.div_(1 - self.rate)

    def extra_repr(self) -> str:
        """Return the rate, for printing."""
        return f"rate={self.rate:g}"
