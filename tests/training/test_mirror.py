"""Runs at an address: copied after each checkpoint, fetched to go on, and never ended by a lost connection."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import boxwright as bw
from boxwright.base.errors import ConfigError, DataError, OutputError
from boxwright.training import mirror
from boxwright.training.heartbeat import SIGN
from boxwright.weights.store import read_checkpoint
from tests.remote_files import Bucket, open_bucket
from tests.training.checkpoints import same
from tests.training.test_train import QUIET

OWN_INITIALIZERS = True

RUN = "s3://b/runs/first"


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with open_bucket(tmp_path / "cache") as bucket:
        yield bucket


def write_state(folder: Path, step: int) -> None:
    """Write what a run leaves after a step, with one checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("ckpt-*.pt"):
        old.unlink()
    (folder / "eval").mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(f"{n}\n" for n in range(step + 1)))
    (folder / "eval" / "events").write_bytes(b"e" * step)
    (folder / f"ckpt-{step}.pt").write_bytes(b"c" * step)
    (folder / ".lock").write_text("held")


def test_a_run_is_copied_and_fetched_on_another_machine(bucket: Bucket, tmp_path: Path) -> None:
    with mirror.run_folder(RUN) as folder:
        assert folder.parent == tmp_path / "cache" / "runs"
        write_state(folder, 2)
    assert bucket.names(RUN) == ["ckpt-2.pt", "eval/events", "metrics.jsonl"]
    assert bucket.writes[-1] == "ckpt-2.pt", "a checkpoint comes after the log up to it"
    shutil.rmtree(folder)
    bucket.writes.clear()
    with mirror.run_folder(f"{RUN}/") as again:
        assert again == folder
        assert (folder / "metrics.jsonl").read_text() == "0\n1\n2\n"
        assert (folder / "eval" / "events").read_bytes() == b"ee"
        write_state(folder, 5)
    assert bucket.names(RUN) == ["ckpt-5.pt", "eval/events", "metrics.jsonl"]


def test_what_has_not_changed_is_not_copied_again(bucket: Bucket) -> None:
    with mirror.run_folder(RUN) as folder:
        write_state(folder, 2)
    bucket.writes.clear()
    with mirror.run_folder(RUN):
        (folder / "metrics.jsonl").write_text("0\n")
    assert bucket.writes == [SIGN, "metrics.jsonl"]


def test_the_state_that_is_ahead_counts(bucket: Bucket) -> None:
    with mirror.run_folder(RUN) as folder:
        write_state(folder, 2)
    shutil.copytree(folder, aside := folder.with_name("aside"))
    with mirror.run_folder(RUN):
        write_state(folder, 4)
    shutil.rmtree(folder)
    aside.rename(folder)
    with (  # another machine went on
        pytest.raises(OutputError, match="cannot be written, in 3 tries"),
        mirror.run_folder(RUN),
    ):
        assert [path.name for path in folder.glob("*.pt")] == ["ckpt-4.pt"]
        write_state(folder, 7)
        bucket.refusals = [ConnectionResetError("reset")] * 100
    bucket.refusals = []
    with mirror.run_folder(RUN):
        assert [path.name for path in folder.glob("*.pt")] == ["ckpt-7.pt"]


def test_a_run_that_was_removed_at_its_address_is_not_brought_back(bucket: Bucket) -> None:
    with mirror.run_folder(RUN) as folder:
        write_state(folder, 2)
    for name in bucket.names(RUN):
        bucket.rm_file(f"{RUN}/{name}")
    with (
        pytest.raises(DataError, match="the run's checkpoints are gone, and .* still has them"),
        mirror.run_folder(RUN),
    ):
        pass
    shutil.rmtree(folder)
    with mirror.run_folder(RUN):
        assert not folder.exists()


def test_a_lost_connection_is_an_error_at_the_end_and_the_next_run_copies(bucket: Bucket) -> None:
    with (
        pytest.raises(OutputError, match="last state is whole in .*: the same command copies it there"),
        mirror.run_folder(RUN) as folder,
    ):
        bucket.refusals = [ConnectionResetError("reset")] * 3
        write_state(folder, 3)
    assert bucket.names(RUN) == []
    with mirror.run_folder(RUN):
        pass
    assert "ckpt-3.pt" in bucket.names(RUN)


def test_an_error_of_the_run_is_the_one_that_is_raised(bucket: Bucket) -> None:
    with pytest.raises(ZeroDivisionError), mirror.run_folder(RUN) as folder:
        bucket.refusals = [ConnectionResetError("reset")] * 3
        write_state(folder, 3)
        _ = 1 / 0


def test_a_fetch_that_was_interrupted_is_done_again(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with mirror.run_folder(RUN) as folder:
        write_state(folder, 6)
    shutil.rmtree(folder)
    bucket.cuts = [FileNotFoundError("gone")]
    with pytest.raises(DataError, match="no such file"), mirror.run_folder(RUN):
        pass
    with mirror.run_folder(RUN):
        assert (folder / "ckpt-6.pt").read_bytes() == b"cccccc"
        assert (folder / "metrics.jsonl").is_file()


def test_checkpoints_are_copied_while_the_run_goes_on(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    arrived = threading.Event()
    put = bucket.put_file
    monkeypatch.setattr(mirror, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(bucket, "put_file", lambda *words: put(*words) or (words[1].endswith(".pt") and arrived.set()))
    with mirror.run_folder(RUN) as folder:
        write_state(folder, 2)
        assert arrived.wait(60)
        assert "ckpt-2.pt" in bucket.names(RUN)


def test_only_the_first_process_copies(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with mirror.run_folder(RUN) as folder:
        write_state(folder, 2)
    assert bucket.names(RUN) == []


@pytest.mark.parametrize("named", ["https://host/run", "hf://datasets/a/b", "s3://bucket", "gs://bucket/"])
def test_what_is_no_place_for_a_run(named: str, bucket: Bucket) -> None:
    with pytest.raises(ConfigError, match="found the address|is a whole bucket"), mirror.run_folder(named):
        pass


@pytest.mark.slow
def test_a_run_that_is_fetched_goes_on_to_the_same_bits(small_config: Path, tmp_path: Path, bucket: Bucket) -> None:
    config, settings = bw.load_config(small_config), bw.RunSettings(**QUIET)
    bw.train(config, tmp_path / "whole", settings)
    part = bw.load_config(small_config, ["train_config.num_steps=2"])
    folder = bw.train(part, RUN, settings).folder
    shutil.rmtree(folder)
    assert bw.train(config, RUN, settings).step == 6
    assert {"ckpt-6.pt", "pipeline.config", "metrics.jsonl"} <= set(bucket.names(RUN))
    whole = read_checkpoint(tmp_path / "whole" / "ckpt-6.pt")
    assert same(whole["network"], read_checkpoint(folder / "ckpt-6.pt")["network"])
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
