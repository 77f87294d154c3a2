"""The sign of a run at an address: what another machine makes of it, and what happens where two begin at once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boxwright.base.errors import OutputError, TrainingError
from boxwright.training import heartbeat, mirror
from boxwright.training.heartbeat import SIGN
from tests.remote_files import Bucket, open_bucket

RUN = "s3://b/runs/first"


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with open_bucket(tmp_path / "cache") as bucket:
        yield bucket


def put_sign(bucket: Bucket, **changes: Any) -> None:
    sign = {"run": "another", "process": 12, "host": "elsewhere", "since": "yesterday", "time": time.time() - 100}
    bucket.put(f"{RUN}/{SIGN}", json.dumps({**sign, **changes}).encode())


def read_sign(bucket: Bucket) -> dict[str, Any]:
    return dict(json.loads(bucket.files.cat_file(f"b/runs/first/{SIGN}")))


def test_a_run_of_another_host_is_not_joined(bucket: Bucket) -> None:
    put_sign(bucket)
    message = (
        r"^s3://b/runs/first: another run is trained into this address: process 12 on elsewhere, since yesterday; its "
        r"last sign is 10[0-9] s old\. Use another address, or stop it; if it was killed, wait 180 s, or remove "
        r"s3://b/runs/first/\.running\.json$"
    )
    with pytest.raises(TrainingError, match=message), mirror.run_folder(RUN):
        pass
    assert read_sign(bucket)["run"] == "another"


@pytest.mark.parametrize(
    "changes", [{"time": time.time() - 1000}, {"time": "odd"}, {"host": heartbeat.socket.gethostname()}]
)
def test_a_sign_that_does_not_count(changes: dict[str, Any], bucket: Bucket) -> None:
    """An old one, of a run that was killed; one that says nothing; one of this host, where the folder has a lock."""
    put_sign(bucket, **changes)
    with mirror.run_folder(RUN):
        assert read_sign(bucket)["host"] == heartbeat.socket.gethostname()
    assert bucket.names(RUN) == []


@pytest.mark.parametrize("content", [b"", b"[]", b"no json", b"x" * 5000])
def test_a_sign_that_is_damaged(content: bytes, bucket: Bucket) -> None:
    bucket.put(f"{RUN}/{SIGN}", content)
    with mirror.run_folder(RUN):
        assert read_sign(bucket)["process"]


def test_it_is_written_again_and_again_and_removed_after_an_error(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_BEAT_SECONDS", 0.001)
    beats = threading.Semaphore(0)
    put = bucket.put_file
    monkeypatch.setattr(bucket, "put_file", lambda *words: (put(*words), beats.release()))
    with pytest.raises(ZeroDivisionError), mirror.run_folder(RUN):
        assert all(beats.acquire(timeout=60) for _ in range(3))
        _ = 1 / 0
    assert bucket.names(RUN) == []


def test_of_two_that_begin_at_once_one_copies(bucket: Bucket) -> None:
    with (
        pytest.raises(
            OutputError, match="another run is trained into this address since; nothing is copied there; the"
        ),
        mirror.run_folder(RUN) as folder,
    ):
        put_sign(bucket)
        folder.mkdir(parents=True)
        (folder / "ckpt-1.pt").write_bytes(b"1")
    assert bucket.names(RUN) == [SIGN]
    assert read_sign(bucket)["run"] == "another", "nor is the other's sign removed"
    assert (folder / "ckpt-1.pt").is_file()


def test_an_address_that_cannot_be_written_to_is_found_at_the_beginning(bucket: Bucket) -> None:
    bucket.refusals = [PermissionError("Access Denied")]
    with pytest.raises(OutputError, match="Access Denied$"), mirror.run_folder(RUN):
        raise AssertionError("nothing begins")


def test_a_sign_that_somebody_removed_is_no_other_run(bucket: Bucket) -> None:
    with mirror.run_folder(RUN) as folder:
        bucket.rm_file(f"{RUN}/{SIGN}")
        folder.mkdir(parents=True)
        (folder / "ckpt-1.pt").write_bytes(b"1")
    assert bucket.names(RUN) == ["ckpt-1.pt"]
