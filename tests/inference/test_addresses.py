"""Addresses with passwords and tokens, and servers that misbehave: by the number of a case, as curl's tests have them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from boxwright.base.errors import CheckpointError, DataError
from boxwright.cli.console import LogLines
from boxwright.data.image_io import encode_png
from boxwright.inference.fetch import fetch_image
from boxwright.inference.predict import predict
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.sources import VideoSource, WebImageSource, find_sources
from boxwright.inference.video import open_video_for_writing
from boxwright.weights.download import Connection, download
from tests.http_servers import running_server
from tests.inference.blobs import find_blobs, picture_of

IMAGE = encode_png(picture_of([(10, 10, 30, 30)], 60, 80))
OK = b"HTTP/1.1 200 OK\r\n"
SECRETS = ("user", "pass-word", "tok-en")


def answers(content: bytes, kind: bytes) -> list[tuple[bytes, str]]:
    """List what a server sends, and what is said of an image then; nothing where it arrives, which weights then do, too."""
    kind, length = b"Content-Type: %b\r\n" % kind, b"Content-Length: %d\r\n" % len(content)
    return [
        (OK + kind + length + b"\r\n" + content, ""),
        (OK + kind + b"\r\n" + content, ""),  # ended by closing
        (OK + kind + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(content) + content + b"\r\n0\r\n\r\n", ""),
        (OK + length + b"\r\n" + content, ""),
        (OK + kind + b"Content-Length: 99999\r\n\r\n" + content, "the download broke off after"),
        (OK + kind + b"Transfer-Encoding: chunked\r\n\r\n99999\r\n" + content, "cannot be fetched"),
        (OK + kind + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n" + content, "cannot be fetched"),
        (OK + kind + b"Content-Length: 999999999999\r\n\r\n", "BOXWRIGHT_MAX_DOWNLOAD_BYTES"),
        (OK + kind + b"Content-Length: \xb2\r\n\r\n" + content, ""),  # no number: to the end
        (OK + b"Content-Type: text/html\r\n\r\n<html>", "expected an image, found text/html"),
        (OK + kind + b"X: " + b"a" * 70_000 + b"\r\n\r\n" + content, "cannot be fetched"),
        (OK + b"".join(b"X%d: a\r\n" % number for number in range(200)) + b"\r\n", "cannot be fetched"),
        (b"", "cannot be fetched"),
        (b"HTTP/1.1 200", "the server sent nothing"),
        (b"SSH-2.0-OpenSSH\r\n", "cannot be fetched"),
        (b"HTTP/1.1 999 \x1b]0;title\x07\r\n\r\n", r"the server returned 999 \\u001b\]0;title\\u0007"),
        (b"HTTP/1.1 401 Who\r\nContent-Length: 0\r\n\r\n", "the server returned 401"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "not allowed"),
        (b"HTTP/1.1 302 Found\r\nLocation: ftp://h/a\r\n\r\n", "expected a URL that begins with http"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://[::1/a\r\n\r\n", "not a URL|cannot be fetched"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://user:pass-word@127.0.0.1:1/?t=tok-en\r\n\r\n", "cannot be fetched"),
        (b"HTTP/1.1 302 Found\r\n\r\n", "the server returned 302"),
        (OK + kind + b"Content-Encoding: gzip\r\n" + length + b"\r\n" + content, ""),
    ]


def encode_video() -> bytes:
    """Return a video of three frames."""
    with TemporaryDirectory() as folder:
        with open_video_for_writing(Path(folder, "a.mp4")) as writer:
            for number in range(3):
                writer.write(picture_of([(10, 10, 30, 30)], 60, 80), number / 20)
        return Path(folder, "a.mp4").read_bytes()


CASES = answers(IMAGE, b"image/png")


# FFmpeg takes a connection that is closed for the end of a video only where the server states its length, if as no number.
WHOLE_VIDEOS = (0, 2, 3, 8)


@cache
def video_answers() -> list[tuple[bytes, str]]:
    return answers(encode_video(), b"video/mp4")


class Handler(BaseHTTPRequestHandler):
    """Answers as the case says whose number the path has; elsewhere, only a user whose password is known."""

    asked: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization", "")))
        name, _, suffix = urlsplit(self.path).path.strip("/").partition(".")
        cases = video_answers() if suffix == "mp4" else CASES
        self.wfile.write(cases[int(name) if name.isdigit() else 0][0])
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_server(Handler) as address:
        yield address


def with_secrets(address: str, path: str) -> str:
    user, password, token = SECRETS
    return f"{address.replace('://', f'://{user}:{password}@')}/{path}?token={token}"


def require_none(text: str) -> None:
    assert not [secret for secret in SECRETS if secret in text], text


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_server_that_misbehaves(number: int, server: str) -> None:
    """It ends in a line, without what gives access, whatever it sends."""
    answer, wanted = CASES[number]
    address = with_secrets(server, f"{number}.png")
    if not wanted:
        assert fetch_image(address) == IMAGE, answer
        return
    with pytest.raises(DataError, match=wanted) as refused:
        fetch_image(address)
    require_none(str(refused.value))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_server_that_misbehaves_towards_a_video(number: int, server: str) -> None:
    """Frames arrive, or it ends in a line without what gives access."""
    frames = islice(VideoSource(with_secrets(server, f"{number}.mp4")).frames(), 2)
    if number in WHOLE_VIDEOS:
        assert [frame.image.shape for frame in frames] == [(60, 80, 3)] * 2
        return
    with pytest.raises(DataError) as refused:
        list(frames)
    require_none(str(refused.value))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_server_that_misbehaves_towards_weights(number: int, server: str, tmp_path: Path) -> None:
    """The file is whole where an image is, or refused in a line without what gives access, and is not there."""

    def fetch() -> None:
        download(f"{server}/{number}.bin", tmp_path / "a", len(IMAGE), lambda *_: None, Connection(pauses=()))

    if not CASES[number][1]:
        fetch()
        assert (tmp_path / "a").read_bytes() == IMAGE
        return
    with pytest.raises(CheckpointError) as refused:
        fetch()
    require_none(str(refused.value))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "a").exists()


def test_what_is_written_of_an_address_gives_no_access(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In all result files, names of pictures, and the log; the server is asked with all of it."""
    Handler.asked.clear()
    settings = PredictionSettings(as_json=True, coco=True, csv=True)
    predict(find_blobs, find_sources([with_secrets(server, "a.png")]), tmp_path, settings)
    assert Handler.asked == [("/a.png?token=tok-en", "Basic dXNlcjpwYXNzLXdvcmQ=")]
    written = {path.name: path.read_bytes().decode("latin-1") for path in tmp_path.iterdir()}
    assert set(written) == {"a.jpg", "detections.json", "coco.json", "detections.csv"}
    for text in written.values():
        require_none(text)
    assert {row["file_name"] for row in json.loads(written["detections.json"])} == {f"{server}/a.png"}
    LogLines().emit(logging.LogRecord("", 30, "", 0, "%s: connecting again", (with_secrets(server, "a.png"),), None))
    require_none(capsys.readouterr().out)


@pytest.mark.parametrize("kind", [VideoSource, lambda address: find_sources([address])[0]])
def test_errors_of_streams_and_videos_give_no_access(kind: Any) -> None:
    source = kind("rtsp://user:pass-word@127.0.0.1:9/a?token=tok-en")
    assert source.name == "rtsp://127.0.0.1:9/a"
    with pytest.raises(DataError, match="rtsp://127.0.0.1:9/a: cannot be opened") as refused:
        next(iter(source.frames()))
    require_none(str(refused.value))


def test_an_address_that_is_none() -> None:
    for address in ("http://[::1/x.png", "http://h:port/x.png"):
        with pytest.raises(DataError, match="not a URL"):
            find_sources([address])


def test_a_web_image_is_asked_for_by_its_whole_address() -> None:
    (source,) = find_sources(["https://user:pass-word@h/a.png?t=1"])
    assert isinstance(source, WebImageSource)
    assert (source.name, source.address) == ("https://h/a.png", "https://user:pass-word@h/a.png?t=1")
