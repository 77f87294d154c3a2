"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from boxwright.data.batch import Batch
from boxwright.errors import TrainingError

__all__ = ["STAGES", "profile_steps"]

STAGES = ("data", "forward", "assignment", "losses", "backward", "optimizer")
_WARM, _MEASURED = 5, 10


def profile_steps(batches: Iterator[Batch], learn: Callable[[Batch], object], folder: Path) -> dict[str, float]:
    """Take some steps, measure ten of them, write a trace.

    Args:
        batches: What to learn from; data are waited for inside the measurement.
        learn: Takes a step.
        folder: Where `trace.json` goes (for chrome://tracing or Perfetto).

    Returns:
        The share of each of `STAGES`, of the rest, and `seconds_per_step`.

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
    folder.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(folder / "trace.json"))
    spent = {event.key: _seconds(event, cuda) / _MEASURED for event in profiler.key_averages()}
    shares = {stage: spent.get(stage, 0.0) / seconds for stage in STAGES}
    # The criterion's range holds that of the assignment, and the penalties on kernels.
    shares["losses"] = max(spent.get("criterion", 0.0) / seconds - shares["assignment"], 0.0)
    shares["rest"] = max(1 - sum(shares.values()), 0.0)
    return {**shares, "seconds_per_step": seconds}


def _seconds(event: Any, cuda: bool) -> float:
    return float(max(event.cpu_time_total, event.device_time_total if cuda else 0.0)) / 1e6


def _next(batches: Iterator[Batch]) -> Batch:
    batch = next(batches, None)
    if batch is None:
        raise TrainingError(f"the data ended before {_WARM + _MEASURED} steps; profile with more epochs")
    return batch
