"""Models at addresses: fetched whole or not at all, once for each state, and only what a model consists of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import boxwright as bw
from boxwright.base.errors import CheckpointError, ConfigError
from boxwright.weights import remote_model
from boxwright.weights.find_weights import find_weights, local_path
from boxwright.weights.open_model import output_folder
from tests.remote_files import Bucket, open_bucket

RUN = "s3://b/runs/one"
FILES = {
    "ckpt-2.pt": b"old",
    "ckpt-10.pt": b"new" * 1000,
    "best.pt": b"best",
    "pipeline.config": b"config",
    "metrics.jsonl": b"{}",
    "events.out.tfevents.1": b"events",
    "eval/metrics.json": b"{}",
    ".writer": b"host",
}


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with open_bucket(tmp_path / "cache") as bucket:
        for name, content in FILES.items():
            bucket.put(f"{RUN}/{name}", content)
        yield bucket


def content_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_of_a_run_comes_what_a_model_needs(bucket: Bucket, tmp_path: Path) -> None:
    path = local_path(f"{RUN}/")
    assert path.name == "one"
    assert content_of(path) == {name: FILES[name] for name in ("ckpt-10.pt", "pipeline.config", "metrics.jsonl")}
    bucket.reads.clear()
    assert local_path(RUN) == path
    assert find_weights(RUN) == (str(path), f"{RUN} is {path}")
    assert not bucket.reads
    assert output_folder(path) == Path()
    bucket.put(f"{RUN}/ckpt-11.pt", b"newer")
    assert content_of(local_path(RUN))["ckpt-11.pt"] == b"newer"


@pytest.mark.parametrize(
    ("files", "named", "found"),
    [
        (["a.onnx", "b.onnx"], "a.onnx", ["a.onnx"]),
        (["a.xml", "a.bin", "b.bin"], "a.xml", ["a.bin", "a.xml"]),
        (["ckpt-3.pt", "ckpt-4.pt", "pipeline.config"], "ckpt-3.pt", ["ckpt-3.pt", "pipeline.config"]),
        (["m.index", "m.data-00000-of-00001", "n.index"], "m", ["m.data-00000-of-00001", "m.index"]),
    ],
)
def test_of_a_file_comes_what_it_needs_beside_it(
    files: list[str], named: str, found: list[str], bucket: Bucket
) -> None:
    for name in files:
        bucket.put(f"s3://b/m/{name}", name.encode())
    path = local_path(f"s3://b/m/{named}")
    assert path.name == named
    assert sorted(other.name for other in path.parent.iterdir()) == found
    assert all(other.read_bytes() == other.name.encode() for other in path.parent.iterdir())


def test_of_a_saved_model_comes_all(bucket: Bucket) -> None:
    for name in ("saved_model.pb", "variables/variables.index"):
        bucket.put(f"s3://b/saved/{name}", b"x")
    assert content_of(local_path("s3://b/saved")) == {"saved_model.pb": b"x", "variables/variables.index": b"x"}


def test_what_breaks_off_leaves_nothing(bucket: Bucket, tmp_path: Path) -> None:
    bucket.cuts = [ConnectionResetError("reset")] * 100
    with pytest.raises(CheckpointError, match=r"^s3://b/runs/one/.*: cannot be read, in 3 tries: reset$"):
        local_path(RUN)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    bucket.cuts = [17]  # bytes of a block
    assert content_of(local_path(RUN))["ckpt-10.pt"] == FILES["ckpt-10.pt"]


def test_a_checkpoint_that_its_run_removes_meanwhile(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    download = remote_model.download_remote

    def remove_once(*words: object) -> None:
        monkeypatch.undo()
        bucket.put(f"{RUN}/ckpt-12.pt", b"next")
        bucket.rm_file(f"{RUN}/ckpt-10.pt")
        download(*words)  # type: ignore[arg-type]
        raise remote_model.DataError("no such file")

    with pytest.MonkeyPatch.context() as patch:
        monkeypatch = patch
        patch.setattr(remote_model, "download_remote", remove_once)
        assert "ckpt-12.pt" in content_of(local_path(RUN))


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("s3://b/none", "^s3://b/none: no such run, checkpoint or exported file$"),
        ("s3://b/photos", "^s3://b/photos: 2 files, and no model among them$"),
        ("gs://b/odd", "'../../x.onnx': not the name of a model's file"),
    ],
)
def test_what_is_no_model(address: str, problem: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("1.jpg", "2.jpg"):
        bucket.put(f"s3://b/photos/{name}", b"x")
    if "odd" in address:
        file = remote_model.list_remote(RUN)["best.pt"]
        monkeypatch.setattr(remote_model, "list_remote", lambda _: {"../../x.onnx": file})
    with pytest.raises(CheckpointError, match=problem):
        bw.load(address)


def test_a_whole_bucket_is_no_model(bucket: Bucket) -> None:
    with pytest.raises(ConfigError, match="s3://b is a whole bucket"):
        bw.load("s3://b/")


def test_refused_access_is_said_at_once(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "find", lambda *_, **__: (_ for _ in ()).throw(PermissionError("Access Denied")))
    with pytest.raises(CheckpointError, match="^s3://b/runs/one: Access Denied$"):
        bw.load(RUN)
