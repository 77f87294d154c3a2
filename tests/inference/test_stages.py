"""Work in threads, a few items ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from boxwright.inference import stages as stages_module
from boxwright.inference.stages import Stages, ThreadCounts


def test_items_keep_their_order_through_stages() -> None:
    with Stages() as stages:
        first = stages.ahead("a", range(1000))
        second = stages.ahead("b", (item * 2 for item in first))
        assert list(second) == [item * 2 for item in range(1000)]
        times = stages.times("c")
    assert times.made == 1000
    assert list(times.busy) == ["a", "b", "c"]


def test_stages_work_at_the_same_time() -> None:
    """The first makes item 1 while the second is still at item 0: each waits for the other to show it."""
    made, asked = threading.Event(), threading.Event()

    def making() -> Iterator[int]:
        yield 0
        assert asked.wait(60)
        made.set()
        yield 1

    def slow(item: int) -> int:
        asked.set()
        assert made.wait(60)
        return item

    with Stages() as stages:
        assert list(stages.ahead("slow", map(slow, stages.ahead("making", making())))) == [0, 1]


def test_an_error_comes_where_its_item_would_have_and_everything_ends() -> None:
    def failing() -> Iterator[int]:
        yield from range(3)
        raise ValueError("the fourth")

    taken = []
    with pytest.raises(ValueError, match="the fourth"), Stages() as stages:
        for item in stages.ahead("after", map(str, stages.ahead("failing", failing()))):
            taken.append(item)  # noqa: PERF402  # what came before the error is kept
    assert taken == ["0", "1", "2"]
    assert not [thread for thread in threading.enumerate() if thread.name in ("failing", "after")]


def test_an_endless_source_ends_with_its_user() -> None:
    def endless() -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1

    with Stages() as stages:
        numbers = stages.ahead("endless", endless())
        assert [next(numbers), next(numbers)] == [0, 1]
    assert not [thread for thread in threading.enumerate() if thread.name == "endless"]


def test_of_a_stream_the_newest_is_taken() -> None:
    """Ten come while one is looked at: nine of them are skipped, and said to be."""
    go_on = threading.Event()

    def stream() -> Iterator[int]:
        yield 0
        assert go_on.wait(60)
        yield from range(1, 11)

    with Stages() as stages:
        newest = stages.newest("stream", stream())
        assert next(newest) == 0
        go_on.set()
        while newest.made < 11:
            threading.Event().wait(0.01)
        rest = list(newest)
        assert rest[-1] == 10
        assert stages.times("end").skipped + len(rest) == 10


def test_a_stage_that_is_told_to_end_gives_no_more() -> None:
    with Stages() as stages:
        numbers = stages.newest("numbers", iter(range(10**9)))
        next(numbers)
        numbers.end()
        assert list(numbers) == []


def test_work_is_spread_and_results_keep_their_order() -> None:
    """The first item is done last: it waits for the third, which another thread does."""
    third = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert third.wait(60)
        if item == 2:
            third.set()
        return item * 2

    with Stages() as stages:
        assert list(stages.spread("work", work, range(100), 3)) == [item * 2 for item in range(100)]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("work", "at work"))]


def test_a_network_that_is_compiled_is_called_by_one_thread() -> None:
    """PyTorch refuses a call of a compiled function while another thread compiles."""
    assert ThreadCounts.of("cuda:1", exclusive=False) == ThreadCounts(reading=8, network=2)
    assert ThreadCounts.of("cuda:1", exclusive=True) == ThreadCounts(reading=8, network=1)
    for device in ("cpu", ""):
        assert ThreadCounts.of(device, exclusive=False) == ThreadCounts(reading=1, network=1)


def test_what_is_ready_is_taken_together() -> None:
    with Stages() as stages:
        numbers = stages.ahead("numbers", iter(range(10)), limit=10)
        numbers.join()
        assert list(numbers.batches(4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with Stages() as stages:
        assert [*stages.ahead("none", iter(())).batches(4)] == []


@pytest.mark.parametrize("where", ["items", "work"])
def test_results_before_an_error_come_before_it(where: str) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        if where == "items":
            raise ValueError("the sixth")
        yield from range(5, 100)

    def work(item: int) -> int:
        if item == 5:
            raise ValueError("the sixth")
        return item

    taken = []
    with pytest.raises(ValueError, match="the sixth"), Stages() as stages:
        for item in stages.spread("work", work, items(), 4):
            taken.append(item)  # noqa: PERF402  # what came before the error is kept
    assert taken == [0, 1, 2, 3, 4]


def test_what_computes_is_waited_for_and_what_hangs_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that gives its result while the interpreter ends aborts the process; a camera may never give one."""
    monkeypatch.setattr(stages_module, "_END_S", 0.01)
    begun, goes_on = threading.Event(), threading.Event()

    def hanging() -> Iterator[int]:
        yield 0
        threading.Event().wait()

    def slow(item: int) -> int:
        begun.set()
        assert goes_on.wait(60)
        return item

    with Stages() as stages:
        stages.ahead("slow", map(slow, stages.ahead("hanging", hanging())))
        assert begun.wait(60)
        threading.Timer(0.3, goes_on.set).start()
    names = [thread.name for thread in threading.enumerate()]
    assert "slow" not in names
    assert "hanging" in names
