"""A hub that misbehaves, by number as in curl's tests: one line, nothing outside the cache, no secret anywhere else."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest
from huggingface_hub import constants
from rich.console import Console

import boxwright as bw
from boxwright.weights.download import Connection
from boxwright.weights.fetching import Fetching
from boxwright.weights.hub import HubAddress, cached_file, fetch_model, hub_address
from tests.api.hub_server import TOKEN
from tests.http_servers import running_server

COMMIT, OTHER = "1" * 40, "2" * 40
FILES = ["model.safetensors", "config.json", "pipeline.config", "label_map.pbtxt"]
ADDRESS = HubAddress("someone/shapes")
BODY = b"x" * 100


def info(**changes: Any) -> bytes:
    return json.dumps({"id": "someone/shapes", "sha": COMMIT, "siblings": names(*FILES), "tags": []} | changes).encode()


def names(*files: str, **more: Any) -> list[dict[str, Any]]:
    return [{"rfilename": name, **more} for name in files]


class Handler(BaseHTTPRequestHandler):
    """Answers as the hub does but for one kind of request, which `kind` names, in the way of `answer`."""

    kind = ""
    answer: ClassVar[dict[str, Any]] = {}
    requests: ClassVar[list[tuple[str, str | None]]] = []
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self.requests.append((self.path, self.headers["Authorization"]))
        kind = "info" if self.path.startswith("/api/") else "file"
        data = info() if kind == "info" else BODY
        head = {"ETag": '"a"', "X-Repo-Commit": COMMIT, "Content-Length": str(len(data))}
        status = 200
        if kind == self.kind:
            if self.answer.get("close"):
                self.close_connection = True
                return
            status, data = self.answer.get("status", 200), self.answer.get("data", data)
            head = {**head, "Content-Length": str(len(data)), **self.answer.get("head", {})}
        self.send_response(status)
        for name, value in head.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = kind == self.kind


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and an account's token."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return tmp_path / "hub"


CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "1 no words, info": ("info", {"data": b"<html>busy</html>"}, "does not answer as Hugging Face's hub does"),
    "2 another object, info": ("info", {"data": b"[1]"}, "does not answer as"),
    "3 no commit": ("info", {"data": info(sha=None)}, "does not answer as"),
    "4 a commit that leads outside": ("info", {"data": info(sha="../../../outside")}, "does not answer as"),
    "5 a file that leads outside": (
        "info",
        {"data": info(siblings=names("../../../model.safetensors", *FILES))},
        "",
    ),
    "6 an absolute file": ("info", {"data": info(siblings=names("/tmp/model.safetensors", *FILES))}, ""),
    "7 files of another type": ("info", {"data": info(siblings=[1, None])}, "does not answer as"),
    "8 an error, info": ("info", {"status": 500, "data": b"x"}, "cannot be reached (the server answers 500 "),
    "9 nothing, info": ("info", {"close": True}, "cannot be reached (no answer"),
    "10 cut off, info": ("info", {"head": {"Content-Length": "100000"}}, "the connection was cut"),
    "11 another encoding, info": ("info", {"data": b"\x1f\x8b\x08", "head": {"Content-Encoding": "gzip"}}, "does not"),
    "12 an error with secrets": (
        "info",
        {"status": 400, "data": f"no {TOKEN}\n\x1b[2J".encode()},
        "the server answers 400 Bad Request",
    ),
    "13 no length, file": ("file", {"head": {"Content-Length": ""}}, "does not say how long the file is"),
    "14 no tag, file": ("file", {"head": {"ETag": ""}}, ""),
    "15 a tag that leads outside": ("file", {"head": {"ETag": '"../../../outside"'}}, ""),
    "16 another commit, file": ("file", {"head": {"X-Repo-Commit": "../../../outside"}}, ""),
    "17 to a file": (
        "file",
        {"status": 302, "head": {"Location": "file:///etc/passwd"}},
        "a redirect without an end, or to nowhere",
    ),
    "18 an error, file": ("file", {"status": 503}, "could not be fetched: the server answers 503 "),
    "19 cut off, file": ("file", {"data": b"x" * 50, "head": {"Content-Length": "100"}}, "after 50 of 100 bytes"),
    "20 more than was listed, file": (
        "info",
        {"data": info(siblings=names(*FILES, size=99))},
        "the server has a file of 100 bytes, not of 99",
    ),
    "21 nothing, file": ("file", {"close": True}, "could not be fetched: no answer"),
    "22 a file that is listed and not there": (
        "file",
        {"status": 404, "head": {"X-Error-Code": "EntryNotFound"}},
        "a file that the hub lists is not there",
    ),
    "23 a size that is none": ("info", {"data": info(siblings=names(*FILES, size=-1))}, "does not answer as"),
    "24 on another machine, info": (
        "info",
        {"status": 302, "head": {"Location": "http://127.0.0.1:1/a"}},
        "cannot be reached",
    ),
    "25 a head without end": (
        "file",
        {"head": {f"X-{number}": "a" * 60_000 for number in range(3)}},
        "",
    ),
    "26 another file than was listed": (
        "info",
        {"data": info(siblings=names(*FILES, lfs={"sha256": "0" * 64}))},
        f"its SHA-256 is {hashlib.sha256(BODY).hexdigest()}, and not 0000",
    ),
    "27 a list without end": ("info", {"data": b" " * (1 << 24) + info()}, "answer is longer than 16,777,216 bytes"),
    "28 nested without end": ("info", {"data": b"[" * 1_000_000}, "does not answer as"),
}


@contextmanager
def hub(kind: str, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Handler]]:
    """Run a hub in the real one's place; yield what has its requests."""
    handler = type("One", (Handler,), {"kind": kind, "answer": answer, "requests": []})
    with running_server(handler) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        yield handler


