"""Numbers as tensors, without a wait for a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def constants(numbers: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers as a tensor [n], which a GPU writes itself.

    `torch.tensor` would fill memory of the CPU and copy it, and the copy waits for all work that was queued before.
    """
    return torch.stack([torch.full((), number, dtype=dtype, device=device) for number in numbers])
