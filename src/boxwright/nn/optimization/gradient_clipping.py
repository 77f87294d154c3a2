"""The norm of all gradients together, and clipping by it or by each gradient's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from boxwright.base.distributed import gathered, is_sharded

# Scales gradients in place, given the norm of all together.
Clip = Callable[[list[Tensor], Tensor], None]


def global_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together, a scalar; of sharded ones, the whole gradients'."""
    if not gradients or any(is_sharded(one) for one in gradients):
        return gathered(torch.nn.utils.get_total_norm(gradients))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm


def clip_by_global_norm(gradients: list[Tensor], norm: Tensor, limit: float) -> None:
    """Scale gradients in place so that their norm is at most `limit`; 0 for no limit.

    As tf.clip_by_global_norm: no epsilon in the divisor.
    """
    if limit > 0:
        # A norm of 0 gives infinity, clamped to 1.
        torch._foreach_mul_(gradients, (limit / norm).clamp(max=1.0))


def clip_each_by_norm(gradients: list[Tensor], norm: Tensor, limit: float) -> None:
    """Scale each gradient in place so that its own norm is at most `limit`; 0 for no limit.

    As TF1's `slim.learning.clip_gradient_norms`, by tf.clip_by_norm.
    """
    del norm
    if limit <= 0 or not gradients:
        return
    if any(is_sharded(one) for one in gradients):
        norms = [gathered(torch.linalg.vector_norm(one)) for one in gradients]
    else:
        norms = list(torch._foreach_norm(gradients))
    # As above, a norm of 0 gives infinity, clamped to 1.
    torch._foreach_mul_(gradients, [(limit / own).clamp(max=1.0) for own in norms])
