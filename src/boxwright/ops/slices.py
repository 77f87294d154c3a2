"""How much of a large computation is done at a time, so that what lies between its input and its result stays small."""

from __future__ import annotations

from math import ceil

import torch

# A computation is done in at most so many slices, so that each tensor in between has at most a tenth of the result.
_MOST_SLICES = 10
# And none is of fewer numbers: a CPU's stay in its caches, a GPU's are worth the launch of their kernels.
_LEAST_ON_CPU, _LEAST_ON_GPU = 1 << 21, 1 << 23


def rows_at_once(rows: int, numbers: int, device: torch.device) -> int:
    """Return how many of some rows, each of so many numbers, are computed at a time; at least 1."""
    if torch.compiler.is_compiling():  # a compiler makes one pass of it, and keeps nothing in between
        return max(rows, 1)
    least = _LEAST_ON_CPU if device.type == "cpu" else _LEAST_ON_GPU
    return max(ceil(rows / _MOST_SLICES), least // max(numbers, 1), 1)
