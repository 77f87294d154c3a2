"""What browsers may ask, and the memory that requests hold until their clients have the answers."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from boxwright.base.errors import ConfigError
from boxwright.inference import serving
from boxwright.inference.serving.guard import (
    Browsers,
    BudgetedResponse,
    Counters,
    Guard,
    MemoryBudget,
    MemoryReservation,
    answer_bytes,
)
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


AGENT = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64)"}


def refused(listening: str = "127.0.0.1", allowed: tuple[str, ...] = (), **headers: str) -> int:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    found = Browsers(listening, allowed).refusal(named)
    return found[0] if found else 0


@pytest.mark.parametrize(
    "host", ["localhost:8501", "127.0.0.1:8501", "[::1]:8501", "10.1.2.3", "[fe80::1]", socket.gethostname()]
)
def test_its_own_page(host: str) -> None:
    assert refused(host=host, origin=f"http://{host}", **AGENT) == 0
    assert refused(host=host, sec_fetch_site="none") == 0
    assert refused(listening="0.0.0.0", host=host.upper(), origin=f"https://{host}") == 0


def test_names_as_browsers_write_them() -> None:
    """A default port is left out, a name may end in a dot, and what is no name is an error."""
    assert refused(allowed=("det.example.com:443",), host="det.example.com", origin="https://det.example.com") == 0
    assert refused(allowed=("Det.example.com.",), host="det.example.com:8501", sec_fetch_site="none") == 0
    assert refused(host="localhost.:8501", sec_fetch_site="none") == 0
    with pytest.raises(ConfigError, match="--allow_host https://det.example.com: expected a name"):
        Browsers("127.0.0.1", ("https://det.example.com",))


@pytest.mark.parametrize("host", ["detector.default.svc:80", "gpu-box.example.com", "my_service:8501", "", "127.0.0.1"])
def test_programs_by_any_name(host: str) -> None:
    assert refused(host=host, user_agent="curl/8.5.0") == 0
    assert refused(listening="0.0.0.0", host=host) == 0


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1:9999", "null", "", "http://127.0.0.1:8501.evil.example"]
)
def test_pages_of_elsewhere(origin: str) -> None:
    assert refused(host="127.0.0.1:8501", origin=origin) == 403


def test_a_name_that_came_to_mean_this_address() -> None:
    """DNS rebinding: the page is of the same origin as what it asks, by a name that is not the server's."""
    evil = {"host": "evil.example:8501", "origin": "http://evil.example:8501"}
    assert refused(**evil) == 403
    assert refused(host="evil.example:8501", **AGENT) == 403
    assert refused(host="evil.example:8501", sec_fetch_mode="cors") == 403


def test_names_that_are_allowed() -> None:
    allowed = ("detect.example.com, other.example.com:444", "Third.example.com")
    for host in ("detect.example.com", "detect.example.com:8501", "other.example.com:444", "third.example.com"):
        assert refused(allowed=allowed, host=host, origin=f"https://{host}") == 0
    assert refused(allowed=allowed, host="other.example.com", origin="https://other.example.com") == 403
    assert refused(allowed=allowed, host="127.0.0.1:8501", origin="https://detect.example.com") == 0
    assert "--allow_host" in str(Browsers("127.0.0.1").refusal({b"host": b"a.example", b"origin": b"http://a.example"}))


@pytest.mark.parametrize("host", ["[", "a b", "[::1", "a:b", "http://a", "a/b", "a@b", "ä", "a:1234567"])
def test_what_is_no_host(host: str) -> None:
    assert refused(host=host) == 400


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("Bearer key", 200),
        ("bearer key", 200),
        ("BEARER   key", 200),
        ("Bearer", 401),
        ("Bearer key2", 401),
        ("Basic key", 401),
        ("key", 401),
        ("", 401),
    ],
)
def test_the_key_comes_in_any_spelling_of_its_scheme(given: str, status: int) -> None:
    """HTTP's schemes have no case (RFC 9110, section 11.1)."""
    guarded = Guard(PlainTextResponse("here"), Counters(), Browsers("127.0.0.1"), "key")  # type: ignore[arg-type]
    headers = {"Authorization": given} if given else {}
    assert TestClient(guarded).get("/models", headers=headers).status_code == status


@pytest.mark.parametrize(("count", "status"), [(15, 200), (17, 431)])
def test_a_head_that_arrives_at_once_has_the_limit_of_one_that_arrives_in_parts(count: int, status: int) -> None:
    guarded = Guard(PlainTextResponse("here"), Counters(), Browsers("127.0.0.1"), "")  # type: ignore[arg-type]
    answer = TestClient(guarded).get("/models", headers={f"X-{number}": "a" * 1024 for number in range(count)})
    assert answer.status_code == status
    assert (answer.headers.get("connection") == "close") is (status == 431)
    assert TestClient(guarded).get("/models", params={"a": "b" * 1024 * count}).status_code == status


def test_the_server_fetches_nothing() -> None:
    """A request could otherwise make it ask addresses that only it reaches: no module of it opens connections."""
    folder = Path(serving.__file__).parent
    fetching = re.compile(
        r"(from|import) (urllib|http\.client|httpx|requests\b|aiohttp|boxwright\.inference\.(fetch|sources|video|stores))"
        r"|create_connection|open_connection"
    )
    modules = {path.name: path.read_text("utf-8") for path in folder.glob("*.py")}
    assert len(modules) > 10
    assert [name for name, text in modules.items() if fetching.search(text)] == []
