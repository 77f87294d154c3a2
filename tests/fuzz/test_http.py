"""The fuzzer of the server: requests that are nearly right are answered or refused, and what is neither is found."""

from __future__ import annotations

import httpx
import pytest

from tests.fuzz.http import _sent, fuzz_http


def written(name: str, data: bytes, what: str) -> None:
    raise AssertionError(f"{name}: {what}: {data[:500]!r}")


@pytest.mark.parametrize("count", [60, pytest.param(6000, marks=pytest.mark.slow)])
def test_some_changed_requests(count: int) -> None:
    found = fuzz_http(5, 3600, count, written)
    assert found.total() == count
    assert found["read"] > count / 20
    assert found["refused"] > count / 5


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (httpx.Response(200, text="x"), "read"),
        (httpx.Response(400, text="x"), "refused"),
        (httpx.Response(503, text="x"), "refused"),
        (httpx.Response(500, text="x"), "status 500: x"),
        (httpx.Response(400, text="Traceback (most"), "a traceback: Traceback (most"),
        (httpx.Response(400, text="x" * 6000), "an error of 6000 bytes"),
        (httpx.ReadTimeout("late"), "no answer: ReadTimeout: late"),
    ],
)
def test_what_is_a_finding(answer: httpx.Response | httpx.ReadTimeout, wanted: str) -> None:
    def answered(_: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.ReadTimeout):
            raise answer
        return answer

    with httpx.Client(transport=httpx.MockTransport(answered), base_url="http://a") as client:
        assert _sent(client, "/detect", {}, b"x", chunked=False) == wanted
