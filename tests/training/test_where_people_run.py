"""Trainings where people run them: containers without shared memory, users without a name, scripts without a main guard."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

import boxwright as bw
from boxwright.base.files import cache_folder
from boxwright.training import log
from boxwright.weights.store import CheckpointStore
from tests import forked
from tests.conftest import Silent, small_config_text

OWN_INITIALIZERS = True

NO_NAMESPACE = 99
# A child's own /dev/shm, as in a container.
SHARED_MEMORY = f"""
import ctypes, subprocess, sys
if ctypes.CDLL(None).unshare(0x00020000):  # CLONE_NEWNS
    sys.exit({NO_NAMESPACE})
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", sys.argv[1], "tmpfs", "/dev/shm"], check=True)
from boxwright.cli import main
sys.argv = ["boxwright", *sys.argv[2:]]
main.main()
"""
# A user without an entry in /etc/passwd, as of `docker run --user 12345`.
NOBODY_KNOWN = f"""
import ctypes, os, sys
from pathlib import Path
if ctypes.CDLL(None).unshare(0x10000000):  # CLONE_NEWUSER
    sys.exit({NO_NAMESPACE})
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/gid_map").write_text(f"12345 {{sys.argv[1]}} 1")
Path("/proc/self/uid_map").write_text(f"12345 {{sys.argv[1]}} 1")
assert os.getuid() == 12345
from boxwright.cli import main
sys.argv = ["boxwright", *sys.argv[2:]]
main.main()
"""


@pytest.fixture(scope="module")
def trained(shapes_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one step, with its configuration beside it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "pipeline.config").write_text(small_config_text(shapes_data))
    config = bw.load_config(folder / "pipeline.config", ["train_config.num_steps=1"])
    bw.train(config, folder / "model", workers=0, evaluate=False, preflight=False)
    return folder / "model"


def in_container(
    code: str, first: str, config: Path, model_dir: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    command = ["train", "--pipeline_config_path", str(config), "--model_dir", str(model_dir), "--num_train_steps", "2"]
    told = ("HOME", "USER", "LOGNAME", "BOXWRIGHT_CACHE")
    environment = {name: value for name, value in os.environ.items() if name not in told}
    environment["TMPDIR"] = str(model_dir.parent)
    done = forked.run([sys.executable, "-c", code, first, *command, "--no_preflight", *options], env=environment)
    if done.returncode == NO_NAMESPACE:
        pytest.skip("this user may make no namespaces")
    return done


@pytest.mark.slow
def test_read_only_shared_memory_is_enough_without_workers(small_config: Path, tmp_path: Path) -> None:
    done = in_container(SHARED_MEMORY, "ro,size=1m", small_config, tmp_path / "m", "--workers", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "evaluation at step 2" in done.stdout


@pytest.mark.parametrize(
    ("mount", "options", "wanted"),
    [
        ("ro,size=1m", (), "shared memory (/dev/shm), which data workers need, cannot be used here"),
        # Four pictures of 320 × 320 take more than a megabyte.
        pytest.param(
            *("size=1m", ("--imgsz", "320"), "shared memory, through which workers pass batches, is full"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_shared_memory_that_is_unusable_or_small_is_one_line(
    small_config: Path, tmp_path: Path, mount: str, options: tuple[str, ...], wanted: str
) -> None:
    done = in_container(SHARED_MEMORY, mount, small_config, tmp_path / "m", "--workers", "1", "--no-evaluate", *options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"error: {wanted}" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_user_without_an_entry_and_without_a_home_trains_and_predicts(small_config: Path, tmp_path: Path) -> None:
    done = in_container(NOBODY_KNOWN, str(os.getuid()), small_config, tmp_path / "m", "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert [path.name for path in CheckpointStore(tmp_path / "m").paths()] == ["ckpt-2.pt"]
    assert (tmp_path / "boxwright-12345").is_dir(), "in place of a cache in a home folder"


def test_a_cache_in_the_temporary_folder_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("BOXWRIGHT_CACHE")
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"boxwright-{os.getuid()}"
    assert cache_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(bw.OutputError, match="belongs to another user; name a cache folder with BOXWRIGHT_CACHE"):
        cache_folder()


UNGUARDED = """
import multiprocessing, sys
import boxwright as bw

