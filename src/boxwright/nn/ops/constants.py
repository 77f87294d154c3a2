"""Numbers as tensors, without synchronizing a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def constants(numbers: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers as a tensor [n], filled on the GPU itself.

    `torch.tensor` would copy from the CPU, and the copy waits for all work queued before.
    """
    return torch.stack([torch.full((), number, dtype=dtype, device=device) for number in numbers])
