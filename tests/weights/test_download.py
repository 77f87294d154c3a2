"""Downloads from a server that cuts, lies, redirects, stalls and changes its file."""

from __future__ import annotations

import datetime
import errno
import hashlib
import ipaddress
import os
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import boxwright as bw
from boxwright.weights import download as module
from boxwright.weights.download import Connection, UnreachableError, discard_partial, download
from tests.weights.file_server import Answer, Reply, file_server, ranges

BODY = bytes(range(256)) * 4096
OTHER = BODY[::-1]
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine's proxy is, it does not lead to this machine."""
    monkeypatch.setenv("NO_PROXY", "*")


def connection(slept: list[float] | None = None, timeout: float = 30.0) -> Connection:
    """Return a connection that notes its pauses; attempts without an end are an error."""
    noted = [] if slept is None else slept

    def sleep(seconds: float) -> None:
        noted.append(seconds)
        assert len(noted) < 50

    return Connection(timeout=timeout, pauses=(1.0, 2.0), sleep=sleep)


def fetched(address: str, target: Path, size: int | None = len(BODY), **options: Any) -> str:
    return download(address, target, size, lambda done, total: None, connection(**options))


def cut_off(target: Path, body: bytes, after: int, etag: str | None = '"1"') -> None:
    """Leave what an attempt leaves that is cut after some bytes of a file."""
    with file_server(ranges(body, etag=etag, cut=after)) as server, pytest.raises(UnreachableError):
        download(f"{server.address}/a", target, None, lambda done, total: None, Connection(pauses=()))
    assert target.with_name(f"{target.name}.partial").read_bytes() == body[:after]


