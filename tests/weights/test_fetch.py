"""The cache of published weights: digests, records, files carried by hand, mirrors, and several processes at once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import boxwright as bw
from boxwright.weights import fetch as module
from boxwright.weights.download import Connection
from boxwright.weights.fetch import cached_published, fetch_published, identify_published
from boxwright.weights.fetching import Fetching
from boxwright.weights.published import PublishedWeights, published_weights
from tests.weights.file_server import FileServer, Reply, file_server, ranges

FILE = "made_up.pth"
BODY = b"PK\x03\x04" + bytes(range(256)) * 4096
OTHER = b"PK\x03\x04" + bytes(reversed(range(256))) * 4096
DIGEST, OTHER_DIGEST = (hashlib.sha256(body).hexdigest() for body in (BODY, OTHER))
ENTRY = PublishedWeights(
    name="made_up",
    file=FILE,
    page="https://example.com/page",
    publisher="nobody",
    classes="coco80",
    data=("COCO 2017", "Objects365"),
    license="not stated",
    code_license="MIT",
    shown="not shown",
    terms="Objects365 is for academic purposes.",
    size=len(BODY),
    sha256=DIGEST,
    digest_by="publisher",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a working directory of its own."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("BOXWRIGHT_WEIGHTS", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    for variable in ("BOXWRIGHT_WEIGHTS_MIRROR", "BOXWRIGHT_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server(ranges(BODY)) as running:
        yield running


def at(server: FileServer, **changes: Any) -> PublishedWeights:
    return replace(ENTRY, address=f"{server.address}/{FILE}", **changes)


def unstated(server: FileServer) -> PublishedWeights:
    return at(server, size=None, sha256="", digest_by="")


def listening(**options: Any) -> tuple[Fetching, StringIO]:
    """Return a fetching that never waits, and what it says."""
    said = StringIO()
    waits = Connection(timeout=60.0, pauses=(0.0, 0.0), sleep=lambda seconds: None)
    return Fetching(connection=waits, console=Console(file=said), **options), said


def put(path: Path, body: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(body)
    return path


@contextmanager
def nothing_hashed() -> Iterator[None]:
    """Fail if a file is read through."""

    def never(*_: object) -> None:
        raise AssertionError("a file was read through")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "compute_record", never)
        yield


def test_the_line_of_a_first_fetch(server: FileServer, cache: Path) -> None:
    fetching, said = listening()
    assert fetch_published(at(server), fetching) == cache / FILE
    assert said.getvalue() == (
        f"fetching {FILE} (1.0 MB) of nobody from 127.0.0.1 into {cache}; license of the weights: not stated (the "
        "code's: MIT); trained on COCO 2017, then Objects365. Objects365 is for academic purposes.\n"
    )
    assert (cache / FILE).read_bytes() == BODY
    with nothing_hashed():
        assert fetch_published(at(server), fetching) == cache / FILE
    assert said.getvalue().count("\n") == 1
    assert len(server.requests) == 1


def test_a_bar_is_shown_on_a_terminal(server: FileServer) -> None:
    said = StringIO()
    console = Console(file=said, force_terminal=True, width=120)
    fetch_published(at(server), Fetching(console=console))
    assert re.search(r"made_up\.pth.*1\.0/1\.0 MB", said.getvalue())


def test_the_cache_is_where_it_is_said_to_be(server: FileServer, tmp_path: Path, monkeypatch: Any) -> None:
    fetching, _ = listening(cache=tmp_path / "given")
    assert fetch_published(at(server), fetching) == tmp_path / "given" / FILE
    monkeypatch.delenv("BOXWRIGHT_WEIGHTS")
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "all"))
    assert module.weights_cache() == tmp_path / "all" / "weights"
    assert cached_published(at(server)) is None
    assert cached_published(at(server), tmp_path / "given") == tmp_path / "given" / FILE


def test_a_file_that_changed_is_read_through(server: FileServer, cache: Path) -> None:
    """Another time alone is none of a change; another content is refused, and the file is left as it is."""
    path = fetch_published(at(server), listening()[0])
    os.utime(path, ns=(1, 1))
    fetch_published(at(server), listening()[0])
    with nothing_hashed():
        fetch_published(at(server), listening()[0])
    path.write_bytes(OTHER)
    os.utime(path, ns=(2, 2))
    message = f"{FILE}: its SHA-256 is {OTHER_DIGEST}, but that of made_up is {DIGEST}; fetch it again: boxwright we"
    with pytest.raises(bw.CheckpointError, match=message):
        fetch_published(at(server), listening()[0])
    assert path.read_bytes() == OTHER
    assert len(server.requests) == 1


def test_a_table_that_changed_is_heeded(server: FileServer) -> None:
    """The record alone, of a digest that another release of the table stated, vouches for nothing."""
    fetch_published(at(server), listening()[0])
    with pytest.raises(bw.CheckpointError, match=f"but that of made_up is {OTHER_DIGEST}"):
        fetch_published(at(server, sha256=OTHER_DIGEST), listening()[0])


def test_wrong_digests_of_what_arrives(server: FileServer, cache: Path) -> None:
    for stated in (OTHER_DIGEST, OTHER_DIGEST[:8]):
        with pytest.raises(bw.CheckpointError, match=f"{DIGEST}, but that of made_up is {stated}"):
            fetch_published(at(server, sha256=stated), listening()[0])
        assert {path.name for path in cache.iterdir()} <= {f".{FILE}.lock"}
    assert fetch_published(at(server, sha256=DIGEST[:8]), listening()[0]).read_bytes() == BODY
    assert json.loads((cache / "digests.json").read_text())["made_up"]["sha256"] == DIGEST


def test_a_digest_that_nobody_states_is_recorded(server: FileServer, cache: Path) -> None:
    """A file that differs later is refused, also where it is fetched into an empty folder, until it is accepted."""
    weights = unstated(server)
    path = fetch_published(weights, listening()[0])
    path.unlink()
    with file_server(ranges(OTHER)) as other:
        changed = unstated(other)
        with pytest.raises(bw.CheckpointError) as raised:
            fetch_published(changed, listening()[0])
        for part in ("made_up from", OTHER_DIGEST, DIGEST, "boxwright weights fetch made_up --again"):
            assert part in str(raised.value)
        assert "\n" not in str(raised.value)
        assert not path.exists()
        fetch_published(changed, listening(again=True)[0])
    assert path.read_bytes() == OTHER
    with nothing_hashed():
        assert fetch_published(changed, listening()[0]) == path


def test_fetching_again_without_success_keeps_the_file(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch_published(at(server), listening()[0])
    with (
        file_server(lambda asked, range_: Reply(status=404)) as gone,
        pytest.raises(bw.CheckpointError, match="404 Not Found"),
    ):
        fetch_published(at(gone), listening(again=True)[0])
    monkeypatch.setenv("BOXWRIGHT_OFFLINE", "1")
    with pytest.raises(bw.CheckpointError, match="BOXWRIGHT_OFFLINE is set"):
        fetch_published(at(server), listening(again=True)[0])
    assert fetch_published(at(server), listening()[0]) == path
    assert path.read_bytes() == BODY


def test_fetching_again_starts_again(cache: Path) -> None:
    """What an earlier attempt left may be what is wrong."""
    with file_server([ranges(OTHER, cut=5000), ranges(OTHER, cut=0)]) as server, pytest.raises(bw.CheckpointError):
        fetch_published(at(server), listening()[0])
    assert (cache / f"{FILE}.partial").read_bytes() == OTHER[:5000]
    with file_server(ranges(BODY)) as server:
        assert fetch_published(at(server), listening(again=True)[0]).read_bytes() == BODY
        assert server.requests == [(f"/{FILE}", None)]


def test_a_cache_is_copied_with_its_records(server: FileServer, cache: Path, tmp_path: Path) -> None:
    """To a machine without a connection, where times may be others: a change is noticed there, too."""
    fetch_published(unstated(server), listening()[0])
    copied = shutil.copytree(cache, tmp_path / "copied")
    os.utime(copied / FILE, ns=(1, 1))
    fetching, _ = listening(cache=copied)
    assert fetch_published(unstated(server), fetching) == copied / FILE
    put(copied / FILE, OTHER)
    os.utime(copied / FILE, ns=(2, 2))
    with pytest.raises(bw.CheckpointError, match="it has changed"):
        fetch_published(unstated(server), fetching)


@pytest.mark.parametrize("text", ["{", "[]", '{"made_up": 3}', '{"made_up": {"path": "a"}}', "\0", "[" * 100_000])
def test_damaged_records(server: FileServer, cache: Path, text: str) -> None:
    """An error, as a change could not be noticed; other files open as ever."""
    put(cache / "digests.json", text.encode())
    with pytest.raises(bw.CheckpointError, match=r"digests\.json: damaged; remove it"):
        fetch_published(unstated(server), listening()[0])
    assert identify_published(put(Path("own.pth"), BODY)) == (None, "")


def test_no_folder_for_records(server: FileServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that others filled is used as it is, and each use says that it reads the file through."""
    put(cache / FILE, BODY)

    def read_only(*_: object) -> None:
        raise bw.OutputError("digests.json: could not be written: Read-only file system")

    monkeypatch.setattr(module, "write_record", read_only)
    for weights in (at(server), unstated(server)):
        fetching, said = listening()
        assert fetch_published(weights, fetching) == cache / FILE
        assert said.getvalue() == (
            "digests.json: could not be written: Read-only file system; "
            f"the SHA-256 of {FILE}, {DIGEST}, is computed anew at each use\n"
        )
    assert [path.name for path in cache.iterdir()] == [FILE]


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not stop the superuser; the test above covers the path")
def test_a_read_only_cache(server: FileServer, cache: Path) -> None:
    fetch_published(at(server), listening()[0])
    cache.chmod(0o500)
    try:
        with nothing_hashed():
            fetch_published(at(server), listening()[0])
        with pytest.raises(bw.OutputError, match="Permission denied"):
            fetch_published(at(server, file="another.pth"), listening()[0])
    finally:
        cache.chmod(0o700)


