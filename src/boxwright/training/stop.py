"""Requests to stop, and why a run stops; all processes stop at the same step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum

from boxwright.base.distributed import Processes
from boxwright.base.errors import BoxwrightError, TrainingError
from boxwright.data.batch import Batch


class StopReason(IntEnum):
    """Why a run goes no further; where processes differ, the largest counts."""

    NOT_YET = 0
    DATA_AT_END = 1
    TIME_UP = 2
    INTERRUPTED = 3
    FAILED = 4


@dataclass(frozen=True)
class RunEnd:
    """How far a run came, and why it went no further.

    Attributes:
        step: Steps done in all, in this process and those before it.
        reason: `NOT_YET` for a run that is complete, or whose patience ended.
        signal: The number of the signal that interrupted it; 0 if none did.
    """

    step: int
    reason: StopReason = StopReason.NOT_YET
    signal: int = 0


# What a shell and its schedulers know a temporary failure by: EX_TEMPFAIL of sysexits.h.
_TIME_UP_STATUS = 75


def exit_status(end: RunEnd) -> int:
    """Return the status with which a command exits after a run: 0 only if there is nothing left to train."""
    if end.reason is StopReason.TIME_UP:
        return _TIME_UP_STATUS
    if end.reason is StopReason.INTERRUPTED:
        return 128 + end.signal  # as shells count
    return 0


_HANG_UP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none


def _stop_signals() -> list[signal.Signals]:
    """Return what asks a run to stop: Ctrl-C, SIGTERM, and the end of its terminal unless nohup ignores it."""
    asking = [signal.SIGINT, signal.SIGTERM]
    if _HANG_UP is not None and signal.getsignal(_HANG_UP) is not signal.SIG_IGN:
        asking.append(_HANG_UP)
    return asking


@contextmanager
def stop_requests() -> Iterator[Callable[[], int]]:
    """Turn the first signal to stop into a question that the loop asks before each step: which one, 0 for none.

    A second one stops at once, as always; a terminal that is closed may send several.
    """
    received: list[int] = []

    def first_signal() -> int:
        return received[0] if received else 0

    # Python lets only the main thread set signal handlers; in another, a run ends by its own rules alone.
    if threading.current_thread() is not threading.main_thread():
        yield first_signal
        return
    before = {number: signal.getsignal(number) for number in _stop_signals()}

    def ask(number: int, _: object) -> None:
        received.append(number)
        # Not `print`: a signal may interrupt one, and a buffered stream refuses to be entered twice.
        with suppress(OSError):  # of a terminal that was closed
            os.write(2, b"\nstopping after this step or evaluation, with a checkpoint; once more stops at once\n")
        # The handler that was there before takes the second one: KeyboardInterrupt, or the end of the process.
        if number != _HANG_UP:
            signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield first_signal
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def agreed_batches(
    batches: Generator[Batch | BoxwrightError | None],
    wants_end: Callable[[], StopReason],
    processes: Processes,
    ended: Callable[[StopReason], None],
) -> Iterator[Batch]:
    """Hand out batches until any process has a reason to end.

    Args:
        batches: This process's part of each batch, the error that a worker met, or None where none has come yet.
        wants_end: Whether this process wants to end, and why.
        processes: Those of the run; each must ask for as many batches.

    Yields:
        Batches; all processes get equally many.

    Raises:
        BoxwrightError: What a worker of this process met.
        TrainingError: Where a worker died, or another process failed.
    """
    try:
        while True:
            ending, problem, batch = wants_end(), None, None
            while ending is StopReason.NOT_YET and batch is None:
                try:
                    item = next(batches)
                except StopIteration:
                    ending = StopReason.DATA_AT_END
                    break
                if isinstance(item, BoxwrightError):
                    ending, problem = StopReason.FAILED, item
                else:
                    batch = item
                    # Streams yield None every now and then while they wait, so that a request is heard although no data
                    # come.
                    ending = wants_end() if batch is None else ending
            agreed = StopReason(processes.largest(ending))
            if agreed is StopReason.FAILED:
                raise problem or TrainingError(f"process {processes.rank}: another process failed; it says why")
            if agreed is not StopReason.NOT_YET or batch is None:
                ended(agreed)
                return
            yield batch
    finally:
        batches.close()  # ends the workers now, and not when a traceback is forgotten
