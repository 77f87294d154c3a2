"""Commands in places that differ: no home, unknown users, odd masks, caches of others, a read-only root, LC_ALL=C."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from boxwright.data.convert import write_coco
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
# A user that the system really does not know; it may read all, as Python itself may lie in root's home.
ANOTHER_USER = """
import ctypes, struct
system = ctypes.CDLL(None, use_errno=True)
system.prctl(8, 1)  # PR_SET_KEEPCAPS
os.setgroups([]), os.setgid(54321), os.setuid(54321)
reads_all = 1 << 2  # CAP_DAC_READ_SEARCH
header, rights = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", reads_all, reads_all, 0, 0, 0, 0)
assert system.capset(header, rights) == 0
"""
# All of the file system but a folder.
READ_ONLY_ROOT = """
import ctypes, subprocess
if ctypes.CDLL(None, use_errno=True).unshare(0x20000):  # CLONE_NEWNS
    sys.exit(77)
for steps in (["--make-rprivate", "/"], ["--bind", {0!r}, {0!r}], ["-o", "remount,ro,bind", "/"]):
    if subprocess.run(["mount", *steps], capture_output=True).returncode:
        sys.exit(77)
os.chdir({0!r})
"""
root_alone = pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user, and mount")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, a picture and an empty cache."""
    (tmp_path / "ckpt-1.pt").write_bytes(small_checkpoint()[0])
    (tmp_path / "a.png").write_bytes(encode_png(ShapesDataset(1, seed=2, size=(40, 50))[0].image))
    (tmp_path / "cache").mkdir()
    return tmp_path


def try_predict(folder: Path, prepare: str, environment: dict[str, str], out: Path) -> subprocess.CompletedProcess[str]:
    """Predict after some code has run; skip the test if that says that it is not possible here."""
    words = ["predict", folder / "a.png", "--checkpoint", folder / "ckpt-1.pt", "--out", out, "--csv"]
    command = [sys.executable, "-c", PROGRAM, prepare, *map(str, words)]
    done = forked.run(command, env=environment, cwd=folder)
    if done.returncode == 77:
        pytest.skip("file systems cannot be mounted here")
    assert "Traceback" not in done.stderr
    return done


def predict(folder: Path, prepare: str, environment: dict[str, str]) -> list[Path]:
    """Predict into a folder, after some code has run; return all that was written, also to the cache."""
    done = try_predict(folder, prepare, environment, folder / "out")
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
@root_alone
def test_a_user_whom_the_system_does_not_know(folder: Path) -> None:
    """As of `docker run --user 54321`: files are its own, and what is another's is not written."""
    for path in written(folder):
        os.chown(path, 54321, 54321)
    found = predict(folder, ANOTHER_USER, environment(BOXWRIGHT_CACHE=str(folder / "cache")))
    assert {path.stat().st_uid for path in found} == {54321}
    predict(folder, ANOTHER_USER, environment())
    others = folder.parent / "others"
    others.mkdir(mode=0o755)
    done = try_predict(folder, ANOTHER_USER, environment(), others / "out")
    assert done.returncode == 1
    assert done.stderr == f"error: {others / 'out'}: this folder cannot be created: Permission denied\n"


@pytest.mark.slow
@root_alone
@pytest.mark.parametrize("home", [None, "/root"])
def test_a_read_only_root(home: str | None, folder: Path) -> None:
    """As of `docker run --read-only`: one folder is enough, and elsewhere an error names what cannot be written."""
    prepare = READ_ONLY_ROOT.format(str(folder))
    assert (folder / "out" / "detections.csv") in predict(folder, prepare, environment(HOME=home))
    elsewhere = folder.parent / "elsewhere"
    done = try_predict(folder, prepare, environment(HOME=home), elsewhere)
    assert done.returncode == 1
    assert done.stderr == f"error: {elsewhere}: this folder cannot be created: Read-only file system\n"


@pytest.mark.slow
def test_names_that_the_locale_does_not_have(tmp_path: Path) -> None:
    """With LC_ALL=C, names of files, folders and classes are what they are elsewhere, in each main command."""
    folder = tmp_path / "donn\u00e9es"
    write_coco(ShapesDataset(8, seed=3, size=(64, 80)), folder / "\u00e9t\u00e9.json")
    content = json.loads((folder / "\u00e9t\u00e9.json").read_text("utf-8"))
    for category in content["categories"]:
        category["name"] += "\u5b57"
    for image in content["images"]:
        path = Path(image["file_name"])
        image["file_name"] = str(path.with_name(f"\u00f1{path.name}"))
        found = next(folder.rglob(path.name))
        found.rename(found.with_name(f"\u00f1{path.name}"))
    (folder / "\u00e9t\u00e9.json").write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    picture = str(next(folder.rglob("\u00f1*")).relative_to(folder))
    model = ["--model", "ssd_mobilenet_v2_fpn_small", "--num_train_steps", "1", "--workers", "0"]
    commands = [
        ["inspect", "\u00e9t\u00e9.json"],
        ["doctor", "\u00e9t\u00e9.json", "--fix", "r\u00e9par\u00e9"],
        ["convert", "\u00e9t\u00e9.json", "\u00e9crit/\u00e9.record"],
        ["convert", "\u00e9t\u00e9.json", "yolo\u00e9/data.yaml"],
        ["train", "\u00e9t\u00e9.json", "--model_dir", "mod\u00e8le", *model],
        ["evaluate", "--model_dir", "mod\u00e8le"],
        ["report", "mod\u00e8le/eval"],
        ["history", "mod\u00e8le"],
        ["predict", picture, "--model_dir", "mod\u00e8le", "--out", "\u00e0", "--csv", "--coco", "--min_score", "0"],
        ["export", "mod\u00e8le", "mod\u00e8le/\u00e9.onnx", "--allow_difference"],
        ["predict", picture, "--model_dir", "mod\u00e8le/\u00e9.onnx", "--out", "\u00e02"],
    ]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONUTF8"))}
    for words in commands:
        command = [sys.executable, "-m", "boxwright", *words]
        done = subprocess.run(command, env=plain | {"LC_ALL": "C"}, cwd=folder, capture_output=True, check=False)
        said = (done.stdout + done.stderr).decode()
        assert done.returncode == 0, said
        assert "Traceback" not in said
        assert "\\u" not in said
    assert "\u5b57" in (folder / "\u00e0" / "detections.csv").read_text("utf-8")
    assert (folder / "\u00e9crit" / "\u00e9.record").is_file()


@pytest.mark.slow
@root_alone
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