def test_a_cache_that_cannot_be_made(server: FileServer, cache: Path) -> None:
    cache.write_bytes(b"a file")
    with pytest.raises(bw.OutputError, match="this folder cannot be created"):
        fetch_published(at(server), listening()[0])


def test_carried_into_the_cache(server: FileServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_OFFLINE", "1")
    put(cache / FILE, BODY)
    fetching, said = listening()
    assert fetch_published(at(server), fetching) == cache / FILE
    assert said.getvalue() == ""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", r"no .pth file: it begins with b'' \(empty: nothing was written"),
        (b"<!DOCTYPE html><p>quota", r"no .pth file: it begins with b'<!DOCTYP' \(a web page, not the file"),
        (BODY[:1000], "a file of 1,000 bytes, not of 1,048,580"),
    ],
)
def test_carried_and_not_the_file(server: FileServer, cache: Path, body: bytes, message: str) -> None:
    """Whether or not a digest is stated; with one, the size already tells of a copy that was cut off."""
    put(cache / FILE, body)
    for weights in (at(server), at(server, sha256="", digest_by="")):
        with pytest.raises(bw.CheckpointError, match=f"{FILE}: {message}.*; put the right file there, or remove it"):
            fetch_published(weights, listening()[0])
    assert not server.requests


def test_carried_into_the_working_directory(server: FileServer, cache: Path) -> None:
    """It is used, and that is said each time, only with the digest that is stated in full."""
    put(Path(FILE), BODY)
    fetching, said = listening()
    assert fetch_published(at(server), fetching) == Path(FILE)
    with nothing_hashed():
        assert fetch_published(at(server), fetching) == Path(FILE)
    line = f"using {FILE} in this folder, whose SHA-256 agrees with that of made_up\n"
    assert said.getvalue() == 2 * line
    assert not server.requests


