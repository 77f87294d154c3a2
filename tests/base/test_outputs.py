"""What is written at addresses: whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from boxwright.base.errors import ConfigError, OutputError
from boxwright.base.outputs import local_output
from tests.remote_files import Bucket, open_bucket


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with open_bucket(tmp_path / "cache") as bucket:
        yield bucket


def test_a_file_comes_last_after_what_is_beside_it(bucket: Bucket) -> None:
    with local_output("s3://b/exports/a.onnx", "--out") as path:
        path.write_bytes(b"1")
        path.with_name("a.parity.json").write_bytes(b"2")
        path.with_name(".a.onnx.partial").write_bytes(b"3")
        assert bucket.names("s3://b") == []
    assert bucket.writes == ["a.parity.json", "a.onnx"]
    assert bucket.names("s3://b/exports") == ["a.onnx", "a.parity.json"]
    assert not path.parent.exists()


def test_a_folder(bucket: Bucket) -> None:
    with local_output("gs://b/out/", "--out") as folder:
        (folder / "pictures").mkdir(parents=True)
        (folder / "pictures" / "1.jpg").write_bytes(b"1")
        (folder / "detections.json").write_bytes(b"[]")
    assert bucket.names("gs://b/out") == ["detections.json", "pictures/1.jpg"]


def test_nothing_is_written_after_an_error(bucket: Bucket) -> None:
    with pytest.raises(ZeroDivisionError), local_output("s3://b/out", "--out") as path:
        path.write_bytes(b"half")
        _ = 1 / 0
    assert bucket.names("s3://b") == []


def test_a_lost_connection_is_tried_again_and_then_an_error(bucket: Bucket) -> None:
    bucket.refusals = [ConnectionResetError("reset"), EOFError("end")]
    with local_output("s3://b/out", "--out") as path:
        path.write_bytes(b"1")
    assert bucket.names("s3://b") == ["out"]
    bucket.refusals = [ConnectionResetError("reset")] * 3
    with (
        pytest.raises(OutputError, match=r"s3://b/out: cannot be written, in 3 tries: reset"),
        local_output("s3://b/out", "--out") as path,
    ):
        path.write_bytes(b"2")
    bucket.refusals = [FileNotFoundError("no bucket")]
    with pytest.raises(OutputError, match=r"s3://b/out: no such bucket"), local_output("s3://b/out", "--out") as path:
        path.write_bytes(b"2")


def test_paths_are_as_they_are(tmp_path: Path) -> None:
    with local_output(str(tmp_path / "a"), "--out") as path:
        assert path == tmp_path / "a"
    for named in ("", "https://host/a", "hf://a/b", "s3://bucket/"):
        with pytest.raises(ConfigError, match="--out: "), local_output(named, "--out"):
            pass
