"""Workers on a cluster run by Ray: the one that RAY_ADDRESS names, else one on this machine.

Each worker has a task at a time, and gets that task alone. If a worker is lost, its task goes to a new one, up to a
limit.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from boxwright.base.errors import BoxwrightError, DataError, first_line

_LOG = logging.getLogger("boxwright")
Work = Callable[[Any], Any]
# Returns the result of a task that keeps ending its workers, from the task and what happened.
GiveUp = Callable[[Any, str], Any]
# A task that ended this many workers is not tried again.
TRIES = 3
_WAIT_SECONDS = 60.0


def over_ray(
    make: Callable[[], Work], tasks: Sequence[Any], workers: int, device: str = "auto", give_up: GiveUp | None = None
) -> Iterator[Any]:
    """Run tasks on the cluster, and yield their results as they arrive.

    Args:
        make: Builds a worker; it is sent to each machine once.
        workers: How many at most; 0 for as many as the cluster has GPUs, or else CPUs.
        device: "cpu" for workers that ask for no GPU.
        give_up: Returns the result of a task that ended `TRIES` workers; without it, that is an error.

    Raises:
        DataError: If Ray is not installed, the cluster has no GPU that was asked for, or workers cannot be started.
    """
    if not tasks:
        return
    ray = _connected_ray()
    count, gpus = shares(ray.cluster_resources(), workers, device)
    pool = _Pool(ray, make, tasks, gpus, give_up)
    try:
        pool.start(min(count, len(tasks)))
        while pool.is_busy():
            yield from pool.wait()
    finally:
        pool.end()


class _Pool:
    """Workers, and the tasks that are not done."""

    def __init__(
        self, ray: Any, make: Callable[[], Work], tasks: Sequence[Any], gpus: float, give_up: GiveUp | None
    ) -> None:
        self._ray, self._tasks, self._give_up = ray, tasks, give_up
        self._class = ray.remote(RayWorker).options(num_cpus=1, num_gpus=gpus, max_restarts=0)
        self._make = ray.put(make)
        # Indices of tasks, with how many workers each has ended.
        self._waiting = deque((index, 0) for index in range(len(tasks)))
        # What each call is about: its worker, and its task; none while the worker is opened.
        self._calls: dict[Any, tuple[Any, tuple[int, int] | None]] = {}
        self._lost_at_start = 0
        self._lost = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)

    def start(self, count: int) -> None:
        """Start some workers."""
        for _ in range(count):
            worker = self._class.remote()
            self._calls[worker.open.remote(self._make, os.getcwd())] = worker, None

    def is_busy(self) -> bool:
        """Return whether a task is waiting or at work."""
        return bool(self._waiting) or any(task is not None for _, task in self._calls.values())

    def wait(self) -> list[Any]:
        """Wait for one call, or a minute, and return the result that it brought, if any."""
        done, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=_WAIT_SECONDS)
        if not done:
            _LOG.info("waiting for Ray: %d workers are at work, or wait for a place", len(self._calls))
            return []
        worker, task = self._calls.pop(done[0])
        try:
            result = pickle.loads(self._ray.get(done[0]))  # written by our own worker
        except self._lost as error:
            return self._replace(task, first_line(error))
        if isinstance(result, BoxwrightError):
            raise result
        if task is None:
            self._lost_at_start = 0  # it is those in a row that count
        if self._waiting:
            following = self._waiting.popleft()
            self._calls[worker.run.remote(self._tasks[following[0]])] = worker, following
        return [] if task is None else [result]

    def _replace(self, task: tuple[int, int] | None, reason: str) -> list[Any]:
        """Start a worker for one that was lost, whose task waits again; return the result of one that is given up."""
        results: list[Any] = []
        if task is None:
            self._lost_at_start += 1
            if self._lost_at_start == TRIES:
                raise DataError(f"Ray: {TRIES} workers ended while they were started: {reason}")
        elif task[1] + 1 == TRIES:
            problem = f"{TRIES} workers ended on it, one after the other, possibly out of memory"
            if self._give_up is None:
                raise DataError(f"Ray: a task was given up: {problem}")
            results = [self._give_up(self._tasks[task[0]], problem)]
        else:
            self._waiting.append((task[0], task[1] + 1))
        if self._waiting:
            self.start(1)
        return results

    def end(self) -> None:
        """End the workers that are left."""
        for worker, _ in self._calls.values():
            self._ray.kill(worker)


def _connected_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise DataError("--engine ray needs Ray: pip install 'boxwright[ray]'") from None
    try:
        ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, RuntimeError, ValueError) as error:  # no cluster is there, or none that lets us in
        raise DataError(f"Ray: {first_line(error)}") from None
    return ray


def shares(resources: Mapping[str, float], workers: int, device: str) -> tuple[int, float]:
    """Return how many workers a cluster gets, and how much of a GPU each asks for.

    Raises:
        DataError: If GPUs are asked for, and the cluster has none.
    """
    gpus = 0.0 if device == "cpu" else resources.get("GPU", 0.0)
    if device == "cuda" and not gpus:
        raise DataError("--engine ray --device cuda: the cluster has no GPU")
    cpus = max(int(resources.get("CPU", 1)), 1)
    count = min(workers or int(gpus) or cpus, cpus)
    # Ray takes whole numbers of GPUs, or a part of one.
    return count, min(1.0, math.floor(1000 * gpus / count) / 1000)


class RayWorker:
    """A worker on a cluster, whose answers are pickled: results, or an error of ours, which needs no traceback."""

    _work: Work

    def open(self, make: Callable[[], Work], folder: str) -> bytes:
        """Build the worker; relative paths start from `folder`, if this machine has it."""
        if os.path.isdir(folder):
            os.chdir(folder)
        return _pickled(lambda: setattr(self, "_work", make()))

    def run(self, task: Any) -> bytes:
        """Run a task."""
        return _pickled(lambda: self._work(task))


def _pickled(act: Callable[[], Any]) -> bytes:
    try:
        return pickle.dumps(act())
    except BoxwrightError as error:
        return pickle.dumps(error)
