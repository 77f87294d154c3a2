"""Where workers have their sockets: nothing is left, wherever the run's folder lies and whatever ends the run."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from boxwright.data import worker_folder
from boxwright.data.worker_folder import clear_worker_folders, make_worker_folder, remove_worker_folder


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a short name, in which the system's temporary folder is: pytest's own are too long for sockets."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix=""))
    (folder / "tmp").mkdir()
    (folder / "m").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    yield folder
    shutil.rmtree(folder)


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def deep(short: Path) -> Path:
    """As long as an address may be at most, with multiprocessing's own names after it, and a byte more."""
    run = short / ("d" * 60)
    run.mkdir()
    return run


def can_listen(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as tried:
        tried.bind(tempfile.mktemp(prefix="listener-", dir=tempfile.mkdtemp(prefix="pymp-", dir=folder)))
    return True


def test_a_run_has_its_workers_folders(short: Path) -> None:
    one, other = make_worker_folder(short / "m"), make_worker_folder(short / "m")
    assert one.parent == other.parent == short / "m" / ".workers"
    assert can_listen(one)
    remove_worker_folder(one, short / "m")
    assert can_listen(other)
    remove_worker_folder(other, short / "m")
    assert left(short) == ["m", "tmp"]


def test_a_folder_that_is_too_deep_for_sockets(short: Path) -> None:
    run = deep(short)
    folder = make_worker_folder(run)
    assert folder.parent == short / "tmp"
    assert can_listen(folder)
    remove_worker_folder(folder, run)
    assert left(short) == ["d" * 60, "m", "tmp"]


@pytest.mark.parametrize("length", range(1, 90, 4))
def test_every_length_has_room(short: Path, length: int) -> None:
    run = short / ("d" * length)
    run.mkdir()
    assert can_listen(make_worker_folder(run))


def test_a_file_system_without_sockets(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def bind(self, *_: object) -> None:
            raise OSError(95, "Operation not supported")

    monkeypatch.setattr(worker_folder.socket, "socket", Refusing)
    folder = make_worker_folder(short / "m")
    assert folder.parent == short / "tmp"
    remove_worker_folder(folder, short / "m")
    assert left(short) == ["m", "tmp"]


@pytest.mark.parametrize("run", [Path("/proc/1"), Path("/none")])
def test_a_folder_that_cannot_be_written_to(short: Path, run: Path) -> None:
    folder = make_worker_folder(run)
    assert folder.parent == short / "tmp"
    remove_worker_folder(folder, run)
    assert left(short) == ["m", "tmp"]


def test_what_killed_runs_left_is_cleared_away(short: Path) -> None:
    run = deep(short)
    assert can_listen(make_worker_folder(short / "m"))
    assert can_listen(make_worker_folder(run))
    living = make_worker_folder(None)
    clear_worker_folders(short / "m")
    clear_worker_folders(run)
    assert left(short) == ["d" * 60, "m", "tmp", f"tmp/{living.name}"]


def test_a_link_of_somebody_else_removes_nothing(short: Path) -> None:
    """What lies in a run's folder may have been put there."""
    (short / "precious").mkdir()
    (short / "tmp" / "precious").mkdir()
    (short / "tmp" / "boxwright-workers-x").symlink_to(short / "precious")
    (short / "precious" / "file").write_text("mine")
    for number, target in enumerate(["precious", "tmp/precious", "tmp/boxwright-workers-x", "tmp/../precious", "none"]):
        link = short / "m" / ".workers" / str(number) / "folder"
        link.parent.mkdir(parents=True)
        link.symlink_to(short / target)
    clear_worker_folders(short / "m")
    assert left(short / "m") == []
    assert (short / "precious" / "file").read_text() == "mine"
    assert (short / "tmp" / "precious").is_dir()
