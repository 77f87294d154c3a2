"""Slicing of large computations, which bounds the size of intermediate tensors."""

from __future__ import annotations

from math import ceil

import torch

# The maximum number of slices, so that each intermediate tensor has at most a tenth of the result's size.
_MOST_SLICES = 10
# The minimum numbers per slice: on a CPU they stay in caches, on a GPU they are worth a kernel launch.
_LEAST_ON_CPU, _LEAST_ON_GPU = 1 << 21, 1 << 23


def rows_at_once(rows: int, numbers: int, device: torch.device) -> int:
    """Return how many rows of `numbers` numbers each to compute at a time; at least 1."""
    if torch.compiler.is_compiling():  # a compiler fuses the computation, without intermediate tensors
        return max(rows, 1)
    least = _LEAST_ON_CPU if device.type == "cpu" else _LEAST_ON_GPU
    return max(ceil(rows / _MOST_SLICES), least // max(numbers, 1), 1)
