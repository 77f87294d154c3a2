"""Memory that requests hold, until their clients have the answers."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from boxwright.inference.serving.held import BudgetedResponse, MemoryBudget, MemoryReservation, answer_bytes
from boxwright.inference.serving.requests import BadRequest


def test_all_together_hold_no_more_than_is_allowed() -> None:
    held = MemoryBudget(1)
    with MemoryReservation(held) as first:
        first.add(600_000)
        with MemoryReservation(held) as second, pytest.raises(BadRequest) as problem:
            second.add(600_000)
        assert problem.value.status == 503
        with MemoryReservation(held) as third, pytest.raises(BadRequest) as problem:
            third.add(2**20 + 1)
        assert problem.value.status == 413, "what never fits is not worth trying again"
    assert held.bytes == 0


def test_what_an_answer_takes() -> None:
    """Of 6 and 5 numbers in each of two pictures: 4 bytes each as arrays; 13 each for those that are written."""
    row = {"a": np.zeros((2, 3), np.float32), "raw_b": np.zeros(5, np.float32)}
    assert answer_bytes([row, row], ()) == 4 * 22 + 13 * 12
    assert answer_bytes([row, row], ("raw_b",)) == 4 * 22 + 13 * 10


def test_an_answer_is_held_until_the_client_has_read_it() -> None:
    held, body = MemoryBudget(10), bytes(range(256)) * 4096  # 1 MiB
    sent: list[dict[str, Any]] = []

    async def answer() -> None:
        reads = asyncio.Event()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if len(sent) == 2:
                await reads.wait()

        with ExitStack() as stack:
            stack.enter_context(MemoryReservation(held)).add(len(body))
            response = BudgetedResponse(body, stack.pop_all(), "application/octet-stream")
        sending = asyncio.ensure_future(response({}, None, send))  # type: ignore[arg-type]
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(sent) == 2, "the rest waits"
        assert held.bytes == len(body)
        reads.set()
        await sending

    asyncio.run(answer())
    assert held.bytes == 0
    assert b"".join(message.get("body", b"") for message in sent) == body
    assert [message["more_body"] for message in sent[1:]] == [True] * 3 + [False]
    assert (b"content-length", b"1048576") in sent[0]["headers"]
