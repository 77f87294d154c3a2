"""Timing detectors against each other, in interleaved rounds of one process.

On a shared machine absolute times mean little; ratios within a round are more reliable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

_WARM_UPS = 2
_BUSY = 0.5


@dataclass(frozen=True)
class Timing:
    """How long one contender took.

    Attributes:
        batch: Pictures per call.
        cpu_ms: Median processor time of a call, over all threads.
        images_per_s: Pictures per second, from the median.
        ratio: The median over rounds of this contender's time divided by the first contender's.
    """

    name: str
    batch: int
    least_ms: float
    median_ms: float
    p95_ms: float
    cpu_ms: float
    images_per_s: float
    ratio: float
    ratio_least: float
    samples_ms: list[float]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def measure(contenders: Mapping[str, Callable[[], Any]], batch: int, rounds: int) -> list[Timing]:
    """Call each contender once per round, in turn, and return their timings; ratios are relative to the first."""
    for run in contenders.values():
        for _ in range(_WARM_UPS):
            run()
    walls: dict[str, list[float]] = {name: [] for name in contenders}
    processor: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            began, used = time.perf_counter(), time.process_time()
            run()
            walls[name].append(1000 * (time.perf_counter() - began))
            processor[name].append(1000 * (time.process_time() - used))
    first = np.array(next(iter(walls.values())))
    return [
        Timing(
            name=name,
            batch=batch,
            least_ms=min(samples),
            median_ms=float(np.median(samples)),
            p95_ms=float(np.percentile(samples, 95)),
            cpu_ms=float(np.median(processor[name])),
            images_per_s=1000 * batch / float(np.median(samples)),
            ratio=float(np.median(np.array(samples) / first)),
            ratio_least=float((np.array(samples) / first).min()),
            samples_ms=samples,
        )
        for name, samples in walls.items()
    ]


def load() -> tuple[float, bool]:
    """Return the last minute's load average per core, and whether it is high; 0 where the system does not know."""
    if not hasattr(os, "getloadavg"):
        return 0.0, False
    share = os.getloadavg()[0] / (os.cpu_count() or 1)
    return share, share > _BUSY
