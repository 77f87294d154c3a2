"""Files at addresses: read in blocks, once, whatever is cut, changed or in the way."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from boxwright.base import remote
from boxwright.base.errors import DataError
from boxwright.base.remote import address_in, find_remote, folder_of, is_remote, list_remote, readable_copy, remote_file
from tests.http_servers import running_server
from tests.remote_files import Bucket, open_bucket

CONTENT = random.Random(0).randbytes(5500)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with open_bucket(tmp_path / "cache") as bucket:
        bucket.put("s3://b/a.bin", CONTENT)
        yield bucket


@pytest.mark.parametrize("text", ["s3://b/a", "gs://b/a", "hf://datasets/u/n/a", "https://h/a", "HTTP://h/a"])
def test_addresses(text: str) -> None:
    assert is_remote(text)


@pytest.mark.parametrize("text", ["a", "/a", "s3:/b/a", "file:///a", "rtsp://h/a", "s3://", "c:/a", "data@10"])
def test_paths_and_other_addresses_are_none(text: str) -> None:
    assert not is_remote(text)


def test_any_part_is_what_it_is_and_comes_once(bucket: Bucket) -> None:
    rng = random.Random(1)
    with remote_file("s3://b/a.bin").open() as file:
        for _ in range(50):
            start, count = rng.randrange(5600), rng.randrange(3000)
            file.seek(start)
            assert file.read(count) == CONTENT[start : start + count]
    assert sorted(bucket.reads) == [("a.bin", start) for start in range(0, 5500, 1000)]


def test_other_openings_share_the_blocks(bucket: Bucket) -> None:
    for _ in range(3):
        with remote_file("s3://b/a.bin").open() as file:
            assert file.read() == CONTENT
    assert len(bucket.reads) == 6


@pytest.mark.parametrize("cut", [ConnectionResetError("reset"), EOFError("ended"), TimeoutError(), 0, 999])
def test_a_cut_connection_is_opened_again(bucket: Bucket, cut: Exception | int) -> None:
    """Also where fewer bytes arrive than were asked for, with no error."""
    bucket.cuts = [cut, cut]
    with remote_file("s3://b/a.bin").open() as file:
        assert file.read() == CONTENT
    assert len(bucket.reads) == 6 + 2


def test_one_that_stays_cut_is_an_error_and_leaves_nothing(bucket: Bucket, tmp_path: Path) -> None:
    bucket.cuts = [ConnectionResetError("reset")] * 3
    file = remote_file("s3://b/a.bin")
    with pytest.raises(DataError, match=r"^s3://b/a\.bin: cannot be read, in 3 tries: reset$"):
        file.local_copy()
    assert not [path for path in (tmp_path / "cache" / "remote").iterdir() if not path.name.startswith(".lock")]
    assert file.local_copy().read_bytes() == CONTENT


def test_what_another_try_would_not_change_is_not_tried_again(bucket: Bucket) -> None:
    bucket.cuts = [PermissionError("forbidden")]
    with pytest.raises(DataError, match=r"^s3://b/a\.bin: forbidden$"):
        remote_file("s3://b/a.bin").local_copy()
    assert len(bucket.reads) == 1


def test_what_gcsfs_has_tried_again_itself_is_tried_once_more(bucket: Bucket) -> None:
    address = bucket.put("gs://b/a.bin", CONTENT)
    bucket.cuts = [ConnectionResetError("reset")] * 2
    with pytest.raises(DataError, match=r"^gs://b/a\.bin: cannot be read, in 2 tries: reset$"):
        remote_file(address).local_copy()


@pytest.mark.parametrize("query", ["", "?sig=a/b&x=1"])
def test_files_of_a_folder_keep_its_query(query: str) -> None:
    """As signed addresses have one, in which slashes are no folders."""
    folder = folder_of(f"https://h/data/instances.json{query}")
    assert folder == f"https://h/data{query}"
    assert address_in(folder, "images/1.png") == f"https://h/data/images/1.png{query}"


def test_small_files_are_fetched_without_a_look_at_all_others(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On average there is a look for each hundredth of the limit."""
    monkeypatch.setenv("BOXWRIGHT_MAX_REMOTE_CACHE_BYTES", "1000000")
    looks: list[object] = []
    scan = os.scandir
    monkeypatch.setattr(remote.os, "scandir", lambda folder: looks.append(folder) or scan(folder))
    for number in range(200):
        remote_file(bucket.put(f"s3://b/{number}.bin", bytes(100))).local_copy()
    assert 0 < len(looks) < 10, "2 are expected"


def test_the_oldest_make_room(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_REMOTE_CACHE_BYTES", "2500")
    with remote_file("s3://b/a.bin").open() as file:
        for start in (0, 1000, 0, 2000, 0, 3000, 0):
            file.seek(start)
            assert file.read(10) == CONTENT[start : start + 10]
    kept = [path for path in (tmp_path / "cache" / "remote").iterdir() if not path.name.startswith(".lock")]
    assert sum(path.stat().st_size for path in kept) <= 2500


def test_a_file_that_changed_is_read_anew(bucket: Bucket) -> None:
    before = remote_file("s3://b/a.bin").local_copy().read_bytes()
    bucket.put("s3://b/a.bin", CONTENT[::-1])
    assert (before, remote_file("s3://b/a.bin").local_copy().read_bytes()) == (CONTENT, CONTENT[::-1])


def test_listings(bucket: Bucket) -> None:
    bucket.put("s3://b/images/x y.jpg", b"1")
    bucket.put("s3://b/a.bin-2", b"22")
    assert [(file.address, file.size) for file in find_remote("s3://b/a.bin*")] == [
        ("s3://b/a.bin", 5500),
        ("s3://b/a.bin-2", 2),
    ]
    assert find_remote("s3://b/none*") == []
    assert {name: file.size for name, file in list_remote("s3://b/images").items()} == {"x y.jpg": 1}
    with pytest.raises(DataError, match=r"^s3://b/none: no such file$"):
        find_remote("s3://b/none")
    with pytest.raises(DataError, match="a web server does not list its files"):
        list_remote("https://host/images")


def test_a_copy_is_made_of_addresses_alone(bucket: Bucket) -> None:
    assert readable_copy("s3:/b/a.bin") == "s3:/b/a.bin"
    assert Path(readable_copy("s3://b/a.bin")).read_bytes() == CONTENT


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "s3"), ("gs", "gcs"), ("https", "http")])
def test_a_missing_package_is_named_with_its_extra(scheme: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("s3fs", "gcsfs", "aiohttp"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=rf"^{scheme}://b/a: .*pip install 'boxwright\[{extra}\]'$"):
        remote_file(f"{scheme}://user:secret@b/a?token=1")


class Cutting(BaseHTTPRequestHandler):
    """A web server that sends parts of a file, and breaks off in the middle of every second one."""

    answered = 0

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def do_GET(self) -> None:
        start, _, end = self.headers.get("Range", f"bytes=0-{len(CONTENT) - 1}").removeprefix("bytes=").partition("-")
        part = CONTENT[int(start) : int(end) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {start}-{end}/{len(CONTENT)}")
        self.end_headers()
        type(self).answered += 1
        self.wfile.write(part[: len(part) // 2] if self.answered % 2 else part)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.mark.slow
def test_a_web_server_that_breaks_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(remote, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(remote, "DELAYS", (0.0, 0.0))
    with running_server(Cutting) as address, remote_file(f"{address}/a.bin").open() as file:
        assert file.read() == CONTENT
        assert Cutting.answered >= 12
