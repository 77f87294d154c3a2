"""How processes find each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta

import pytest
import torch.distributed as dist

import boxwright as bw
from boxwright.base.distributed import Processes, RollCall, join_processes, meet

SOON = timedelta(seconds=20)


def test_processes_of_each_start_meet_apart() -> None:
    """What an earlier start left in the store is not taken for this one's."""
    store = dist.HashStore()
    with ThreadPoolExecutor(3) as pool:
        for start in range(3):
            parts = list(pool.map(lambda rank: meet(store, Processes(rank, 3), SOON), range(3)))
            assert not parts[2].check(["address"])
            parts[0].set("address", str(start))
            assert [part.get("address") for part in parts] == [str(start).encode()] * 3


def test_a_number_of_processes_without_this_ones_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on machines whose scheduler sets the one alone."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(bw.TrainingError, match="WORLD_SIZE is 2, but RANK.*unset WORLD_SIZE for one"), join_processes():
        pass


def test_one_that_does_not_come() -> None:
    store = dist.HashStore()
    store.set("hello 1", "gone")  # as a process left it that was killed
    with pytest.raises(bw.TrainingError, match=r"processes \[1\] of 2 did not come"):
        meet(store, Processes(0, 2), timedelta(seconds=0.2))


def test_one_that_hangs_is_named_by_another_and_says_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Process 1 of 3 comes to the first meeting, not to the second."""
    store = dist.HashStore()
    calls = [RollCall(store, rank, 3, patience=1e9, poll=1000.0) for rank in range(3)]
    for call in calls:
        with call.meeting():
            pass
    with caplog.at_level("WARNING", "boxwright.run"), ExitStack() as waiting:
        for call in (calls[0], calls[2]):
            waiting.enter_context(call.meeting())
        for call in calls:  # each publishes where it is
            call._look()
        assert not caplog.messages, "nobody has waited for long"
        with ThreadPoolExecutor(1) as thread:
            for call in calls * 2:
                call._patience = 0.0
                thread.submit(call._look).result()
    for call in calls:
        call.end()
    assert len(caplog.messages) == 2, "once"
    named, place = caplog.messages
    assert named == "waiting for process 1 of 3 for 0 s: it may hang"
    assert place.startswith("process 1: the others wait for it; for 0 s it has been at ")
    assert place.endswith("(wait)"), "this thread is"


def test_one_that_hangs_after_it_waited_says_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Process 0 waits long for 1 at the first meeting, and does not come to the second."""
    store = dist.HashStore()
    first, second = (RollCall(store, rank, 2, patience=0.0, poll=1000.0) for rank in range(2))
    with caplog.at_level("WARNING", "boxwright.run"):
        with first.meeting():
            first._look()
        for _ in range(2):
            with second.meeting():
                second._patience = 1e9
                second._look()
        first._look()
    for call in (first, second):
        call.end()
    assert [message.partition(" for ")[0] for message in caplog.messages] == [
        "waiting",
        "process 0: the others wait",
    ]


def test_all_that_come_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    """Also where a run takes long over something that no other process waits for."""
    store = dist.HashStore()
    calls = [RollCall(store, rank, 2, patience=0.0, poll=1000.0) for rank in range(2)]
    with caplog.at_level("DEBUG"):
        for _ in range(3):
            for call in calls:
                with call.meeting():
                    pass
            for call in calls:
                call._look()
            calls[0]._look()
    for call in calls:
        call.end()
    assert not caplog.messages
