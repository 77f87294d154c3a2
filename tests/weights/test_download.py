"""Downloads from a server that cuts, lies, redirects, stalls and changes its file."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import boxwright as bw
from boxwright.weights import download as module
from boxwright.weights.download import Connection, UnreachableError, discard_partial, download
from tests.weights.file_server import Reply, file_server, ranges

BODY = bytes(range(256)) * 4096
DIGEST = hashlib.sha256(BODY).hexdigest()


def connection(slept: list[float] | None = None, timeout: float = 30.0) -> Connection:
    return Connection(timeout=timeout, pauses=(1.0, 2.0), sleep=(slept if slept is not None else []).append)


def fetched(address: str, target: Path, size: int | None = len(BODY), **options: Any) -> str:
    return download(address, target, size, lambda done, total: None, connection(**options))


def test_a_file_is_whole_and_its_progress_told(tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    with file_server(ranges(BODY)) as server:
        digest = download(
            f"{server.address}/a", tmp_path / "a", len(BODY), lambda *step: told.append(step), connection()
        )
    assert digest == DIGEST
    assert (tmp_path / "a").read_bytes() == BODY
    assert told[-1] == (len(BODY), len(BODY))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_cut_is_resumed_where_it_was(tmp_path: Path) -> None:
    slept: list[float] = []
    with file_server([ranges(BODY, cut=300_000), ranges(BODY, cut=200_000), ranges(BODY)]) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a", slept=slept) == DIGEST
        asked = [range_ for _, range_ in server.requests]
    assert asked == [None, "bytes=300000-", "bytes=500000-"]
    assert slept == [1.0, 1.0]  # each attempt made progress


def test_the_next_call_goes_on_where_the_last_gave_up(tmp_path: Path) -> None:
    with (
        file_server([ranges(BODY, cut=1000), ranges(BODY, cut=0)]) as server,
        pytest.raises(UnreachableError, match="1,000 bytes are kept"),
    ):
        fetched(f"{server.address}/a", tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with file_server(ranges(BODY)) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a") == DIGEST
        assert server.requests == [("/a", "bytes=1000-")]


def test_a_changed_file_is_fetched_from_its_beginning(tmp_path: Path) -> None:
    """The server answers If-Range with the whole new file; one that cannot is asked for all of it."""

    def new(path: str, asked: str | None) -> Reply:
        return Reply(BODY, headers={"ETag": '"2"'})

    with file_server([ranges(BODY[::-1], cut=5000), new]) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a") == DIGEST
    with file_server([ranges(BODY[::-1], etag=None, cut=5000), ranges(BODY)]) as server:
        assert fetched(f"{server.address}/b", tmp_path / "b") == DIGEST
        assert [range_ for _, range_ in server.requests] == [None, None]


def test_a_server_that_has_become_shorter(tmp_path: Path) -> None:
    def unsatisfiable(path: str, asked: str | None) -> Reply:
        return Reply(status=416)

    with file_server([ranges(BODY + b"more", cut=len(BODY) + 1), unsatisfiable, ranges(BODY)]) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a", size=None) == DIGEST


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ranges(BODY[:-1]), "has a file of 1,048,575 bytes, not of 1,048,576"),
        (lambda path, asked: Reply(BODY + b"x", headers={"Content-Length": None}), "more than the 1,048,576 bytes"),
        (
            lambda path, asked: Reply(b"<html>", headers={"Content-Type": "text/html"}),
            "a web page in place of the file",
        ),
        (lambda path, asked: Reply(status=404), "the server answers 404 Not Found"),
        (lambda path, asked: Reply(status=403), "the server answers 403 Forbidden"),
        (
            lambda path, asked: Reply(status=302, headers={"Location": "http://example.com/a"}),
            "is not an https address",
        ),
        (lambda path, asked: Reply(status=302, headers={"Location": path}), "redirect"),
        (lambda path, asked: Reply(BODY, headers={"Content-Length": "9" * 12}), "not of 1,048,576"),
    ],
)
def test_what_a_server_may_say(tmp_path: Path, answer: Callable[..., Reply], message: str) -> None:
    slept: list[float] = []
    with file_server(answer) as server, pytest.raises(bw.CheckpointError, match=message):
        fetched(f"{server.address}/a", tmp_path / "a", slept=slept)
    assert not (tmp_path / "a").exists()
    assert not slept


def test_an_unknown_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_CHECKPOINT_BYTES", "1000")
    for headers in ({}, {"Content-Length": None, "Transfer-Encoding": "chunked"}):
        with (
            file_server(lambda path, asked, given=headers: Reply(BODY, headers=given)) as server,  # type: ignore[misc]
            pytest.raises(bw.CheckpointError, match="more than the 1,000"),
        ):
            fetched(f"{server.address}/a", tmp_path / "a", size=None)
    discard_partial(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_errors_of_the_server_are_tried_again(tmp_path: Path) -> None:
    slept: list[float] = []
    with file_server([lambda path, asked: Reply(status=500), ranges(BODY)]) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a", slept=slept) == DIGEST
    assert slept == [1.0]


def test_a_server_that_falls_silent(tmp_path: Path) -> None:
    def silent(path: str, asked: str | None) -> Reply:
        return Reply(BODY, cut=0, stall=True)

    with file_server(silent) as server, pytest.raises(UnreachableError, match="the connection was cut"):
        fetched(f"{server.address}/a", tmp_path / "a", timeout=0.05)


def test_nobody_answers(tmp_path: Path) -> None:
    with file_server(ranges(BODY)) as server:
        gone = server.address
    with pytest.raises(UnreachableError, match="refused"):
        fetched(f"{gone}/a", tmp_path / "a")
    with pytest.raises(UnreachableError, match="is not an https address"):
        fetched("http://example.com/a", tmp_path / "a")
    with pytest.raises(UnreachableError, match="is not an https address"):
        fetched("file:///etc/hostname", tmp_path / "a")


def test_a_server_without_a_certificate_is_refused(tmp_path: Path) -> None:
    with file_server(ranges(BODY)) as server, pytest.raises(bw.CheckpointError):
        download(
            server.address.replace("http:", "https:") + "/a",
            tmp_path / "a",
            None,
            lambda done, total: None,
            Connection(context=ssl.create_default_context(), pauses=()),
        )


def test_a_full_disk_and_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with file_server(ranges(BODY)) as server:
        with pytest.raises(bw.OutputError, match="could not be written: No such file"):
            fetched(f"{server.address}/a", tmp_path / "gone" / "a")
        usage = module.shutil.disk_usage(tmp_path)
        monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage._replace(free=10))
        with pytest.raises(bw.OutputError, match="1,048,576 bytes are to come, and 10 are free"):
            fetched(f"{server.address}/a", tmp_path / "a")
