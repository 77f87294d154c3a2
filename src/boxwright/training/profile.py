"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from boxwright.base.errors import TrainingError
from boxwright.data.batch import Batch

STAGES = ("data", "forward", "assignment", "losses", "backward", "optimizer")
# The first steps create the optimizer's slots, let cuDNN try algorithms and use up what workers have prepared.
_WARM, _MEASURED = 5, 10


@dataclass(frozen=True)
class Profile:
    """Where time goes.

    Attributes:
        shares: Of each of `STAGES` and of the rest, together 1. On a GPU they are of the time in which the CPU launches
            work and waits; what the device does is in the trace.
        ready: How many batches lay ready each time that one was wanted.
        gpu_memory: The most bytes of the GPU that tensors took at a time; 0 on the CPU.
    """

    shares: dict[str, float]
    seconds: float
    ready: list[int]
    gpu_memory: int = 0


def profile_steps(
    batches: Iterator[Batch],
    learn: Callable[[Batch], object],
    ready: Callable[[], int],
    folder: Path | None,
    device: torch.device,
) -> Profile:
    """Take some steps, measure ten of them, write a trace.

    Args:
        batches: What to learn from; data are waited for inside the measurement.
        folder: Where `trace.json` goes (for chrome://tracing or Perfetto), if anywhere.

    Raises:
        TrainingError: Where the data end before the measurement does.
    """
    cuda = device.type == "cuda"
    for _ in range(_WARM):
        learn(_next(batches))
    depths: list[int] = []
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        began = time.perf_counter()
        for _ in range(_MEASURED):
            depths.append(ready())
            with record_function("data"):
                batch = _next(batches)
            learn(batch)
        if cuda:
            torch.cuda.synchronize(device)
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
    return Profile(shares, seconds, depths, torch.cuda.max_memory_allocated(device) if cuda else 0)


def described(found: Profile, batch_size: int, most_ready: int) -> list[str]:
    """Return a profile in lines.

    Args:
        most_ready: How many batches workers make ahead; 0 without workers.
    """
    lines = [f"{found.seconds * 1000:.0f} ms a step, {batch_size / found.seconds:.1f} images/s; of that"]
    lines += [f"  {name:<12}{found.shares[name]:6.1%}" for name in (*STAGES, "rest")]
    lines.append(_data_ahead(found.ready, most_ready))
    if found.gpu_memory:
        lines.append(f"peak memory of the GPU: {found.gpu_memory / 2**30:.2f} GiB")
    return lines


def _data_ahead(ready: list[int], most: int) -> str:
    """Say whether the workers keep up."""
    if not most:
        return "no workers: each batch is read when it is wanted (--workers)"
    empty = ready.count(0)
    verdict = f"; {empty} of {len(ready)} steps waited: more workers would help" if empty else ""
    return f"batches ready when one was wanted: {min(ready)} to {max(ready)} of {most}{verdict}"


def _next(batches: Iterator[Batch]) -> Batch:
    batch = next(batches, None)
    if batch is None:
        raise TrainingError(f"the data ended before {_WARM + _MEASURED} steps; profile with more epochs")
    return batch