def fetched(address: HubAddress = ADDRESS, *, again: bool = False) -> tuple[Path | str, str]:
    """Return the folder that was fetched, or the error; and what was said."""
    said = io.StringIO()
    try:
        return fetch_model(
            address, Fetching(connection=Connection(timeout=5, pauses=()), again=again, console=Console(file=said))
        ), said.getvalue()
    except bw.BoxwrightError as error:
        return str(error), said.getvalue()


@pytest.mark.parametrize("name", CASES)
def test_a_hub_that_misbehaves(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, answer, problem = CASES[name]
    with hub(kind, answer, monkeypatch):
        found, said = fetched()
    assert {path.name for path in cache.parent.iterdir()} <= {"hub"}
    if problem:
        assert problem in str(found)
        assert "\n" not in str(found)
        assert TOKEN not in str(found) + said
        assert cached_file(ADDRESS, FILES[0]) is None
    else:
        assert isinstance(found, Path), found
        assert found.resolve().is_relative_to(cache.resolve())
        assert sorted(path.name for path in found.iterdir()) == sorted(FILES)
        assert {(found / name).read_bytes() for name in FILES} == {BODY}


def test_a_hub_that_behaves(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cases above change one thing of; the second time only the commit is asked for."""
    with hub("", {}, monkeypatch) as handler:
        found, _ = fetched()
        assert isinstance(found, Path), found
        assert found == cache / "models--someone--shapes" / "snapshots" / COMMIT
        assert sorted(path.name for path in found.iterdir()) == sorted(FILES)
        asked = [path for path, _ in handler.requests]
        assert asked[0] == "/api/models/someone/shapes?blobs=true"
        # The weights last: a cache that has them has the rest.
        assert asked[-1] == f"/someone/shapes/resolve/{COMMIT}/model.safetensors"
        assert {secret for _, secret in handler.requests} == {f"Bearer {TOKEN}"}
        handler.requests.clear()
        assert fetched()[0] == found
        assert [path for path, _ in handler.requests] == asked[:1]
        assert fetched(again=True)[0] == found
        assert [path for path, _ in handler.requests] == [asked[0], *asked]


def test_what_the_hubs_own_tools_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is read where it is, through the links of that cache, and only what is not there is fetched."""
    from huggingface_hub import scan_cache_dir

    repository = cache / "models--someone--shapes"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "b").write_bytes(b"theirs")
    (snapshot / "config.json").symlink_to(repository / "blobs" / "b")
    with hub("", {}, monkeypatch) as handler:
        assert fetched()[0] == snapshot
    assert (snapshot / "config.json").read_bytes() == b"theirs"
    assert len(handler.requests) == len(FILES)
    found = scan_cache_dir(cache)
    assert not found.warnings
    (revision,) = next(iter(found.repos)).revisions
    assert (revision.commit_hash, set(revision.refs)) == (COMMIT, {"main"})
    assert {file.file_name for file in revision.files} == set(FILES)


def test_a_hub_that_is_gone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was fetched last is used, which a line says; without a connection on purpose none does."""
    with hub("", {}, monkeypatch):
        folder, _ = fetched()
    found, said = fetched()
    assert found == folder
    assert "hf://someone/shapes: the hub cannot be reached (" in said
    assert "using what was fetched last" in said
    monkeypatch.setenv("BOXWRIGHT_OFFLINE", "1")
    assert fetched() == (folder, "")
    found, _ = fetched(HubAddress("someone/shapes", "better"))
    assert str(found) == (
        f"hf://someone/shapes@better: the hub cannot be reached, and {cache} does not hold it: connect once, or copy "
        "the cache of a machine that has it to there"
    )


def test_the_token_goes_to_the_hub_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the hub redirects to another server, as it does for large files, that gets none; its own paths do."""
    with running_server(type("Far", (Handler,), {"requests": (far := [])})) as elsewhere:
        for target, expected in ((f"{elsewhere}/far", []), ("/near", [f"Bearer {TOKEN}"])):
            answer = {"status": 302, "head": {"Location": target}}
            with hub("file", answer, monkeypatch) as handler:
                fetched(again=True)
            assert all(secret == f"Bearer {TOKEN}" for _, secret in handler.requests)
            assert [secret for path, secret in handler.requests if path == "/near"][:1] == expected
    assert [path for path, _ in far] == ["/far"] * len(FILES)
    assert {secret for _, secret in far} == {None}


def test_revisions(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch is noted in the cache by its name; a commit has to be the one that was asked for."""
    with hub("", {}, monkeypatch) as handler:
        assert isinstance(fetched(HubAddress("someone/shapes", "refs/pr/1"))[0], Path)
        assert handler.requests[0][0] == "/api/models/someone/shapes/revision/refs%2Fpr%2F1?blobs=true"
        assert (cache / "models--someone--shapes" / "refs" / "refs" / "pr" / "1").read_text() == COMMIT
        found, _ = fetched(HubAddress("someone/shapes", OTHER))
        assert str(found).endswith(f"the hub answers with another commit, {COMMIT}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert isinstance(fetched(HubAddress("someone/shapes", COMMIT))[0], Path)
    # What stands there is not believed either.
    (cache / "models--someone--shapes" / "refs" / "main").write_text("../../../outside")
    assert "cannot be reached" in str(fetched()[0])


@pytest.mark.parametrize("text", ["hf://a/b@../c", "hf://a/b@c/../d", "hf://a/b@/etc", "hf://a--b/c", "hf://.a/b"])
def test_addresses_that_would_lead_outside(text: str) -> None:
    with pytest.raises(bw.CheckpointError, match="expected hf://USER/NAME or hf://USER/NAME@REVISION"):
        hub_address(text)


@pytest.mark.parametrize(
    ("code", "status", "problem"),
    [
        ("GatedRepo", 403, "access has to be requested on its page first; then log in with `hf auth login`"),
        ("RepoNotFound", 401, "no such repository, or it is private: then log in"),
        ("RevisionNotFound", 404, "the repository has no branch, tag or commit of that name"),
    ],
)
@pytest.mark.parametrize("kind", ["info", "file"])
def test_what_the_hub_does_not_give(
    code: str, status: int, problem: str, kind: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub(kind, {"status": status, "head": {"X-Error-Code": code}}, monkeypatch):
        assert problem in str(fetched()[0])


def test_addresses_and_tokens_that_are_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "https://me:secret@hub.example")
    assert str(fetched()[0]) == "HF_ENDPOINT has a user in its address; set HF_TOKEN instead"
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.example")
    assert "(http://hub.example/api/models/someone/shapes is not an https address)" in str(fetched()[0])
    monkeypatch.setenv("HF_TOKEN", "hf_\u00e4secret")
    assert str(fetched()[0]) == "the hub's token has characters that no token has; set HF_TOKEN anew"
