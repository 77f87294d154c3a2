"""Images on a web server: one that this test starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest

from boxwright.base.errors import DataError
from boxwright.data.image_io import encode_png
from boxwright.inference.fetch import fetch_image, names_image
from boxwright.inference.predict import predict
from boxwright.inference.sources import VideoSource, WebImageSource, find_sources
from tests.http_servers import running_server
from tests.inference.blobs import find_blobs, picture_of

IMAGE = encode_png(picture_of([(10, 10, 30, 30)], 60, 80))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/to-image", "/to-file", "/to-ftp", "/round"):
            self.send_response(302)
            targets = {
                "/to-image": "/a.png",
                "/to-file": "file:///etc/passwd",
                "/to-ftp": "ftp://h/a",
                "/round": "/round",
            }
            self.send_header("Location", targets[path])
            self.end_headers()
            return
        if path == "/none.jpg":
            self.send_error(404)
            return
        kinds = {"/page.jpg": "text/html", "/unsaid.png": "application/octet-stream"}
        self.send_response(200)
        self.send_header("Content-Type", kinds.get(path, "image/png; charset=binary"))
        if path != "/endless.png":
            self.send_header("Content-Length", str(len(IMAGE) + (100 if path == "/short.png" else 0)))
        self.end_headers()
        self.wfile.write(IMAGE)
        if path == "/endless.png":
            while True:
                try:
                    self.wfile.write(bytes(100_000))
                except OSError:
                    return

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_server(Handler) as address:
        yield address


@pytest.mark.parametrize("name", ["a.png", "a.png?width=3", "unsaid.png", "to-image"])
def test_the_bytes_of_an_image(server: str, name: str) -> None:
    assert fetch_image(f"{server}/{name}") == IMAGE


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.jpg", "the server returned 404"),
        ("page.jpg", "expected an image, found text/html"),
        ("to-file", "file:///etc/passwd. is not allowed"),
        ("to-ftp", "leads to ftp://h/a: expected a URL that begins with http"),
        ("round", "the server returned 302"),
        ("short.png", "the download broke off after"),
    ],
)
def test_what_is_no_image(server: str, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fetch_image(f"{server}/{name}")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "data:image/png;base64,AAAA", "ftp://h/a.png"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(DataError, match="begins with http:// or https://"):
        fetch_image(url)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(DataError, match="cannot be fetched: Connection refused"):
        fetch_image("http://127.0.0.1:9/a.png")


@pytest.mark.parametrize("name", ["a.png", "endless.png"])
def test_what_is_too_large_is_not_read_to_its_end(server: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_DOWNLOAD_BYTES", "100")
    with pytest.raises(DataError, match="more than the 100 allowed"):
        fetch_image(f"{server}/{name}")


def test_what_takes_too_long(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock says that more than a minute has gone by at each look."""
    from boxwright.inference import fetch

    now = iter(range(0, 10_000, 61))
    monkeypatch.setattr(fetch.time, "monotonic", lambda: next(now))
    with pytest.raises(DataError, match="seconds of fetching an image are more than the 60 allowed"):
        fetch_image(f"{server}/endless.png")


def test_addresses_that_name_images() -> None:
    assert names_image("https://h/a/b.JPG?x=1#y")
    assert not names_image("https://h/a.jpg/b")
    assert not names_image("https://h/?file=a.jpg")


def test_predict_looks_at_an_image_on_the_web(server: str, tmp_path: Path) -> None:
    words = [f"{server}/a.png", f"{server}/to-image", "https://h/a.mp4", f"{server}/page.jpg"]
    kinds = [type(source) for source in find_sources(words)]
    assert kinds == [WebImageSource, WebImageSource, VideoSource, WebImageSource]
    done = predict(find_blobs, find_sources(words[:2]), tmp_path / "out")
    assert (done.pictures, done.objects) == (2, 2)
    rows = json.loads((tmp_path / "out" / "detections.json").read_text())
    assert [row["file_name"] for row in rows] == words[:2]
    assert np.allclose(rows[0]["bbox"], [10, 10, 20, 20])


def test_what_the_server_does_not_call_an_image_is_a_video(server: str) -> None:
    assert isinstance(find_sources([f"{server}/page"])[0], WebImageSource)  # image/png, by this server
    assert isinstance(find_sources(["http://127.0.0.1:9/stream"])[0], VideoSource)
