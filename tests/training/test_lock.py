"""One run a folder: whoever comes second hears who is there, and a dead holder keeps nobody out."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import boxwright as bw
from boxwright.training.lock import LOCK, run_lock


def test_the_second_is_told_who_is_there(tmp_path: Path) -> None:
    with run_lock(tmp_path / "m") as taken_over:
        assert taken_over == ""
        wanted = rf"m: another run is in this folder: process {os.getpid()} on {socket.gethostname()}, since 20"
        with pytest.raises(bw.TrainingError, match=wanted), run_lock(tmp_path / "m"):
            pass
    with run_lock(tmp_path / "m") as taken_over:
        assert taken_over == "", "the first let go in order"


def test_training_takes_the_lock(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=1"])
    settings = bw.RunSettings(evaluate=False, workers=0)
    with run_lock(tmp_path / "m"), pytest.raises(bw.TrainingError, match="another run is in this folder"):
        bw.train(config, tmp_path / "m", settings)
    assert not list((tmp_path / "m").glob("ckpt-*"))
    assert bw.train(config, tmp_path / "m", settings).step == 1
    assert (tmp_path / "m" / LOCK).read_text() == ""


HOLDER = """
import sys, time, os
from boxwright.training.lock import run_lock
with run_lock(sys.argv[1]):
    if len(sys.argv) > 2 and os.fork() == 0:
        time.sleep(600)  # a worker that outlives its parent
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("worker", [False, True])
def test_a_killed_holder_leaves_the_folder_open(tmp_path: Path, worker: bool) -> None:
    """Even where a forked child of it lives on."""
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path), *(["x"] if worker else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(bw.TrainingError, match=f"process {holder.pid} on "), run_lock(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        try:
            with run_lock(tmp_path) as taken_over:
                assert taken_over.startswith(f"taking the place of process {holder.pid} on {socket.gethostname()}")
        finally:
            if worker:
                os.killpg(holder.pid, signal.SIGKILL)


def test_what_the_file_says_is_not_trusted(tmp_path: Path) -> None:
    """A lock is held by the system, not by what a file says."""
    for text in ("", "rubbish", "[]", json.dumps({"process": os.getpid(), "host": socket.gethostname()}), "\0" * 9000):
        (tmp_path / LOCK).write_text(text)
        with run_lock(tmp_path):
            pass


def test_a_forked_child_closes_nothing_of_others(tmp_path: Path) -> None:
    """After the lock is let go, its number may be another file's."""
    with run_lock(tmp_path):
        pass
    with (tmp_path / "other").open("w") as other:
        child = os.fork()
        if not child:
            try:
                os.fstat(other.fileno())
                os._exit(0)
            except OSError:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_killed_writers_left_is_cleared_away(small_config: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / ".ckpt-4.pt.123-abc.partial").write_bytes(b"half")
    config = bw.load_config(small_config, ["train_config.num_steps=1"])
    bw.train(config, tmp_path / "m", bw.RunSettings(evaluate=False, workers=0))
    assert not list((tmp_path / "m").glob(".*.partial"))


def test_a_file_system_that_cannot_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some network file systems: said, and left to the user."""
    import errno
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with run_lock(tmp_path) as said:
        assert not said.startswith("warning: "), "who says it marks it"
        assert "a second run can write" in said


@pytest.mark.slow
def test_a_failed_start_leaves_no_name(small_config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An error ends a run in order: the next start has nobody to take the place of."""
    settings = bw.RunSettings(evaluate=False, workers=0, preflight=False)
    (tmp_path / "damaged.pth").write_bytes(b"no weights")
    start = f"train_config.fine_tune_checkpoint='{tmp_path / 'damaged.pth'}'"
    bad = bw.load_config(small_config, ["train_config.num_steps=1", start])
    with pytest.raises(bw.BoxwrightError):
        bw.train(bad, tmp_path / "m", settings)
    assert (tmp_path / "m" / LOCK).read_text() == ""
    with caplog.at_level("INFO", "boxwright"):
        bw.train(bw.load_config(small_config, ["train_config.num_steps=1"]), tmp_path / "m", settings)
    assert not [text for text in caplog.messages if "taking the place" in text]