def test_a_file_is_whole_and_its_progress_told(tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    with file_server(ranges(BODY)) as server:
        digest = download(
            f"{server.address}/a", tmp_path / "a", len(BODY), lambda *step: told.append(step), connection()
        )
    assert digest == DIGEST
    assert (tmp_path / "a").read_bytes() == BODY
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (len(BODY), len(BODY))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert server.headers[0]["User-Agent"] == f"boxwright/{version('boxwright')}"


def test_a_cut_is_resumed_where_it_was(tmp_path: Path) -> None:
    slept: list[float] = []
    with file_server([ranges(BODY, cut=300_000), ranges(BODY, cut=200_000), ranges(BODY)]) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a", slept=slept) == DIGEST
        asked = [range_ for _, range_ in server.requests]
    assert asked == [None, "bytes=300000-", "bytes=500000-"]
    assert [headers.get("If-Range") for headers in server.headers] == [None, '"1"', '"1"']
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


@pytest.mark.parametrize("size", [None, len(BODY)])
def test_a_complete_file_is_not_fetched_again(tmp_path: Path, size: int | None) -> None:
    """One whose process ended before it got its name; of an unknown size, the server says that nothing is missing."""
    cut_off(tmp_path / "a", BODY + b"!", len(BODY))
    with file_server(ranges(BODY)) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a", size) == DIGEST
        assert [range_ for _, range_ in server.requests] == ([f"bytes={len(BODY)}-"] if size is None else [])


def test_a_complete_file_of_another_version(tmp_path: Path) -> None:
    """Of the same length, of a server that does not heed If-Range: its tag alone tells."""
    cut_off(tmp_path / "a", OTHER + b"!", len(OTHER))
    with file_server(ranges(BODY, etag='"2"')) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a", size=None) == DIGEST
        assert [range_ for _, range_ in server.requests] == [f"bytes={len(BODY)}-", None]


def test_small_steps_do_not_go_on_for_ever(tmp_path: Path) -> None:
    """Neither those of a few bytes, nor ends that come now sooner, now later, of a server without ranges."""
    slept: list[float] = []
    with file_server(ranges(BODY, cut=1)) as server, pytest.raises(UnreachableError, match="3 bytes are kept"):
        fetched(f"{server.address}/a", tmp_path / "a", slept=slept)
    assert slept == [1.0, 2.0]

    def without_ranges(cut: int) -> Answer:
        return lambda path, asked: Reply(BODY, cut=cut)

    cuts = [without_ranges(cut) for cut in [300_000, 100_000] * 10]
    with file_server(cuts) as server, pytest.raises(UnreachableError, match="the connection ended after"):
        fetched(f"{server.address}/b", tmp_path / "b")
    assert len(server.requests) == 3  # the first made progress, and the two after its pauses did not


def test_a_changed_file_is_fetched_from_its_beginning(tmp_path: Path) -> None:
    """The server answers If-Range with the whole new file; one that cannot is asked for all of it."""

    def new(path: str, asked: str | None) -> Reply:
        return Reply(BODY, headers={"ETag": '"2"'})

    with file_server([ranges(OTHER, cut=5000), new]) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a") == DIGEST
    with file_server([ranges(OTHER, etag=None, cut=5000), ranges(BODY)]) as server:
        assert fetched(f"{server.address}/b", tmp_path / "b") == DIGEST
        assert [range_ for _, range_ in server.requests] == [None, None]


def test_a_server_that_does_not_heed_if_range(tmp_path: Path) -> None:
    """Its tag or its range tells that the rest is not of the bytes that are here."""
    with file_server([ranges(OTHER, cut=5000), ranges(BODY, etag='"2"')]) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a") == DIGEST
        assert [range_ for _, range_ in server.requests] == [None, "bytes=5000-", None]

    def elsewhere(path: str, asked: str | None) -> Reply:
        return Reply(BODY[4000:], 206, {"ETag": '"1"', "Content-Range": f"bytes 4000-{len(BODY) - 1}/{len(BODY)}"})

    with file_server([ranges(BODY, cut=5000), elsewhere, ranges(BODY)]) as server:
        assert fetched(f"{server.address}/b", tmp_path / "b") == DIGEST


def test_a_tag_is_that_of_the_bytes_beside_it(tmp_path: Path) -> None:
    """The new version is cut, too: its tag, not that of the old bytes, is asked for the rest."""
    cut_off(tmp_path / "a", OTHER, 5000)

    def new(path: str, asked: str | None) -> Reply:
        return Reply(BODY, headers={"ETag": '"2"'}, cut=0)

    with file_server([new, ranges(BODY, etag='"2"')]) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a") == DIGEST
    weak = ranges(BODY, etag='W/"1"', cut=5000)
    with file_server([weak, ranges(BODY)]) as server:
        assert fetched(f"{server.address}/b", tmp_path / "b") == DIGEST
        assert [range_ for _, range_ in server.requests] == [None, None]


def test_a_server_that_sends_short_ranges(tmp_path: Path) -> None:
    """What is missing is known from the range's total."""

    def at_most(path: str, asked: str | None) -> Reply:
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        part = BODY[start : start + 400_000]
        span = f"bytes {start}-{start + len(part) - 1}/{len(BODY)}"
        return Reply(part, 206, {"ETag": '"1"', "Content-Range": span})

    with file_server([ranges(BODY, cut=10), at_most]) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a", None) == DIGEST
        assert [range_ for _, range_ in server.requests] == [None, "bytes=10-", "bytes=400010-", "bytes=800010-"]


def test_a_server_that_has_become_shorter(tmp_path: Path) -> None:
    cut_off(tmp_path / "a", BODY + b"more", len(BODY) + 1)
    with file_server(ranges(BODY, etag='"2"')) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a", size=None) == DIGEST
        assert [range_ for _, range_ in server.requests] == [f"bytes={len(BODY) + 1}-", None]


def redirect(location: str) -> Answer:
    return lambda path, asked: Reply(status=302, headers={"Location": location})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ranges(BODY[:-1]), "has a file of 1,048,575 bytes, not of 1,048,576"),
        (lambda path, asked: Reply(BODY + b"x", headers={"Content-Length": None}), "more than the 1,048,576 bytes"),
        (lambda path, asked: Reply(BODY + b"x", chunked=True), "more than the 1,048,576 bytes"),
        (
            lambda path, asked: Reply(b"<html>", headers={"Content-Type": "text/html; charset=utf-8"}),
            "127.0.0.1 answers with a web page in place of the file.*quota.*try later, or fetch it by hand",
        ),
        (lambda path, asked: Reply(status=404), "the server answers 404 Not Found$"),
        (lambda path, asked: Reply(b"<Error><Code>AccessDenied", 403), "the server answers 403 Forbidden$"),
        (lambda path, asked: Reply(status=204, headers={"Content-Length": None}), "204 No Content, which nobody asked"),
        (lambda path, asked: Reply(BODY[:9], 206), "206 Partial Content, which nobody asked"),
        (redirect("http://example.com/a"), "http://example.com/a is not an https address"),
        (redirect("ftp://example.com/a"), "ftp://example.com/a is not an https address"),
        (redirect("file:///etc/hostname"), "302 a redirect without an end, or to nowhere$"),
        (lambda path, asked: Reply(status=302, headers={"Location": path}), "302 a redirect without an end, or to now"),
        (lambda path, asked: Reply(status=302), "302 a redirect without an end, or to nowhere$"),
        (lambda path, asked: Reply(BODY, headers={"Content-Length": "9" * 12}), "not of 1,048,576"),
    ],
)
def test_what_a_server_may_say(tmp_path: Path, answer: Callable[..., Reply], message: str) -> None:
    slept: list[float] = []
    with file_server(answer) as server, pytest.raises(bw.CheckpointError, match=message) as raised:
        fetched(f"{server.address}/a", tmp_path / "a", slept=slept)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())
    assert not slept


