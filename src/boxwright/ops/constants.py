"""Numbers as tensors, without a wait for a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["constants"]


def constants(numbers: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers as a tensor [n], which a GPU writes itself.

    `torch.tensor` would make it of the CPU's memory, and wait until the numbers have left that, behind all that the GPU
    was told before.
    """
    return torch.stack([torch.full((), number, dtype=dtype, device=device) for number in numbers])
