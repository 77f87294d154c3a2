"""Commands in places that differ: no home, a user whom the system does not know, odd masks, caches of others."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from boxwright.data.image_io import encode_png
from boxwright.data.shapes import ShapesDataset
from tests import forked
from tests.fuzz.readers import small_checkpoint

PROGRAM = """
import os, pwd, sys
from pathlib import Path

def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

prepare, *words = sys.argv[1:]
exec(prepare)
sys.argv = ["boxwright", *words]
from boxwright.__main__ import run
run()
"""
UNKNOWN_USER = "pwd.getpwuid = unknown"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, a picture and an empty cache."""
    (tmp_path / "ckpt-1.pt").write_bytes(small_checkpoint()[0])
    (tmp_path / "a.png").write_bytes(encode_png(ShapesDataset(1, seed=2, size=(40, 50))[0].image))
    (tmp_path / "cache").mkdir()
    return tmp_path


def predict(folder: Path, prepare: str, environment: dict[str, str]) -> list[Path]:
    """Predict into a folder, after some code has run; return all that was written, also to the cache."""
    words = ["predict", folder / "a.png", "--checkpoint", folder / "ckpt-1.pt", "--out", folder / "out", "--csv"]
    command = [sys.executable, "-c", PROGRAM, prepare, *map(str, words)]
    done = forked.run(command, env=environment, cwd=folder)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    return [*written(folder / "out"), *written(folder / "cache")]


def written(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.rglob("*")


def environment(**changes: str | None) -> dict[str, str]:
    """Return this process's environment without what says where a home or a cache is, and with changes."""
    names = ("HOME", "BOXWRIGHT_CACHE", "XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return kept | {name: value for name, value in changes.items() if value is not None}


HOMES = {
    "no home": {},
    "a home that is not there": {"HOME": "/nonexistent/home"},
    "a home that is a file": {"HOME": "/dev/null"},
    "an empty home": {"HOME": ""},
}


@pytest.mark.slow_except("no home")
@pytest.mark.parametrize("name", HOMES)
def test_a_user_without_a_name_and_without_a_home(name: str, folder: Path) -> None:
    found = predict(folder, UNKNOWN_USER, environment(**HOMES[name]))
    assert (folder / "out" / "detections.csv") in found
    assert {path.name for path in folder.iterdir()} == {"ckpt-1.pt", "a.png", "cache", "out"}


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["000", "077"])
def test_files_have_the_modes_that_the_mask_leaves(mask: str, folder: Path) -> None:
    """Temporary files are made for their owner alone, and then get what a plain file has; nothing is forced open."""
    found = predict(folder, f"os.umask(0o{mask})", environment(BOXWRIGHT_CACHE=str(folder / "cache")))
    for path in set(found) - {folder / "cache"}:
        whole = 0o777 if path.is_dir() else 0o666
        assert stat.S_IMODE(path.stat().st_mode) == whole & ~int(mask, 8), path


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a folder away")
def test_a_cache_of_another_user_is_data_alone(folder: Path) -> None:
    """Whoever owns it can write modules and settings there: none is imported."""
    cache = folder / "cache"
    for name in ("boxwright.py", "sitecustomize.py", "torch/__init__.py", "_native.so"):
        (cache / name).parent.mkdir(exist_ok=True)
        (cache / name).write_text("raise SystemExit('run')")
    for path in written(cache):
        os.chown(path, 54321, 54321)
    predict(folder, "pass", environment(BOXWRIGHT_CACHE=str(cache), XDG_CACHE_HOME=str(cache), HOME=str(cache)))
    assert (folder / "out" / "detections.csv").is_file()
