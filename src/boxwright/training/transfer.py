"""Bringing batches to the device while it computes."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import torch

from boxwright.data.batch import Batch


def on_device(batches: Iterable[Batch], device: torch.device) -> Generator[Batch]:
    """Bring batches to a device; to a GPU one ahead, on a stream of its own.

    Args:
        batches: In pinned memory, if the device is a GPU.
    """
    if device.type != "cuda":
        yield from (batch.to(device) for batch in batches)
        return
    # On the stream of the step a copy would wait for all kernels that have been launched before it.
    copying = torch.cuda.Stream(device)
    waiting: Batch | None = None
    for batch in batches:
        with torch.cuda.stream(copying):
            arriving = batch.to(device)
        if waiting is not None:
            yield waiting
        torch.cuda.current_stream(device).wait_stream(copying)
        for tensor in (arriving.images, arriving.true_sizes, *arriving.targets.tensors()):
            # Else the allocator, which knows of the copying stream alone, reuses the memory while the step reads it.
            tensor.record_stream(torch.cuda.current_stream(device))
        waiting = arriving
    if waiting is not None:
        yield waiting
