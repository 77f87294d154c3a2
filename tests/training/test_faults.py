"""What goes wrong on machines: full disks, read-only folders, dead workers, bad records. One clear message, nothing lost."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import boxwright as bw
from boxwright.base.distributed import ALONE
from boxwright.training.lock import LOCK
from boxwright.training.train import _lock_folder
from boxwright.weights.store import CheckpointStore, read_checkpoint
from tests import forked

OWN_INITIALIZERS = True

QUIET = bw.RunSettings(evaluate=False, workers=0, checkpoint_every_n=2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 6 MB, less than two checkpoints: a file system in memory where one may be mounted, else a limit on a file's size."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=False)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield folder
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


def fill(folder: Path) -> None:
    """Leave no room for another checkpoint."""
    if os.path.ismount(folder):
        with (folder / "other").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(b"0" * 4096)
        return
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))


@pytest.mark.slow
def test_full_disk_ends_the_run_and_keeps_the_checkpoint_before(
    small_config: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = small_disk / "m"
    saves = 0
    plain = CheckpointStore.save

    def save(self: CheckpointStore, *arguments: Any, **more: Any) -> Path:
        nonlocal saves
        saves += 1
        if saves == 2:
            fill(small_disk)
        return plain(self, *arguments, **more)

    monkeypatch.setattr(CheckpointStore, "save", save)
    with pytest.raises(bw.CheckpointError, match="could not be written: .*earlier ones are intact"):
        bw.train(bw.load_config(small_config), model_dir, QUIET)
    assert [path.name for path in CheckpointStore(model_dir).paths()] == ["ckpt-2.pt"]
    assert read_checkpoint(model_dir / "ckpt-2.pt")["step"] == 2
    assert not list(model_dir.glob(".*partial")), "nothing half-written stays"


@pytest.mark.slow
def test_full_disk_costs_the_log_and_not_the_run(small_config: Path, small_disk: Path) -> None:
    """Listeners are disabled, each with one warning; the run ends where its checkpoint finds no room."""
    from tests.conftest import Silent

    heard: list[str] = []

    class Filler(Silent):
        def message(self, text: str) -> None:
            heard.append(text)

        def step(self, step: int) -> None:
            if step == 2:
                fill(small_disk)

    config = bw.load_config(small_config, ["train_config.num_steps=40"])
    settings = bw.RunSettings(evaluate=False, workers=0, checkpoint_every_n=10**6, log_every_n=1)
    with pytest.raises(bw.CheckpointError, match="ckpt-40.pt: could not be written: .*(No space left|File too large)"):
        bw.train(config, small_disk / "m", settings, {"test": Filler()})
    dropped = [text for text in heard if "has been disabled; the run continues" in text]
    assert len([text for text in dropped if text.startswith("warning: TensorBoard failed at step")]) == 1
    assert len(dropped) == len({text.split(" failed")[0] for text in dropped}), "each is named once"
    assert heard[-1].startswith(f"warning: {len(dropped)} of the run's listeners failed: ")


def test_model_dir_that_vanishes(small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    plain = CheckpointStore.save

    def save(self: CheckpointStore, *arguments: Any, **more: Any) -> Path:
        shutil.rmtree(self.folder, ignore_errors=True)
        return plain(self, *arguments, **more)

    monkeypatch.setattr(CheckpointStore, "save", save)
    with pytest.raises(bw.CheckpointError, match="could not be written"):
        bw.train(bw.load_config(small_config), tmp_path / "m", QUIET)


def test_model_dir_that_cannot_be_written(small_config: Path, tmp_path: Path) -> None:
    """A file where a folder should be refuses even the superuser, whom permissions do not stop."""
    (tmp_path / "m").write_text("a file")
    with pytest.raises(bw.OutputError, match="deeper: this folder cannot be created: Not a directory"):
        bw.train(bw.load_config(small_config), tmp_path / "m" / "deeper", QUIET)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not stop the superuser; the test above covers the path")
def test_read_only_model_dir(small_config: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir(mode=0o500)
    with pytest.raises(bw.TrainingError, match="m/.lock: cannot be written to"):
        bw.train(bw.load_config(small_config), tmp_path / "m", QUIET)


def damaged(shapes_data: Path, folder: Path) -> Path:
    """The validation records, the fifth with a byte changed."""
    from boxwright.data.tfrecord import TFRecordFile

    source = shapes_data / "val.record"
    file = TFRecordFile(source)
    data = bytearray(source.read_bytes())
    place = data.find(file[4])
    data[place + 100] ^= 1
    path = folder / "bad.record"
    path.write_bytes(data)
    return path


@pytest.mark.slow_cases("0")
@pytest.mark.parametrize("workers", [0, 2])
def test_bad_records_are_left_out_counted_and_named(
    small_config: Path, shapes_data: Path, tmp_path: Path, workers: int
) -> None:
    path = damaged(shapes_data, tmp_path)
    overrides = [
        f"train_input_reader.tf_record_input_reader.input_path={path}",
        "train_input_reader.shuffle=false",
        "train_config.batch_size=3",
        "train_config.num_steps=4",
    ]
    heard: list[str] = []
    from tests.conftest import Silent

    class Listener(Silent):
        def message(self, text: str) -> None:
            heard.append(text)

    settings = bw.RunSettings(evaluate=False, workers=workers, skip_bad_records=True, log_every_n=1)
    bw.train(bw.load_config(small_config, overrides), tmp_path / "m", settings, {"test": Listener()})
    left_out = [text for text in heard if text.startswith("left out")]
    assert len(left_out) == 2, "once in each of two epochs"
    assert left_out[1].startswith(f"left out (2 so far): {path}: record 4 at byte")


def test_nothing_but_bad_records_is_an_error(small_config: Path, tmp_path: Path) -> None:
    from boxwright.data.tfrecord import write_records

    write_records(tmp_path / "all.record", [b"no example"] * 3)
    override = f"train_input_reader.tf_record_input_reader.input_path={tmp_path}/all.record"
    settings = bw.RunSettings(evaluate=False, workers=0, skip_bad_records=True)
    with pytest.raises(bw.DataError, match="100 samples in a row: .*record"):
        bw.train(bw.load_config(small_config, [override]), tmp_path / "m", settings)


# Killed while it hands over memory, it leaves half a handshake, whose socket Python's own code drops.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_worker_ends_the_run_with_its_steps_saved(small_config: Path, tmp_path: Path) -> None:
    import multiprocessing

    def kill() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if CheckpointStore(tmp_path / "m").paths():
                for child in multiprocessing.active_children():
                    os.kill(child.pid or 0, signal.SIGKILL)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    config = bw.load_config(small_config, ["train_config.num_steps=100000"])
    with pytest.raises(bw.TrainingError, match="a data worker died"):
        bw.train(config, tmp_path / "m", bw.RunSettings(evaluate=False, workers=1, checkpoint_every_n=2))
    thread.join()
    newest = read_checkpoint(CheckpointStore(tmp_path / "m").paths()[-1])
    assert newest["step"] >= 2


def test_a_library_that_finds_a_worker_dead_ends_the_run_with_its_steps_saved(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's signal handler raises wherever the run is: here in the second step."""
    from boxwright.training.losses import LossModule

    steps, real = [], LossModule.forward

    def forward(self: LossModule, *arguments: Any) -> Any:
        steps.append(1)
        if len(steps) == 2:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
        return real(self, *arguments)

    monkeypatch.setattr(LossModule, "forward", forward)
    with pytest.raises(bw.TrainingError, match="a data worker died: DataLoader worker .pid 7. is killed"):
        bw.train(bw.load_config(small_config), tmp_path / "m", bw.RunSettings(evaluate=False, workers=0))
    (saved,) = CheckpointStore(tmp_path / "m").paths()
    assert read_checkpoint(saved)["step"] == 1


