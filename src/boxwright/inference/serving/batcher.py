"""Batching requests: a bounded queue, and one thread that runs batches of pictures of one size.

Dimensions: B batch, H W picture.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The most pixels in a batch, so that eight pictures of 50 megapixels do not take the memory of 400.
_MOST_PIXELS = 50_000_000
Row = dict[str, NDArray[np.float32]]
Runner = Callable[[NDArray[np.uint8]], dict[str, NDArray[np.float32]]]


class QueueFull(Exception):  # noqa: N818  # a state, not an error
    """The queue is full."""


@dataclass(eq=False)
class _Job:
    """A queued picture.

    Attributes:
        image: uint8 [H, W, 3].
        expires: The time after which nobody waits for it any more.
        answer: Receives the picture's row of each output.
    """

    image: NDArray[np.uint8]
    expires: float
    answer: Future[Row] = field(default_factory=Future)


class Batcher:
    """Queues pictures and runs those of one size together, oldest first."""

    def __init__(
        self,
        run: Runner,
        *,
        most: int = 8,
        wait_s: float = 0.002,
        queue: int = 64,
        observe: Callable[[int, float], Any] = lambda size, seconds: None,
    ) -> None:
        """Start the thread.

        Args:
            run: From pictures [B, H, W, 3] to named outputs, each with B rows.
            wait_s: How long the first picture of a batch waits for others, in seconds.
            observe: Called with each batch's size and the seconds it took.
        """
        self._run, self._most, self._wait, self._queue, self._observe = run, most, wait_s, queue, observe
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="batcher", daemon=True)
        self._thread.start()

    def submit(self, images: Sequence[NDArray[np.uint8]], timeout_s: float) -> list[Future[Row]]:
        """Queue pictures, all of them or none, and return a future for each with its row of every output.

        Args:
            images: uint8 [H, W, 3] each.
            timeout_s: After this many seconds they are dropped.

        Raises:
            QueueFull: If the queue has no room for all of them, or the batcher is closed.
        """
        expires = time.monotonic() + timeout_s
        jobs = [_Job(image, expires) for image in images]
        with self._changed:
            self._forget()
            if self._closing or len(self._jobs) + len(jobs) > self._queue:
                raise QueueFull
            self._jobs.extend(jobs)
            self._changed.notify()
        return [job.answer for job in jobs]

    @property
    def waiting(self) -> int:
        """How many pictures are queued."""
        return len(self._jobs)

    def close(self) -> None:
        """Refuse new pictures, and return once the queued ones are answered."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _loop(self) -> None:
        while jobs := self._next():
            began = time.monotonic()
            try:
                outputs = self._run(np.stack([job.image for job in jobs]))
                rows = [{name: value[number] for name, value in outputs.items()} for number in range(len(jobs))]
            except Exception as error:  # noqa: BLE001  # any error is reported to the waiting requests, and the next batch runs
                for job in jobs:
                    job.answer.set_exception(error)
            else:
                self._observe(len(jobs), time.monotonic() - began)
                for job, row in zip(jobs, rows, strict=True):
                    job.answer.set_result(row)

    def _next(self) -> list[_Job]:
        """Wait for a batch; empty once the batcher is closed and nothing is queued."""
        with self._changed:
            while True:
                self._forget()
                if self._jobs:
                    break
                if self._closing:
                    return []
                self._changed.wait()
            ready = time.monotonic() + self._wait
            while len(self._alike()) < self._room() and not self._closing:
                left = ready - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            chosen = self._alike()
            for job in chosen:
                self._jobs.remove(job)
            # A request may be given up while its picture waits; from here on its future cannot be cancelled.
            return [job for job in chosen if job.answer.set_running_or_notify_cancel()] or self._next()

    def _alike(self) -> list[_Job]:
        """Return the first queued picture and those of its size, in order; fewer for large ones, at least one."""
        shape = self._jobs[0].image.shape
        return [job for job in self._jobs if job.image.shape == shape][: self._room()]

    def _room(self) -> int:
        """Return how many pictures of the first one's size may run together."""
        pixels = self._jobs[0].image.size // 3
        return max(min(self._most, _MOST_PIXELS // pixels), 1)

    def _forget(self) -> None:
        """Drop pictures that nobody waits for any more."""
        now = time.monotonic()
        late = [job for job in self._jobs if job.answer.cancelled() or job.expires < now]
        for job in late:
            self._jobs.remove(job)
            job.answer.cancel()
