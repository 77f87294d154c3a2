"""3×3 convolutions of random numbers, for comparing other ways of computing them with PyTorch's."""

from __future__ import annotations

import torch
from torch import Tensor

# Heights and widths that fill tiles of 4×4 outputs, and that do not.
SIZES = [(1, 1), (1, 9), (3, 4), (4, 4), (5, 7), (6, 6), (8, 4), (19, 19), (20, 33), (38, 40)]


def random_convolution(
    height: int, width: int, *, batch: int = 2, ins: int = 5, outs: int = 7
) -> tuple[Tensor, Tensor, Tensor]:
    """Return maps, with channels last in memory, a kernel and a bias."""
    generator = torch.Generator().manual_seed(height * 100 + width)
    maps = torch.randn(batch, ins, height, width, generator=generator).to(memory_format=torch.channels_last)
    kernel = torch.randn(outs, ins, 3, 3, generator=generator) / (9 * ins) ** 0.5
    return maps, kernel, torch.randn(outs, generator=generator)


def relative_error(ours: Tensor, exact: Tensor) -> float:
    """Return the largest error, as a share of the largest number; the shapes have to be equal."""
    assert ours.shape == exact.shape
    return float((ours.double() - exact).abs().max() / exact.abs().max()) if ours.numel() else 0.0
