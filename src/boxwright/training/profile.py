"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from boxwright.data.batch import Batch
from boxwright.errors import TrainingError

__all__ = ["STAGES", "profile_steps"]

STAGES = ("data", "forward", "assignment", "losses", "backward", "optimizer")
_WARM, _MEASURED = 5, 10


def profile_steps(batches: Iterator[Batch], learn: Callable[[Batch], object], folder: Path | None) -> dict[str, float]:
    """Take some steps, measure ten of them, write a trace.

    Args:
        batches: What to learn from; data are waited for inside the measurement.
        learn: Takes a step.
        folder: Where `trace.json` goes (for chrome://tracing or Perfetto), if anywhere.

    Returns:
        The share of each of `STAGES`, of the rest, and `seconds_per_step`. On a GPU the shares are of the time in
        which the CPU launches work and waits; what the device does is in the trace.

    Raises:
        TrainingError: Where the data end before the measurement does.
    """
    cuda = torch.cuda.is_available()
    for _ in range(_WARM):
        learn(_next(batches))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        began = time.perf_counter()
        for _ in range(_MEASURED):
            with record_function("data"):
                batch = _next(batches)
            learn(batch)
        if cuda:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - began) / _MEASURED
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / "trace.json"))
    spent: dict[str, float] = {}
    for event in profiler.key_averages():
        spent[event.key] = max(spent.get(event.key, 0.0), event.cpu_time_total / 1e6 / _MEASURED)
    shares = {stage: spent.get(stage, 0.0) / seconds for stage in STAGES}
    # The criterion's range holds that of the assignment, and the penalties on kernels.
    shares["losses"] = max(spent.get("criterion", 0.0) / seconds - shares["assignment"], 0.0)
    shares["rest"] = max(1 - sum(shares.values()), 0.0)
    return {**shares, "seconds_per_step": seconds}


def _next(batches: Iterator[Batch]) -> Batch:
    batch = next(batches, None)
    if batch is None:
        raise TrainingError(f"the data ended before {_WARM + _MEASURED} steps; profile with more epochs")
    return batch
