"""Spreading units of work: over processes of this machine, or over a cluster by Ray.

Each worker opens the detector once and takes unit after unit. Nothing of a result passes through here: workers write
their parts themselves, so the folder of results must be one that all of them see.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

from boxwright.errors import DataError
from boxwright.inference.collections import Unit
from boxwright.inference.finders import OpenModel
from boxwright.inference.shards import Job, Part, run_unit

__all__ = ["ENGINES", "Engine", "here", "over_processes", "over_ray"]

# From a job, its units and how many workers there may be, to the parts as they are made.
Engine = Callable[[Job, Sequence[Unit], int, OpenModel], Iterator[Part]]


def here(job: Job, units: Sequence[Unit], model: OpenModel) -> Iterator[Part]:
    """Make all parts in this process.

    Args:
        job: What is done.
        units: What is missing.
        model: The detector.

    Yields:
        Each part, when it is written.
    """
    for unit in units:
        yield from run_unit(unit, job, model)


def over_processes(job: Job, units: Sequence[Unit], workers: int, model: OpenModel) -> Iterator[Part]:
    """Make all parts in processes of this machine; in this one where one is enough.

    Args:
        job: What is done.
        units: What is missing.
        workers: How many processes.
        model: The detector, opened here.

    Yields:
        The parts; those of a unit when it is done.

    Raises:
        DataError: Where a process died; the same command resumes.
    """
    if workers <= 1:
        yield from here(job, units, model)
        return
    threads = job.threads or max((os.cpu_count() or workers) // workers, 1)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _open_in_process, (replace(job, threads=threads),))
    try:
        for future in as_completed([pool.submit(_in_process, unit) for unit in units]):
            yield from future.result()
    except BrokenProcessPool:
        raise DataError("a worker died, perhaps for want of memory; what was done is kept: run it again") from None
    finally:
        pool.shutdown(cancel_futures=True)


# A worker's own: what it was started with. Processes of a pool have no other place for it.
_opened: dict[str, Any] = {}


def _open_in_process(job: Job) -> None:
    _opened["job"], _opened["model"] = job, job.model.open(job.threads)


def _in_process(unit: Unit) -> list[Part]:
    return list(run_unit(unit, _opened["job"], _opened["model"]))


def over_ray(job: Job, units: Sequence[Unit], workers: int, model: OpenModel) -> Iterator[Part]:
    """Make all parts on a Ray cluster: the one that RAY_ADDRESS names, else one on this machine.

    Ray places the workers, starts lost ones anew and spreads the units; results and resuming are ours.

    Args:
        job: What is done; its folder is one that all machines see.
        units: What is missing.
        workers: The most workers.
        model: The detector, opened here; workers open it themselves.

    Yields:
        The parts; those of a unit when it is done.

    Raises:
        DataError: Where Ray is not installed, or what a worker met.
    """
    del model
    if not units:
        return
    try:
        import ray
        from ray.data import DataContext
    except ImportError:
        raise DataError("--engine ray needs Ray: pip install 'boxwright[ray]'") from None
    ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    DataContext.get_current().enable_progress_bars = False
    gpus = 1 if job.model.settings.device.startswith("cuda") else 0
    by_number = {unit.number: unit for unit in units}
    dataset = ray.data.from_items([{"unit": number} for number in by_number], override_num_blocks=len(units))
    done = dataset.map_batches(
        RayWorker,
        fn_constructor_args=(job, by_number),
        batch_size=1,
        concurrency=(1, max(workers, 1)),
        num_gpus=gpus,
        num_cpus=1,
    )
    for row in done.iter_rows():
        yield Part(row["name"], int(row["rows"]), int(row["errors"]))


class RayWorker:
    """A worker of a cluster, with its detector."""

    def __init__(self, job: Job, units: dict[int, Unit]) -> None:
        """Open the detector.

        Args:
            job: What is done.
            units: By number.
        """
        self._job, self._units = job, units
        self._model = job.model.open(job.threads)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Make the missing parts of the units of a batch."""
        parts = [
            part for number in batch["unit"] for part in run_unit(self._units[int(number)], self._job, self._model)
        ]
        return {
            "name": [part.name for part in parts],
            "rows": [part.rows for part in parts],
            "errors": [part.errors for part in parts],
        }


ENGINES: dict[str, Engine] = {"local": over_processes, "ray": over_ray}
