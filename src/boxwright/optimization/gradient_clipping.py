"""The norm of all gradients together, and clipping by it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from boxwright.distributed import gathered


def global_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together, a scalar; of sharded ones, the whole gradients'."""
    if not gradients or any(isinstance(one, DTensor) for one in gradients):
        return gathered(torch.nn.utils.get_total_norm(gradients))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm


def clip_by_global_norm(gradients: list[Tensor], norm: Tensor, limit: float) -> None:
    """Scale gradients in place so that their norm is at most `limit`; 0 for no limit.

    As tf.clip_by_global_norm: no epsilon in the divisor.
    """
    if limit > 0:
        torch._foreach_mul_(gradients, (limit / norm).clamp(max=1.0))
