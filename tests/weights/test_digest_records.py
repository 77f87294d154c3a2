"""Records of digests: written by one at a time, so that none is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from boxwright.base import files
from boxwright.weights import digest_records as module
from boxwright.weights.digest_records import compute_record, read_records, write_record


def test_a_record_tells_of_changes(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    path = tmp_path / "cache" / "a.pth"
    path.write_bytes(b"abc")
    record = compute_record(tmp_path / "cache", path)
    # The digest of "abc" is the first example of FIPS 180-2.
    assert record.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (record.path, record.size) == ("a.pth", 3)
    assert record.is_current(tmp_path / "cache", path)
    elsewhere = tmp_path / "a.pth"
    path.rename(elsewhere)
    assert not record.is_current(tmp_path / "cache", elsewhere)
    assert compute_record(tmp_path / "cache", elsewhere).path == str(elsewhere.resolve())


def test_two_write_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins while the first has read and not yet written, and waits for it."""
    read, second_waits_or_is_done = threading.Event(), threading.Event()
    write_whole = module.write_whole

    def write(path: Path, content: str) -> Path:
        if threading.current_thread().name == "first":
            read.set()
            assert second_waits_or_is_done.wait(60)
        return write_whole(path, content)

    monkeypatch.setattr(module, "write_whole", write)
    monkeypatch.setattr(files, "time", SimpleNamespace(sleep=lambda seconds: second_waits_or_is_done.set()))
    path = tmp_path / "a.pth"
    path.write_bytes(b"abc")
    record = compute_record(tmp_path, path)

    def write_one(name: str) -> None:
        write_record(tmp_path, name, record)
        second_waits_or_is_done.set()

    first, second = (threading.Thread(target=write_one, args=(name,), name=name) for name in ("first", "second"))
    first.start()
    assert read.wait(60)
    second.start()
    first.join()
    second.join()
    assert read_records(tmp_path) == {"first": record, "second": record}
