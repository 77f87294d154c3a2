"""Batches come, or it is said why not: workers that die, hang, or have no memory to share."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import boxwright as bw
from boxwright.base.errors import TrainingError
from boxwright.data import loader
from boxwright.data.augmentation.transform import Chain
from boxwright.data.batch import Batch
from boxwright.data.loader import BatchStream, TrainingExamples, training_batches
from boxwright.data.order import StreamSettings
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.types import Sample

# A worker that is killed while it hands over memory leaves half a handshake, whose socket Python's own code drops.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Odd(ShapesDataset):
    """Shapes, of which reading one does what a test wants."""

    def __init__(self, act: Any, at: int = 5) -> None:
        super().__init__(12, seed=1, size=(20, 20))
        self.act, self.at = act, at

    def __getitem__(self, index: int) -> Sample:
        if index == self.at:
            self.act()
        return super().__getitem__(index)


def stream(act: Any, *, workers: int = 1, patience: float = 600.0) -> BatchStream:
    examples = TrainingExamples(Odd(act), Chain(()), FixedShapeResizer(16, 16), seed=0)
    return training_batches(examples, StreamSettings(2, shuffle=False, workers=workers), patience=patience)


def last_of(batches: BatchStream) -> Any:
    items = list(batches)
    assert all(isinstance(item, Batch) for item in items[:-1])
    return items[-1]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(10_000)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies(workers: int) -> None:
    error = last_of(stream(die, workers=workers))
    assert isinstance(error, TrainingError)
    assert str(error).startswith("a data worker died"), error


def test_a_worker_that_shared_memory_ends() -> None:
    """Linux sends SIGBUS where a page of a full file system in memory is written."""
    error = last_of(stream(lambda: os.kill(os.getpid(), signal.SIGBUS)))
    assert isinstance(error, TrainingError)
    assert str(error).startswith("shared memory, through which workers pass batches, is full")
    assert f"killed by signal {signal.SIGBUS:d}" in str(error)


@pytest.mark.parametrize("kind", [EOFError, ConnectionResetError, BrokenPipeError, RuntimeError, FileNotFoundError])
def test_whatever_a_workers_death_looks_like(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end may be met in its queue, or in the socket that hands over memory."""
    import boxwright.data.loader as module

    def fail(*_: object) -> None:
        raise kind("x")

    monkeypatch.setattr(module, "_next_within_a_second", fail)
    error = last_of(stream(lambda: None, workers=0))
    assert isinstance(error, TrainingError)
    assert str(error).startswith("a data worker died: x")


def test_a_death_is_told_where_the_next_batch_is_taken_and_nowhere_else() -> None:
    """Torch's signal handler would raise in any line, also in one that switches gradients on again."""
    torchs, others = signal.signal(signal.SIGCHLD, signal.SIG_DFL), {*multiprocessing.active_children()}
    try:
        batches = stream(lambda: None, workers=1).polled()
        assert isinstance(next(item for item in batches if item is not None), Batch)
        (worker,) = {*multiprocessing.active_children()} - others
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join(60)  # the signal of its end has arrived
        assert worker.exitcode == -signal.SIGKILL
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
        error = next(item for item in batches if item is not None)
        assert isinstance(error, TrainingError)
        assert str(error) == f"a data worker died (process {worker.pid}): killed by signal 9; was it out of memory?"
        assert list(batches) == []
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGCHLD, torchs)


def test_a_worker_that_hangs() -> None:
    began = {child.pid for child in multiprocessing.active_children()}
    error = last_of(stream(hang, patience=2))
    assert isinstance(error, TrainingError)
    assert "no batch in 2 s: the data workers are stuck" in str(error)
    assert {child.pid for child in multiprocessing.active_children()} <= began, "and none of them is left"


def test_whoever_waits_hears_that_nothing_has_come() -> None:
    waiting = stream(hang).polled()
    heard = [next(waiting) for _ in range(2)]
    while heard.count(None) < 3:
        heard.append(next(waiting))
    assert sum(isinstance(item, Batch) for item in heard) <= 2, "samples 0 to 3; the third batch has the one that hangs"
    waiting.close()  # type: ignore[attr-defined]
    assert not [child for child in multiprocessing.active_children() if child.name.startswith("Process")]


def test_no_batch_at_all() -> None:
    assert list(training_batches(
        TrainingExamples(ShapesDataset(1), Chain(()), FixedShapeResizer(16, 16), 0), StreamSettings(2, num_epochs=1)
    )) == []  # fmt: skip


