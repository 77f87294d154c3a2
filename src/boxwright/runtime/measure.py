"""Measuring detectors against each other, in interleaved rounds of one process.

On a machine that others use too, times of one run are worth little; ratios within a round are worth more.
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
        name: The contender's.
        batch: Pictures of a call.
        least_ms: The fastest call, in milliseconds.
        median_ms: The call in the middle.
        p95_ms: What 95 of 100 calls stay within.
        cpu_ms: Processor time of the call in the middle, of all threads.
        images_per_s: Pictures a second, by the median.
        ratio: The median of this contender's time as a share of the first's, round by round.
        ratio_least: The least of those shares.
        samples_ms: All calls.
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
        """Return plain data."""
        return asdict(self)


def measure(contenders: Mapping[str, Callable[[], Any]], batch: int, rounds: int) -> list[Timing]:
    """Call each contender once a round, in turn.

    Args:
        contenders: Name to what is measured; the first is what the others are compared with.
    """
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
    """Return how many processes ran in the last minute for each core, and whether that is many."""
    share = os.getloadavg()[0] / (os.cpu_count() or 1)
    return share, share > _BUSY