def test_a_redirect_is_followed_and_resumed(tmp_path: Path) -> None:
    """As a release's address leads to one that is signed anew for each request."""
    with (
        file_server([ranges(BODY, cut=5000), ranges(BODY)]) as server,
        file_server(redirect(f"{server.address}/signed")) as first,
    ):
        assert fetched(f"{first.address}/a", tmp_path / "a") == DIGEST
        assert server.requests == [("/signed", None), ("/signed", "bytes=5000-")]


def test_an_unknown_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_CHECKPOINT_BYTES", "1000")
    for reply in (Reply(BODY), Reply(BODY, chunked=True)):
        with (
            file_server(lambda path, asked, given=reply: given) as server,  # type: ignore[misc]
            pytest.raises(bw.CheckpointError, match="more than the 1,000"),
        ):
            fetched(f"{server.address}/a", tmp_path / "a", size=None)
        assert not list(tmp_path.iterdir())


def test_an_end_that_cannot_be_known_is_refused(tmp_path: Path) -> None:
    """A cut would look as the end of the file does; a chunk's end is known, and so is a cut in it."""
    with file_server(lambda path, asked: Reply(BODY, headers={"Content-Length": None})) as server:
        with pytest.raises(bw.CheckpointError, match="does not say how long the file is"):
            fetched(f"{server.address}/a", tmp_path / "a", size=None)
        assert fetched(f"{server.address}/a", tmp_path / "a") == DIGEST  # the size is stated
    cut = Reply(BODY, headers={"ETag": '"1"'}, chunked=True, cut=len("100000\r\n") + 90_000)
    with file_server([lambda path, asked: cut, ranges(BODY)]) as server:
        assert fetched(f"{server.address}/b", tmp_path / "b", size=None) == DIGEST
        assert [range_ for _, range_ in server.requests] == [None, "bytes=90000-"]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_errors_of_the_server_are_tried_again(tmp_path: Path, status: int) -> None:
    slept: list[float] = []
    with file_server([lambda path, asked: Reply(status=status), ranges(BODY)]) as server:
        assert fetched(f"{server.address}/a", tmp_path / "a", slept=slept) == DIGEST
    assert slept == [1.0]
    with (
        file_server(lambda path, asked: Reply(status=status)) as server,
        pytest.raises(UnreachableError, match=f"^the server answers {status} "),
    ):
        fetched(f"{server.address}/b", tmp_path / "b")
    assert len(server.requests) == 3


@pytest.mark.parametrize("after", [0, 5000])
def test_a_server_that_falls_silent(tmp_path: Path, after: int) -> None:
    def silent(path: str, asked: str | None) -> Reply:
        return Reply(BODY, cut=after, stall=True)

    # On a busy machine the answer itself may come too late, which is said in other words.
    with file_server(silent) as server, pytest.raises(UnreachableError, match="timed out"):
        fetched(f"{server.address}/a", tmp_path / "a", timeout=0.05)
    assert not (tmp_path / "a").exists()


def test_nobody_answers(tmp_path: Path) -> None:
    slept: list[float] = []
    with file_server(ranges(BODY)) as server:
        gone = server.address
    with pytest.raises(UnreachableError, match="refused"):
        fetched(f"{gone}/a", tmp_path / "a", slept=slept)
    for address in ("http://example.com/a", "file:///etc/hostname", "https://", "https://[/a", "a.pth"):
        with pytest.raises(UnreachableError, match="is not an https address"):
            fetched(address, tmp_path / "a", slept=slept)
    assert not slept