def test_evaluation_data_that_vanish_leave_the_checkpoint(
    small_config: Path, shapes_data: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "val.record"
    copy.write_bytes((shapes_data / "val.record").read_bytes())
    config = bw.load_config(small_config, [f"eval_input_reader.tf_record_input_reader.input_path={copy}"])
    from tests.conftest import Silent

    class Remover(Silent):
        def step(self, step: int) -> None:
            copy.unlink(missing_ok=True)

    with pytest.raises(bw.DataError, match=r"val.record: record 0 .*No such file"):
        bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, checkpoint_every_n=3), {"test": Remover()})
    assert [path.name for path in CheckpointStore(tmp_path / "m").paths()] == ["ckpt-3.pt"]


def test_corrupt_newest_checkpoint_falls_back_and_ends_the_same(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config)
    bw.train(config, tmp_path / "whole", QUIET)
    bw.train(bw.load_config(small_config, ["train_config.num_steps=4"]), tmp_path / "m", QUIET)
    newest = tmp_path / "m" / "ckpt-4.pt"
    newest.write_bytes(newest.read_bytes()[:-1000])
    with pytest.warns(UserWarning, match=r"ckpt-4.pt: not a readable checkpoint.*using the previous one"):
        bw.train(config, tmp_path / "m", QUIET)
    first, second = (read_checkpoint(tmp_path / name / "ckpt-6.pt")["network"] for name in ("whole", "m"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_checkpoints_hold_no_code(small_config: Path, tmp_path: Path) -> None:
    bw.train(bw.load_config(small_config, ["train_config.num_steps=1"]), tmp_path, QUIET)
    content = torch.load(tmp_path / "ckpt-1.pt", weights_only=True)
    wanted = {
        "config",
        "categories",
        "step",
        "optimizer",
        "average",
        "scaler",
        "seed",
        "samples",
        "selection",
        "network",
    }
    assert wanted < set(content)

    class Evil:
        def __reduce__(self) -> Any:
            return (print, ("run",))

    torch.save({"format": 1, "step": 9, "network": Evil()}, tmp_path / "ckpt-9.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = CheckpointStore(tmp_path).latest()
    assert found is not None
    assert found[1]["step"] == 1


def test_hourly_keepers(tmp_path: Path) -> None:
    """Of checkpoints half an hour apart, beyond the two newest, one every hour stays."""
    store = CheckpointStore(tmp_path, keep=2, keep_every_n_hours=1)
    for step in range(1, 9):
        path = store.save(step, {}, began=1e9)
        os.utime(path, (1e9 + step * 1800, 1e9 + step * 1800))
    assert [path.name for path in store.paths()] == ["ckpt-2.pt", "ckpt-4.pt", "ckpt-6.pt", "ckpt-7.pt", "ckpt-8.pt"]
    plain = CheckpointStore(tmp_path, keep=2)
    plain.save(9, {}, began=1e9)
    assert [path.name for path in plain.paths()] == ["ckpt-8.pt", "ckpt-9.pt"]


def test_unusable_settings() -> None:
    with pytest.raises(bw.TrainingError, match="max_to_keep: expected at least 1"):
        bw.RunSettings(max_to_keep=0)
    with pytest.raises(bw.TrainingError, match="patience: expected 0 or more"):
        bw.RunSettings(patience=-1)


def test_the_run_as_a_user_sees_it(small_config: Path, tmp_path: Path) -> None:
    """One line, no traceback."""
    (tmp_path / "m").write_text("a file")
    command = [
        sys.executable,
        "-m",
        "boxwright",
        "train",
        "--config",
        str(small_config),
        "--model_dir",
        str(tmp_path / "m"),
    ]
    found = forked.run(command)
    assert found.returncode == 1
    assert found.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in found.stderr


RUN = """
import sys
import tempfile
import boxwright as bw
bw.train(bw.load_config(sys.argv[1], ["train_config.num_steps=1000000"]), sys.argv[2], bw.RunSettings(evaluate=False, workers=2))
"""


def test_a_run_says_whose_place_it_takes_and_clears_away_what_that_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / LOCK).write_text(json.dumps({"process": 2**22 + 1, "host": "h", "since": "2020-01-01 00:00:00"}))
    (tmp_path / ".workers" / "x" / "socket").mkdir(parents=True)
    with ExitStack() as resources:
        _lock_folder(tmp_path, ALONE, resources)
        assert not (tmp_path / ".workers").exists()
    assert "taking the place of process 4194305 on h" in caplog.text


@pytest.mark.slow  # the test above, and tests/data/test_worker_folder.py
@pytest.mark.parametrize("name", ["m", "d" * 80])
def test_a_killed_run_leaves_nothing_in_the_systems_temporary_folder(small_config: Path, name: str) -> None:
    """Workers have sockets, in folders that nobody removes after a kill: they are the run's, and go when it goes on."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="") as short:
        folder, temporary = Path(short) / name, Path(short) / "tmp"
        temporary.mkdir()
        command = [sys.executable, "-c", RUN, str(small_config), str(folder)]
        environment = {**os.environ, "TMPDIR": str(temporary)}
        with subprocess.Popen(command, env=environment, start_new_session=True) as run:
            try:
                until = time.monotonic() + 300
                while not [*folder.rglob("listener-*"), *temporary.rglob("listener-*")]:
                    assert run.poll() is None
                    assert time.monotonic() < until
                    time.sleep(0.05)
            finally:
                os.killpg(run.pid, signal.SIGKILL)
        assert list(folder.glob(".workers/*"))
        assert len(list(temporary.glob("pymp-*"))) == 0
        config = bw.load_config(small_config, ["train_config.num_steps=1"])
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(tempfile, "tempdir", str(temporary))
            bw.train(config, folder, bw.RunSettings(evaluate=False, workers=1))
        assert not list(folder.glob(".workers"))
        assert not [path for path in temporary.iterdir() if path.name.startswith(("pymp-", "boxwright-"))]
