"""A pipeline of stages that run concurrently: each in a thread, a few items ahead of the next.

    with Stages() as stages:
        decoded = stages.ahead("decode", frames)
        detections = stages.ahead("network", map(detect, decoded))
        for item in detections: …

Items keep their order. An error in a stage is raised where its item would have been taken. Leaving the context ends
all stages.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

from boxwright.base.threads import map_in_order

T = TypeVar("T")
R = TypeVar("R")
_AHEAD = 4
_END_S = 5.0


class Stage(Generic[T]):
    """The items that one thread produces, in order.

    Attributes:
        skipped: How many of them were replaced by newer ones before they were taken.
        making_s: Seconds spent producing items.
        awaited_s: Seconds that the next stage waited.
    """

    def __init__(self, name: str, items: Iterable[T], put: Callable[[Stage[T], T], None]) -> None:
        """Start producing `items`; `put` is called with each."""
        self.name = name
        self.made, self.skipped = 0, 0
        self.making_s, self.awaited_s = 0.0, 0.0
        self.ready: deque[T] = deque()
        self.changed = threading.Condition()
        self.ended = False
        self._done = False
        self._error: BaseException | None = None
        self._items, self._put = items, put
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Tell it to stop after the current item."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def join(self, seconds: float | None = None) -> None:
        """Wait until it has stopped, or for so many seconds."""
        self._thread.join(seconds)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        start = time.perf_counter()
        with self.changed:
            self.changed.wait_for(lambda: self.ready or self._done or self.ended)
            self.awaited_s += time.perf_counter() - start
            # Items that were made before an error are taken before it is raised.
            if self.ready and not self.ended:
                self.changed.notify_all()
                return self.ready.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def batches(self, most: int) -> Iterator[list[T]]:
        """Yield the items in lists of those that are ready, each of at least one and at most so many."""
        for item in self:
            with self.changed:
                others = [self.ready.popleft() for _ in range(min(most - 1, len(self.ready)))]
                self.changed.notify_all()
            yield [item, *others]

    def _run(self) -> None:
        try:
            items = iter(self._items)
            while not self.ended:
                start = time.perf_counter()
                try:
                    item = next(items)
                except StopIteration:
                    break
                finally:
                    self.making_s += time.perf_counter() - start
                self.made += 1
                self._put(self, item)
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that takes the items
            self._error = error
        finally:
            with self.changed:
                self._done = True
                self.changed.notify_all()


def _put_with_limit(stage: Stage[T], item: T, limit: int) -> None:
    with stage.changed:
        stage.changed.wait_for(lambda: len(stage.ready) < limit or stage.ended)
        stage.ready.append(item)
        stage.changed.notify_all()


def _put_newest(stage: Stage[T], item: T) -> None:
    with stage.changed:
        stage.skipped += len(stage.ready)
        stage.ready.clear()
        stage.ready.append(item)
        stage.changed.notify_all()


@dataclass(frozen=True)
class ThreadCounts:
    """How many threads prepare pictures and detect in them.

    Attributes:
        reading: They read or decode.
        network: Each detects in a batch of its own.
    """

    reading: int
    network: int

    @classmethod
    def of(cls, device: str, *, exclusive: bool) -> ThreadCounts:
        """Return those for PyTorch's device, or the empty text of an exported detector.

        Args:
            exclusive: Whether one thread at a time may detect: while the network is compiled at its first batch, and in
                CUDA graphs, whose results are overwritten by the next batch.
        """
        # One thread decodes some hundred images a second, fewer than a GPU detects in. Of two threads that call the
        # network, one prepares and copies a batch while the other waits for its own. A CPU is busy with the network.
        return cls(8, 1 if exclusive else 2) if device.startswith("cuda") else cls(1, 1)


class StageTimes:
    """How busy stages were.

    Attributes:
        busy: For each stage, the seconds in which it worked rather than waited.
        skipped: Items replaced by newer ones before they were taken.
    """

    def __init__(self, stages: list[Stage[object]], start: float, last: str) -> None:
        """Compute the times so far.

        Args:
            stages: In order.
            start: When they started, by `time.perf_counter`.
            last: The name of the work on the last stage's items.
        """
        self.seconds = time.perf_counter() - start
        waits = [0.0, *(stage.awaited_s for stage in stages)]
        self.busy = {
            stage.name: max(stage.making_s - waited, 0.0) for stage, waited in zip(stages, waits, strict=False)
        }
        self.busy[last] = max(self.seconds - waits[-1], 0.0)
        self.made = stages[-1].made if stages else 0
        self.skipped = sum(stage.skipped for stage in stages)


class Stages:
    """A sequence of stages."""

    def __init__(self) -> None:
        self._stages: list[Stage[object]] = []
        self._start = time.perf_counter()

    def __enter__(self) -> Stages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stage in self._stages:
            stage.end()
        # The first waits for a camera, a network or a disk, which may hang. The others end after their current item: a
        # thread that returned from a runtime during interpreter shutdown would abort the process.
        for stage in self._stages[:1]:
            stage.join(_END_S)
        for stage in self._stages[1:]:
            stage.join()

    def ahead(self, name: str, items: Iterable[T], limit: int = _AHEAD) -> Stage[T]:
        """Produce items, of the stage before if any, in a thread, at most `limit` ahead of the consumer."""
        return self._begun(Stage(name, items, partial(_put_with_limit, limit=limit)))

    def spread(
        self, name: str, work: Callable[[T], R], items: Iterable[T], threads: int, limit: int = _AHEAD
    ) -> Stage[R]:
        """Apply a function to each item in several threads; results keep the items' order.

        Args:
            work: Called with an item, in any thread.
            threads: How many items are in progress at a time, which are also taken before the first result.
            limit: As for `ahead`.
        """
        return self.ahead(name, map_in_order(work, items, threads), limit)

    def newest(self, name: str, items: Iterable[T]) -> Stage[T]:
        """Produce items of a live source in a thread as fast as they arrive; the consumer gets only the newest."""
        return self._begun(Stage(name, items, _put_newest))

    def times(self, last: str) -> StageTimes:
        """Return how busy each stage has been; `last` names the work on the last stage's items."""
        return StageTimes(self._stages, self._start, last)

    def _begun(self, stage: Stage[T]) -> Stage[T]:
        self._stages.append(stage)  # type: ignore[arg-type]  # of any item type
        return stage