def test_a_network_that_is_gone_for_a_while(tmp_path: Path) -> None:
    """Once there was a connection, one that cannot be made is waited for."""
    slept: list[float] = []
    with ExitStack() as stack:
        server = stack.enter_context(file_server(ranges(BODY, cut=300_000)))

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            stack.close()

        with pytest.raises(UnreachableError, match="refused; 300,000 bytes are kept, and the next attempt goes on"):
            download(
                f"{server.address}/a",
                tmp_path / "a",
                len(BODY),
                lambda done, total: None,
                Connection(pauses=(1.0, 2.0), sleep=sleep),
            )
    assert slept == [1.0, 2.0]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of this machine and its key, that nobody has signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("certificate") / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture(scope="module")
def secure(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_certificates(tmp_path: Path, certificate: Path, secure: ssl.SSLContext, monkeypatch: Any) -> None:
    """One that nobody signed is refused; one that is trusted, by a context or the platform's variable, is not."""
    with file_server(ranges(BODY), secure) as server:
        with pytest.raises(UnreachableError, match="its certificate is not trusted .*SSL_CERT_FILE names further"):
            fetched(f"{server.address}/a", tmp_path / "a")
        assert not server.requests
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert fetched(f"{server.address}/a", tmp_path / "a") == DIGEST
        trusting = Connection(context=ssl.create_default_context(cafile=str(certificate)))
        monkeypatch.delenv("SSL_CERT_FILE")
        assert (
            download(f"{server.address}/b", tmp_path / "b", None, lambda done, total: None, trusting)
            == hashlib.sha256(BODY).hexdigest()
        )


def test_a_secure_server_does_not_lead_to_a_plain_one(
    tmp_path: Path, certificate: Path, secure: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even of this machine, where a stranger could then choose what is asked."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with (
        file_server(ranges(BODY)) as plain,
        file_server(redirect(f"{plain.address}/a"), secure) as server,
        pytest.raises(UnreachableError, match=r"http://127.0.0.1:\d+/a is not an https address"),
    ):
        fetched(f"{server.address}/a", tmp_path / "a")
    assert not plain.requests


def test_a_server_without_tls_is_refused(tmp_path: Path) -> None:
    with file_server(lambda path, asked: Reply(BODY)) as server, pytest.raises(UnreachableError):
        fetched(server.address.replace("http:", "https:") + "/a", tmp_path / "a")


def test_a_file_that_is_refused_leaves_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"before")
    seen: list[tuple[bytes, str]] = []

    def refuse(path: Path, digest: str) -> None:
        seen.append((path.read_bytes(), digest))
        raise bw.CheckpointError("another file")

    with file_server(ranges(BODY)) as server, pytest.raises(bw.CheckpointError, match="another file"):
        download(f"{server.address}/a", tmp_path / "a", None, lambda done, total: None, connection(), refuse)
    assert seen == [(BODY, DIGEST)]
    assert (tmp_path / "a").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is before, and as it turns out to be when the bytes are flushed."""
    with file_server(ranges(BODY)) as server:
        usage = module.shutil.disk_usage(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(module.shutil, "disk_usage", lambda path: usage._replace(free=10))
            with pytest.raises(bw.OutputError, match="1,048,576 bytes are to come, and 10 are free"):
                fetched(f"{server.address}/a", tmp_path / "a")

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(bw.OutputError, match="/a: could not be written: No space left on device$"):
            fetched(f"{server.address}/a", tmp_path / "a")
    assert not (tmp_path / "a").exists()
    discard_partial(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with file_server(ranges(BODY)) as server:
        with pytest.raises(bw.OutputError, match="could not be written: No such file"):
            fetched(f"{server.address}/a", tmp_path / "gone" / "a")
        (tmp_path / "file").touch()
        with pytest.raises(bw.OutputError, match="could not be written: Not a directory"):
            fetched(f"{server.address}/a", tmp_path / "file" / "a")


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not stop the superuser; the test above covers the path")
def test_a_read_only_folder(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o500)
    with file_server(ranges(BODY)) as server, pytest.raises(bw.OutputError, match="could not be written: Permission"):
        fetched(f"{server.address}/a", tmp_path / "cache" / "a")
