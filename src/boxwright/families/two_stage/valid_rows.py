"""Running a module on valid rows only."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def of_valid_rows(module: nn.Module, rows: Tensor, valid: Tensor, *, all_rows: bool = False) -> Tensor:
    """Return a module's output for each valid row, and 0 for padding, which the module does not process.

    The only place in networks that depends on data. A compiled or exported graph has one shape: its module processes
    all rows, and the outputs for padding are meaningless.

    Args:
        module: Maps float [N, ...] to N rows.
        rows: float [N, ...].
        valid: bool, N values, in the order of the rows.
        all_rows: Whether to process all rows, when batch statistics include padding, as TF's do.
    """
    # `bool` waits for the device; it is asked last, and docs/gpu.md lists it.
    if all_rows or torch.compiler.is_compiling() or bool(valid.all()):
        every: Tensor = module(rows)
        return every
    index = valid.flatten().nonzero().squeeze(1)
    found: Tensor = module(rows[index])
    return found.new_zeros(rows.shape[0], *found.shape[1:]).index_copy_(0, index, found)
