"""Looking only at the rows that count."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def of_valid_rows(module: nn.Module, rows: Tensor, valid: Tensor, *, all_rows: bool = False) -> Tensor:
    """Return what a module makes of each row; 0 for rows that are padding, which it is not shown.

    The one place in networks that looks at data. A graph that is compiled or exported has one shape: there the module
    sees all rows, and what it makes of padding means nothing.

    Args:
        module: Makes of float [N, ...] something of N rows.
        rows: float [N, ...].
        valid: bool, N in all, in the order of the rows.
        all_rows: Whether to show all rows: where statistics are over all of them, padding too, as TF's are.

    Returns:
        float [N, ...].
    """
    if all_rows or torch.compiler.is_compiling() or bool(valid.all()):
        every: Tensor = module(rows)
        return every
    index = valid.flatten().nonzero().squeeze(1)
    found: Tensor = module(rows[index])
    return found.new_zeros(rows.shape[0], *found.shape[1:]).index_copy(0, index, found)