def test_a_file_of_the_name_with_another_content(server: FileServer, cache: Path) -> None:
    put(Path(FILE), OTHER)
    fetching, said = listening()
    assert fetch_published(at(server), fetching) == cache / FILE
    assert said.getvalue().splitlines()[0] == (
        f"not using {FILE} in this folder: its SHA-256 is {OTHER_DIGEST}, but that of made_up is {DIGEST}"
    )
    for stated in ("", OTHER_DIGEST[:8]):
        (cache / FILE).unlink(missing_ok=True)
        (cache / "digests.json").unlink(missing_ok=True)
        fetching, said = listening()
        with pytest.raises(bw.CheckpointError) if stated else nullcontext():
            fetch_published(at(server, sha256=stated), fetching)
        assert said.getvalue().splitlines()[0] == (
            f"not using {FILE} in this folder, as no SHA-256 is stated in full that it could be compared with; if you "
            f"trust it, move it to {cache / FILE}"
        )


def test_by_hand(cache: Path) -> None:
    """Whatever the reason: name, file, bytes, address, page and the path to put it at, in a line."""
    with file_server(ranges(BODY)) as server:
        gone = at(server)
    pages = [lambda path, asked: Reply(b"<html>", headers={"Content-Type": "text/html"})]
    with file_server(pages) as quota:
        for weights, reason in ((gone, "refused"), (at(quota), "quota"), (replace(gone, address=""), "no address")):
            with pytest.raises(bw.CheckpointError) as raised:
                fetch_published(weights, listening()[0])
            said = str(raised.value)
            assert "\n" not in said
            for part in ("made_up", reason, FILE, "1,048,580 bytes", weights.address, ENTRY.page, str(cache / FILE)):
                assert part in said, part


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_offline(server: FileServer, cache: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("BOXWRIGHT_OFFLINE", value)
    with pytest.raises(bw.CheckpointError, match=f"BOXWRIGHT_OFFLINE is set.* put it at {cache / FILE}"):
        fetch_published(at(server), listening()[0])
    assert not server.requests
    assert not cache.exists()


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_not_offline(server: FileServer, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("BOXWRIGHT_OFFLINE", value)
    assert fetch_published(at(server), listening()[0]).read_bytes() == BODY


def test_a_mirror(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for what has a digest, stated or recorded, and nobody else is."""
    weights = replace(ENTRY, address="https://example.invalid/never/made_up.pth", sha256="", digest_by="")
    monkeypatch.setenv("BOXWRIGHT_WEIGHTS_MIRROR", f"{server.address}/mirror/")
    with pytest.raises(bw.CheckpointError, match="a mirror's file cannot be checked; fetch it once without BOXWRIGHT"):
        fetch_published(weights, listening()[0])
    assert not server.requests
    fetch_published(replace(weights, sha256=DIGEST), listening()[0]).unlink()
    assert fetch_published(weights, listening()[0]).read_bytes() == BODY  # by the digest that was recorded
    assert [path for path, _ in server.requests] == 2 * [f"/mirror/{FILE}"]


def test_a_mirror_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = replace(ENTRY, address="https://example.invalid/never/made_up.pth")
    for mirror in ("http://example.com/mirror", "ftp://example.com", "mirror", "https://[/", "http://localhost.evil"):
        monkeypatch.setenv("BOXWRIGHT_WEIGHTS_MIRROR", mirror)
        with pytest.raises(bw.CheckpointError, match="is not an https address") as raised:
            fetch_published(weights, listening()[0])
        assert f"could not be fetched from {mirror}".rstrip("/") in str(raised.value)


@pytest.mark.parametrize("again", [False, True])
def test_the_kind_of_what_arrives(cache: Path, again: bool) -> None:
    """It is looked at before the file has its name, also where another digest would be accepted."""
    bodies = {"a.pth": b"<?xml?>" * 9, "b.safetensors": b"PK\x03\x04" * 9, "c.tar.gz": BODY, "d.pt": b"\x1f\x8b" * 9}
    for file, body in bodies.items():
        with file_server(ranges(body)) as server:
            weights = at(server, name=file, file=file, size=None, sha256="", digest_by="")
            suffix = re.escape(Path(file).suffix)
            with pytest.raises(bw.CheckpointError, match=f"what arrived is no {suffix} file: it begins with b'"):
                fetch_published(weights, listening(again=again)[0])
        assert not (cache / file).exists()
        assert not list(cache.glob("*.partial*"))
    header = json.dumps({}).encode()
    right = {
        "e.safetensors": len(header).to_bytes(8, "little") + header,
        "f.pth": b"\x80\x02}q\x00.",
        "g.tar.gz": b"\x1f\x8b",
    }
    for file, body in right.items():
        with file_server(ranges(body)) as server:
            weights = at(server, name=file, file=file, size=None, sha256="", digest_by="")
            assert fetch_published(weights, listening(again=again)[0]).read_bytes() == body


CHILD = """
import sys
from pathlib import Path
from boxwright.weights.fetch import fetch_published
from boxwright.weights.published import find_published
print(fetch_published(find_published("made_up")))
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the table of other processes is."""
    monkeypatch.setenv("BOXWRIGHT_WEIGHTS_TABLE", str(tmp_path / "table.toml"))
    return tmp_path / "table.toml"


def write_table(path: Path, server: FileServer) -> None:
    path.write_text(
        '[made_up]\npublisher = "nobody"\npage = "https://example.com/page"\nlicense = "MIT"\ncode_license = "MIT"\n'
        f'data = ["COCO 2017"]\nclasses = "coco80"\nshown = "not shown"\naddress = "{server.address}/{{file}}"\n'
        f'[made_up.weights.made_up]\nfile = "{FILE}"\nsha256 = "{DIGEST}"\ndigest_by = "publisher"\n'
    )


def child() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_at_once(cache: Path, table: Path) -> None:
    """The second waits with a line, and uses what the first has fetched."""
    gate = threading.Event()

    def halted(path: str, asked: str | None) -> Reply:
        return Reply(BODY, cut=700_000, gate=gate)

    with ExitStack() as stack:
        server = stack.enter_context(file_server(halted))
        write_table(table, server)
        first = stack.enter_context(child())
        stack.callback(gate.set)  # before a failed test waits for the children
        assert first.stderr is not None
        assert first.stderr.readline().startswith(f"fetching {FILE}")
        second = stack.enter_context(child())
        stack.callback(gate.set)
        assert second.stderr is not None
        assert second.stderr.readline() == f"another process is fetching {FILE}: waiting for it\n"
        gate.set()
        assert [process.communicate()[0] for process in (first, second)] == 2 * [f"{cache / FILE}\n"]
        assert len(server.requests) == 1
    assert (cache / FILE).read_bytes() == BODY


def test_a_killed_process(cache: Path, table: Path) -> None:
    """It leaves neither a lock that holds the next up nor bytes that are fetched twice."""
    partial = cache / f"{FILE}.partial"

    def halted(path: str, asked: str | None) -> Reply:
        return Reply(BODY, headers={"ETag": '"1"'}, cut=700_000, stall=True)

    with file_server([halted, ranges(BODY)]) as server:
        write_table(table, server)
        with child() as process:
            while not (partial.exists() and partial.stat().st_size):
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        assert not (cache / FILE).exists()
        kept = partial.stat().st_size
        assert fetch_published(at(server), listening()[0]).read_bytes() == BODY
        assert server.requests == [(f"/{FILE}", None), (f"/{FILE}", f"bytes={kept}-")]
    assert not list(cache.glob("*.partial*"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, which is empty, and its client, which makes no connection."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


HUB_FILE = (2).to_bytes(8, "little") + b"{}"
ON_HUB = replace(
    ENTRY,
    file="made-up.safetensors",
    address="hf://nobody/made-up/model.safetensors",
    size=len(HUB_FILE),
    sha256=hashlib.sha256(HUB_FILE).hexdigest(),
)


def put_on_hub(hub: Path, body: bytes, commit: str = "0" * 40) -> Path:
    """Put a file where the hub's client keeps that of its repository."""
    repository = hub / "models--nobody--made-up"
    for folder in ("refs", "blobs", f"snapshots/{commit}"):
        (repository / folder).mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    blob = put(repository / "blobs" / hashlib.sha256(body).hexdigest(), body)
    path = repository / "snapshots" / commit / "model.safetensors"
    path.symlink_to(blob)
    return path


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "BOXWRIGHT_OFFLINE"])
def test_the_hub_offline(cache: Path, hub: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """In a line how to carry it, and no line before it says that it is fetched."""
    if variable == "BOXWRIGHT_OFFLINE":
        monkeypatch.setenv(variable, "1")
    fetching, said = listening()
    with pytest.raises(bw.CheckpointError) as raised:
        fetch_published(ON_HUB, fetching)
    for part in (
        "made_up could not be fetched: ",
        "BOXWRIGHT_OFFLINE is set" if variable == "BOXWRIGHT_OFFLINE" else str(hub),
        "Its file made-up.safetensors, 10 bytes, is at https://huggingface.co/nobody/made-up/resolve/main/model.safet",
        f"put it at {cache / 'made-up.safetensors'}",
    ):
        assert part in str(raised.value), part
    assert "\n" not in str(raised.value)
    assert said.getvalue() == ""
    carried = put(cache / "made-up.safetensors", HUB_FILE)
    assert fetch_published(ON_HUB, fetching) == carried


def test_the_hubs_cache(cache: Path, hub: Path) -> None:
    """What is in it is used without asking the hub, once its digest has been compared."""
    path = put_on_hub(hub, HUB_FILE)
    fetching, said = listening()
    assert fetch_published(ON_HUB, fetching) == path
    with nothing_hashed():
        assert fetch_published(ON_HUB, fetching) == path
    assert said.getvalue() == ""
    with pytest.raises(bw.CheckpointError, match=f"but that of made_up is {DIGEST}"):
        fetch_published(replace(ON_HUB, sha256=DIGEST), fetching)


def test_the_hubs_file_was_replaced(hub: Path) -> None:
    """Under another commit of the same branch: where no digest is stated, the one recorded tells."""
    weights = replace(ON_HUB, size=None, sha256="", digest_by="")
    put_on_hub(hub, HUB_FILE)
    fetch_published(weights, listening()[0])
    put_on_hub(hub, (3).to_bytes(8, "little") + b"{ }", "1" * 40)
    with pytest.raises(bw.CheckpointError, match=r"it has changed: .*--again$"):
        fetch_published(weights, listening()[0])


def test_what_again_accepts_of_the_hub(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another digest than the one recorded, but not another than the one stated; and the client downloads anew."""
    asked: list[bool] = []

    def fetch_model(address: object, fetching: Fetching) -> Path:
        asked.append(fetching.again)
        return hub

    monkeypatch.setattr(module, "fetch_model", fetch_model)
    put(hub / "model.safetensors", HUB_FILE)
    with pytest.raises(bw.CheckpointError, match=f"but that of made_up is {DIGEST}"):
        fetch_published(replace(ON_HUB, sha256=DIGEST), listening(again=True)[0])
    weights = replace(ON_HUB, size=None, sha256="", digest_by="")
    fetch_published(weights, listening(again=True)[0])
    put(hub / "model.safetensors", (3).to_bytes(8, "little") + b"{ }")
    assert fetch_published(weights, listening(again=True)[0]) == hub / "model.safetensors"
    assert asked == [True, True, True]


def test_a_stated_digest_identifies_a_file_of_any_name() -> None:
    """And eight digits do only with the name that states them."""
    assert identify_published(Path("nowhere")) == (None, "")
    short = next(weights for weights in published_weights() if len(weights.sha256) == 8)
    weights, digest = identify_published(put(Path(short.file), BODY))
    assert weights is None
    assert digest == DIGEST
