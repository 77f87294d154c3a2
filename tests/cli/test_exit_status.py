"""The status with which a training exits: `boxwright train … && next` goes on only after one that has nothing left to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from boxwright.training.stop import RunEnd, StopReason, exit_status
from boxwright.weights.store import CheckpointStore
from tests import forked

OWN_INITIALIZERS = True

# The signal reaches the whole group, data workers included, as that of a terminal or of a batch system does.
KILLED_AT_STEP_TWO = """
import os, sys
from boxwright.cli import main, train

number = int(sys.argv[1])
class Killer(train.ProgressListener):
    def on_event(self, step, event):
        if step == 2:
            os.killpg(0, number)

os.setsid()
train.ProgressListener, sys.argv = Killer, ["boxwright", *sys.argv[2:]]
main.main()
"""


def train(config: Path, model_dir: Path, *options: str) -> list[str]:
    command = ["train", "--pipeline_config_path", str(config), "--model_dir", str(model_dir), "--log_every_n", "1"]
    return [*command, "--no_preflight", *options]


def run(config: Path, model_dir: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-m", "boxwright", *train(config, model_dir, *options)])


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 143),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((signal.SIGHUP, 129), (signal.SIGINT, 130))),
    ],
)
def test_a_signal_to_the_group_saves_and_is_the_status(
    small_config: Path, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    arguments = [str(int(number)), *train(small_config, tmp_path / "m", "--workers", "2", "--no-evaluate")]
    done = forked.run([sys.executable, "-c", KILLED_AT_STEP_TWO, *arguments])
    assert done.returncode == status, done.stdout + done.stderr
    assert "interrupted: stopped after 2 of 6 steps; run the same command again to resume" in done.stdout
    assert "next, to continue: boxwright train" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert [path.name for path in CheckpointStore(tmp_path / "m").paths()] == ["ckpt-2.pt"]


@pytest.mark.slow
def test_time_that_is_up_is_a_temporary_failure_and_completion_is_none(small_config: Path, tmp_path: Path) -> None:
    options = ("--workers", "0", "--no-evaluate", "--set", "train_config.num_steps=100000")
    up = run(small_config, tmp_path / "m", *options, "--max_seconds", "0.01")
    assert up.returncode == 75, up.stdout + up.stderr
    assert "the time is up: stopped after" in up.stdout
    step = CheckpointStore(tmp_path / "m").paths()[-1].stem.removeprefix("ckpt-")
    done = run(small_config, tmp_path / "m", *options, "--num_train_steps", str(int(step) + 1))
    assert done.returncode == 0, done.stdout + done.stderr
    again = run(small_config, tmp_path / "m", *options, "--num_train_steps", str(int(step) + 1))
    assert again.returncode == 0
    assert "already trained" in again.stdout


@pytest.mark.slow
def test_patience_that_ends_is_success(small_config: Path, tmp_path: Path) -> None:
    every = ("--checkpoint_every_n", "1", "--patience", "1", "--best_metric", "DetectionBoxes_Precision/mAP (large)")
    done = run(
        small_config, tmp_path / "m", "--workers", "0", *every
    )  # there are no large objects: no better one comes
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no better DetectionBoxes_Precision/mAP (large) in 1 evaluations" in done.stdout


def test_each_end_has_its_status() -> None:
    ends = {
        RunEnd(6): 0,
        RunEnd(6, StopReason.DATA_AT_END): 0,
        RunEnd(2, StopReason.TIME_UP): 75,
        RunEnd(2, StopReason.INTERRUPTED, signal.SIGINT): 130,
        RunEnd(2, StopReason.INTERRUPTED, signal.SIGTERM): 143,
    }
    assert {end: exit_status(end) for end in ends} == ends


def test_a_reader_that_has_exited_is_no_error() -> None:
    """As head, after the lines that it wants: the status is that of a program that SIGPIPE ended."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "boxwright", "models"], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
