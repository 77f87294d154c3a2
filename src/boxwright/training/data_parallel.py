"""A loss module whose gradients are exchanged between the processes of a run."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from boxwright.base.distributed import is_sharded_module


def data_parallel(losses: nn.Module) -> DistributedDataParallel:
    """Return losses whose gradients are averaged over the processes."""
    # Depthwise kernels lie in memory the same under two strides; nothing is copied.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    device = next(losses.parameters()).device
    return DistributedDataParallel(
        losses,
        device_ids=[device.index] if device.type == "cuda" else None,
        # Gradients lie in the buffers that are exchanged; otherwise each process holds them twice.
        gradient_as_bucket_view=True,
        # Statistics are read in evaluations and checkpoints alone, which take the leader's; training reads a batch's.
        broadcast_buffers=False,
    )


def exchanging_gradients(module: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
    """Return the context of a forward and backward pass: its gradients are exchanged, or stay in this process."""
    # FSDP2 has a switch that stays as it is set, where DistributedDataParallel has a context.
    if is_sharded_module(module):
        module.set_requires_gradient_sync(enabled)
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not enabled else nullcontext()