if multiprocessing.current_process().name == "MainProcess":
    multiprocessing.set_start_method(sys.argv[1])
config = bw.load_config(sys.argv[2], ["train_config.num_steps=2"])
bw.train(config, sys.argv[3], workers=2, evaluate=False, preflight=False)
"""


@pytest.mark.slow  # tests/data/test_worker_errors.py, and tests/base/test_worker_pools.py with processes
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_without_a_main_guard_is_told_of_it(method: str, small_config: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    command = [sys.executable, str(script), method, str(small_config), str(tmp_path / "m")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'put the script\'s work under `if __name__ == "__main__":`' in done.stderr.strip().splitlines()[-1]
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert "out of memory" not in done.stderr


FORKED = """
import os, sys, time
import numpy as np, torch
import boxwright as bw

torch.set_num_threads(int(sys.argv[1]))
model, picture = bw.load(sys.argv[2], device="cpu"), np.zeros((64, 80, 3), np.uint8)
model(picture)
child = os.fork()
if not child:
    try:
        model(picture)
    except bw.BoxwrightError as error:
        print(error, flush=True)
        os._exit(3)
    os._exit(0)
for _ in range(3000):
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.1)
os.kill(child, 9)
sys.exit("the child hangs")
"""


@pytest.mark.parametrize(("threads", "status"), [(2, 3), pytest.param(1, 0, marks=pytest.mark.slow)])
def test_a_fork_after_loading_is_told_instead_of_hanging(threads: int, status: int, trained: Path) -> None:
    """A fork has none of the parent's threads, and PyTorch waits for them; a single thread is the caller's own."""
    done = forked.run([sys.executable, "-c", FORKED, str(threads), str(trained)])
    assert done.returncode == status, done.stdout + done.stderr
    if status:
        assert "this model was loaded in process" in done.stdout
        assert "Load the model in the child process itself" in done.stdout


@pytest.mark.parametrize("absent", ["tensorboard.compat.proto", "tensorboard.compat.proto.event_pb2"])
def test_tensorboard_that_cannot_be_imported_costs_its_events_alone(
    absent: str, small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole, or what protobuf of another version refuses to make."""
    said: list[str] = []
    for name in [name for name in sys.modules if name.startswith("tensorboard.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, absent, None)
    monkeypatch.setattr(Silent, "message", lambda self, text: said.append(text))
    config = bw.load_config(small_config, ["train_config.num_steps=1"])
    run = bw.train(config, tmp_path / "m", workers=0, evaluate=False, preflight=False, listeners={"heard": Silent()})
    assert run.step == 1
    (line,) = [text for text in said if "TensorBoard" in text and "disabled" in text]
    assert "pip install --force-reinstall tensorboard" in line
    assert (tmp_path / "m" / "metrics.jsonl").is_file()


def test_mlflow_that_does_not_answer_is_waited_for_a_moment(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its library asks again for minutes; here, until the test ends."""
    said: list[str] = []
    over, mlflow = threading.Event(), ModuleType("mlflow")
    mlflow.set_experiment = lambda name: over.wait()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setattr(Silent, "message", lambda self, text: said.append(text))
    assert log._ANSWER_S <= 10
    monkeypatch.setattr(log, "_ANSWER_S", 0.1)
    config = bw.load_config(small_config, ["train_config.num_steps=1"])
    heard = {"heard": Silent()}
    try:
        run = bw.train(config, tmp_path / "m", workers=0, evaluate=False, track=("mlflow",), listeners=heard)
    finally:
        over.set()
    assert run.step == 1
    disabled = "warning: mlflow failed at the start and has been disabled; the run continues: no answer within 0.1 s"
    assert disabled in said