TRAIN = """
import sys
import boxwright as bw
config = bw.load_config(sys.argv[1], ["train_config.num_steps=300"])
print("begins", flush=True)
bw.train(config, sys.argv[2], bw.RunSettings(evaluate=False, workers=1, data_timeout=3600))
"""


@pytest.mark.slow
def test_a_full_shared_memory_is_named(small_config: Path, tmp_path: Path) -> None:
    """As in a container, whose /dev/shm is small: here of 64 kB, where a batch has 48. Without a mount of its own, that of the machine is said to be full."""
    own = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"', "sh"]
    able = shutil.which("unshare") and subprocess.run([*own, "true"], capture_output=True, check=False).returncode == 0
    script = "import torch\ntorch.multiprocessing.set_sharing_strategy('file_descriptor')\n" + textwrap.dedent(TRAIN)
    if not able:
        script = (
            "import boxwright.data.batch as b\n"
            "def full(self): raise RuntimeError('unable to allocate shared memory(shm): No space left on device (28)')\n"
            "b.Batch.share_memory = full\n" + script
        )
    command = [*(own if able else []), sys.executable, "-c", script, str(small_config), str(tmp_path / "m")]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert found.returncode == 1
    assert "TrainingError: shared memory, through which workers pass batches, is full" in found.stderr, found.stderr[
        -2000:
    ]
    assert "--shm-size" in found.stderr


STUCK = """
import sys, time
import boxwright as bw
import boxwright.data.tfrecord_dataset as d
plain = d.TFRecordDataset.__getitem__
def slow(self, index):
    if index == 7:
        time.sleep(100000)
    return plain(self, index)
d.TFRecordDataset.__getitem__ = slow
config = bw.load_config(sys.argv[1], ["train_config.num_steps=1000000", "train_input_reader.shuffle=false"])

import logging
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)

class Told:
    def on_event(self, step, event): print("step", step, flush=True)
    def close(self): pass

bw.train(config, sys.argv[2], bw.RunSettings(evaluate=False, workers=1, log_every_n=1), {"told": Told()})
print("ended in order", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
def test_signals_are_obeyed_while_data_are_waited_for(small_config: Path, tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(STUCK), str(small_config), str(tmp_path / "m")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("step 1"):
                break
        run.send_signal(number)
        rest = run.stdout.read()
        assert run.wait() == -number, rest
    assert "ended in order" not in rest, "a script does not go on with a run that is incomplete"
    assert "interrupted: stopped after 1 of 1000000 steps" in rest
    assert bw.restore_detector(tmp_path / "m")[2] == 1


def test_it_says_how_many_batches_lie_ready() -> None:
    batches = stream(lambda: None)
    assert (batches.ready, batches.most_ready) == (0, 3)
    polled = batches.polled()
    while next(polled) is None:
        pass
    deadline = time.monotonic() + 120
    while batches.ready < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert batches.ready == 3
    while next(polled) is None:
        pass
    polled.close()
    without = stream(lambda: None, workers=0)
    assert next(without.polled()) is not None
    assert (without.ready, without.most_ready) == (0, 0)


LEFT_OPEN = """
import multiprocessing, os, signal
import numpy as np
from boxwright.data.loader import samples_in_order
from boxwright.types import Sample

class Large:
    name = "large"
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return Sample(np.zeros((500, 500, 3), np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))

samples = samples_in_order(Large(), range(100), workers=1)
next(samples)
(worker,) = multiprocessing.active_children()
print(worker.pid, flush=True)
"""


@pytest.mark.slow
def test_workers_end_when_whoever_started_them_is_killed() -> None:
    """What a worker has made, and nobody reads, is more than a pipe holds: to wait for its reader would be for ever."""
    # The pipe is at its end when the worker, which inherits it, has ended too.
    killed = f"{LEFT_OPEN}\nos.kill(os.getpid(), signal.SIGKILL)"
    ended = subprocess.run([sys.executable, "-c", killed], check=False, stdout=subprocess.PIPE, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert int(ended.stdout) > 0, "there was a worker"


@pytest.mark.slow
def test_samples_left_open_end_quietly_with_the_program() -> None:
    ended = subprocess.run([sys.executable, "-c", LEFT_OPEN], check=False, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert int(ended.stdout) > 0, "there was a worker"


def test_a_worker_ends_with_the_process_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, waited = [7, 7, 1], []
    monkeypatch.setattr(loader.os, "getppid", lambda: parents.pop(0))
    monkeypatch.setattr(loader.time, "sleep", waited.append)
    monkeypatch.setattr(loader.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        loader._end_with(7)
    assert ended.value.code == 1
    assert len(waited) == 2
