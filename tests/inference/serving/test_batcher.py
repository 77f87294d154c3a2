from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boxwright.inference.serving.batcher import Batcher, QueueFull, Row

PATIENCE = 60


class Slow:
    """Runs when it is let, and notes what it ran."""

    def __init__(self) -> None:
        self.go, self.began = threading.Event(), threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, images: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
        self.began.set()
        assert self.go.wait(PATIENCE)
        firsts = images[:, 0, 0, 0]
        if (firsts == 255).any():
            raise ValueError("this one fails")
        self.batches.append(firsts.tolist())
        return {"first": firsts.astype(np.float32), "sum": images.sum((1, 2, 3), dtype=np.float32)}


def picture(number: int, height: int = 2) -> NDArray[np.uint8]:
    return np.full((height, 2, 3), number, np.uint8)


def answers(futures: list[Future[Row]]) -> list[Any]:
    return [future.result(PATIENCE)["first"].item() for future in futures]


def test_what_waits_runs_together_by_size_and_in_order() -> None:
    slow = Slow()
    batcher = Batcher(slow, most=3, wait_s=0)
    first = batcher.submit([picture(1)], PATIENCE)
    assert slow.began.wait(PATIENCE)
    sizes = [2, 3, 2, 2, 3, 2]
    rest = [batcher.submit([picture(number, height)], PATIENCE)[0] for number, height in enumerate(sizes, 2)]
    assert batcher.waiting == 6
    slow.go.set()
    assert answers([*first, *rest]) == [1, 2, 3, 4, 5, 6, 7]
    assert slow.batches == [[1], [2, 4, 5], [3, 6], [7]]
    batcher.close()


def test_a_full_queue_takes_all_or_nothing() -> None:
    slow = Slow()
    batcher = Batcher(slow, most=1, wait_s=0, queue=3)
    running = batcher.submit([picture(1)], PATIENCE)
    assert slow.began.wait(PATIENCE)
    waiting = batcher.submit([picture(2), picture(3)], PATIENCE)
    with pytest.raises(QueueFull):
        batcher.submit([picture(4), picture(5)], PATIENCE)
    waiting += batcher.submit([picture(6)], PATIENCE)
    with pytest.raises(QueueFull):
        batcher.submit([picture(7)], PATIENCE)
    slow.go.set()
    assert answers([*running, *waiting]) == [1, 2, 3, 6]
    batcher.close()


def test_nothing_is_run_for_whom_nobody_waits() -> None:
    slow = Slow()
    batcher = Batcher(slow, most=1, wait_s=0)
    running = batcher.submit([picture(1)], PATIENCE)
    assert slow.began.wait(PATIENCE)
    (left,) = batcher.submit([picture(2)], PATIENCE)
    (late,) = batcher.submit([picture(3)], -1)
    last = batcher.submit([picture(4)], PATIENCE)
    left.cancel()
    slow.go.set()
    assert answers([*running, *last]) == [1, 4]
    with pytest.raises(CancelledError):
        late.result(PATIENCE)
    assert slow.batches == [[1], [4]]
    batcher.close()


def test_an_error_reaches_those_who_wait_and_the_next_are_run() -> None:
    slow = Slow()
    slow.go.set()
    batcher = Batcher(slow, most=4, wait_s=0)
    (bad,) = batcher.submit([picture(255)], PATIENCE)
    with pytest.raises(ValueError, match="this one fails"):
        bad.result(PATIENCE)
    assert answers(batcher.submit([picture(5)], PATIENCE)) == [5]
    batcher.close()


def test_closing_answers_what_was_taken() -> None:
    slow = Slow()
    batcher = Batcher(slow, most=2, wait_s=0)
    futures = [batcher.submit([picture(number)], PATIENCE)[0] for number in range(9)]
    closing = threading.Thread(target=batcher.close)
    closing.start()
    slow.go.set()
    wait(futures, PATIENCE)
    assert answers(futures) == list(range(9))
    closing.join(PATIENCE)
    assert not closing.is_alive()
    with pytest.raises(QueueFull):
        batcher.submit([picture(1)], PATIENCE)


def test_large_pictures_run_by_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 40 pixels: two of 16, and one of 100."""
    monkeypatch.setattr("boxwright.inference.serving.batcher._MOST_PIXELS", 40)
    sizes: list[int] = []
    gate = threading.Event()

    def run(images: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
        gate.wait(PATIENCE)
        sizes.append(len(images))
        return {"x": np.zeros((len(images), 1), np.float32)}

    batcher = Batcher(run, most=8, wait_s=0)
    futures = [batcher.submit([np.zeros((side, side, 3), np.uint8)], PATIENCE)[0] for side in (1, 4, 4, 4, 10, 10)]
    gate.set()
    wait(futures, PATIENCE)
    assert sizes == [1, 2, 1, 1, 1]
    batcher.close()
