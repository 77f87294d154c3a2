"""Blocks and paths that training leaves out at random: stochastic depth and ScheduledDropPath.

Stochastic depth (Huang et al., 2016) skips a block for some images, and scales up its other outputs. It draws as
torchvision's does, so that a seed gives the same; torchvision's own layer takes seconds to import. ScheduledDropPath
(Zoph et al., 2018, section 3.1) leaves out paths of a cell, more often as training lasts.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

import torch
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


class DropPath(nn.Module):
    """Zeroes whole examples of a batch in training, and scales the others so that the expected value stays.

    The share that is dropped grows linearly with the steps taken; `set_step` sets it.
    """

    share: Tensor

    def __init__(self, most: float, steps: int) -> None:
        """Start with nothing dropped.

        Args:
            most: The share that is dropped from step `steps` on.
        """
        super().__init__()
        self.most, self.steps = most, steps
        # A tensor, as a captured step must read a value that changes; not stored, as it follows from the step.
        self.register_buffer("share", torch.zeros(()), persistent=False)

    def set_step(self, step: int) -> None:
        """Set the share from the number of steps taken."""
        self.share.fill_(self.most * min(1.0, step / self.steps))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C, H, W]; in evaluation the input itself."""
        if not self.training:
            return inputs
        kept = torch.rand(len(inputs), 1, 1, 1, device=inputs.device) >= self.share
        return inputs * (kept / (1 - self.share)).to(inputs.dtype)


def drop_paths(network: nn.Module) -> list[DropPath]:
    """Return the parts of a network whose share of drops follows the step."""
    return [module for module in network.modules() if isinstance(module, DropPath)]
