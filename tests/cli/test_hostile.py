"""Commands as processes: odd terminals, odd names, signals in the middle, disks that are full."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.base.errors import DataError
from boxwright.base.files import MARKER
from boxwright.cli.main import main
from boxwright.data.image_io import encode_jpeg, encode_png
from boxwright.data.shapes import ShapesDataset
from boxwright.inference.predict import predict
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.sources import find_sources
from tests import forked
from tests.fuzz.readers import small_checkpoint


def command(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-m", "boxwright", *map(str, arguments)])


def refused(found: subprocess.CompletedProcess[str]) -> str:
    assert found.returncode in (1, 2), (found.returncode, found.stdout, found.stderr)
    assert "Traceback" not in found.stderr, found.stderr
    return found.stderr


def end_of_main() -> None:
    """Run the program until it ends with status 1, and put back what it does on SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 1


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    (tmp_path / "ckpt-1.pt").write_bytes(small_checkpoint()[0])
    shapes = ShapesDataset(3, seed=2, size=(40, 50))
    for name, index in (("a-2.jpg", 0), ("a.jpg", 1)):
        (tmp_path / "photos" / name).write_bytes(encode_jpeg(shapes[index].image))
    (tmp_path / "photos" / "a.png").write_bytes(encode_png(shapes[2].image))
    return tmp_path / "photos"


def test_each_image_has_a_picture_of_its_own(photos: Path, tmp_path: Path) -> None:
    found = command(
        "predict", photos, "--checkpoint", tmp_path / "ckpt-1.pt", "--out", tmp_path / "out", "--min_score", 0
    )
    assert found.returncode == 0, found.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "a-2.jpg",
        "a-3.jpg",
        "a.jpg",
        "detections.json",
    ]
    rows = json.loads((tmp_path / "out" / "detections.json").read_text())
    assert {Path(row["file_name"]).name for row in rows} <= {"a-2.jpg", "a.jpg", "a.png"}


SLOW = """
import os, sys, time
import boxwright.inference.sources as p
plain = p.read_image
def slow(path, **more):
    if path.name == "a.jpg":
        while not os.path.exists(sys.argv[-1] + "/a-2.jpg"):
            time.sleep(0.01)
        print("second", flush=True)
        time.sleep(100000)
    return plain(path, **more)
p.read_image = slow
from boxwright.cli.main import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_predict_is_ended_in_the_middle(photos: Path, tmp_path: Path, number: int, status: int) -> None:
    """What was found until then is written, whole, and the folder says that it is not all."""
    words = ["predict", str(photos), "--checkpoint", str(tmp_path / "ckpt-1.pt"), "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLOW), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if "second" in line:
                break
        run.send_signal(number)
        _, errors = run.communicate()
        assert run.returncode == status, errors
    assert "Traceback" not in errors
    assert isinstance(json.loads((tmp_path / "out" / "detections.json").read_text()), list)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [MARKER, "a-2.jpg", "detections.json"]


def test_a_bad_image_keeps_what_was_found_before(tmp_path: Path) -> None:
    import boxwright as bw

    (tmp_path / "ckpt-1.pt").write_bytes(small_checkpoint()[0])
    detector, _, _ = bw.restore_detector(tmp_path / "ckpt-1.pt")
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    files[0].write_bytes(encode_png(np.zeros((8, 8, 3), np.uint8)))
    files[1].write_bytes(b"rubbish")
    with pytest.raises(DataError, match="b.png: not an image"):
        sources = find_sources([str(file) for file in files])
        settings = PredictionSettings(strict=True)
        predict(lambda images: [one.arrays() for one in detector.detect(images)], sources, tmp_path / "out", settings)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [MARKER, "a.jpg", "detections.json"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip(
            "no file system may be mounted here; tests/test_files.py covers the rule with an error that is made"
        )
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.slow
def test_a_full_disk_has_a_name_and_nothing_half(photos: Path, tmp_path: Path, small_disk: Path) -> None:
    verbs = [
        ("predict", photos, "--checkpoint", tmp_path / "ckpt-1.pt", "--out", small_disk / "out"),
        ("demo", "--shapes", "--out", small_disk / "demo", "--train-images", 30, "--val-images", 5),
        ("demo", "--out", small_disk / "demo"),
        ("export", tmp_path / "ckpt-1.pt", small_disk / "w.safetensors"),
    ]
    for words in verbs:
        (small_disk / "filler").write_bytes(b"x" * 36_000)
        errors = refused(command(*words))
        assert "No space left on device" in errors, errors
        assert str(small_disk) in errors.replace("\n", ""), "the file is named"
        assert not list(small_disk.rglob("*.partial"))
        assert not list(small_disk.rglob("*.record*"))
        for path in small_disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.slow
def test_an_ascii_terminal(shapes_data: Path, tmp_path: Path) -> None:
    ascii = {"PYTHONIOENCODING": "ascii", "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}  # read when Python starts
    words = [sys.executable, "-m", "boxwright", "inspect", shapes_data / "voc", "--sheet", tmp_path / "s.png"]
    found = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **ascii})
    assert found.returncode == 0, found.stderr
    assert "80\\xd764" in found.stdout


def test_a_name_that_is_no_text(shapes_data: Path, tmp_path: Path) -> None:
    """A folder's name in Latin-1, where names are UTF-8: it is used, and printed with escapes."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    shutil.copytree(shapes_data / "voc", folder)
    found = command("inspect", folder, "--sheet", f"{folder}/s.png")
    assert found.returncode == 0, found.stderr
    assert "caf\\udce9" in found.stdout.replace("\n", "")
    assert Path(f"{folder}/s.png").is_file()
    assert "no such file" in refused(command("config", "check", f"{folder}/none"))


TRAIN = ("train", "--config", "{config}", "--model_dir", "{tmp}/m")


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "{voc}", "--sheet", "x.txt"],
        [*TRAIN, "--seed", "-1"],
        [*TRAIN, "--seed", str(2**64)],
        [*TRAIN, "--device", "meta"],
        [*TRAIN, "--set", "eval_input_reader[²].name=x"],
        [*TRAIN, "--set", "train_config.fine_tune_checkpoint=\udcff"],
        ["config", "check", "{tmp}"],
        ["config", "check", "{tmp}/none"],
        ["evaluate", "--model_dir", "{tmp}/none"],
        ["predict", "{tmp}/none", "--model_dir", "{tmp}/none", "--out", "{tmp}/o"],
        ["convert", "{voc}", "{config}/x"],
        ["replay", "{tmp}"],
    ],
)
def test_one_line_and_no_traceback(words: list[str], small_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    values = {"voc": str(shapes_data / "voc"), "config": str(small_config), "tmp": str(tmp_path)}
    errors = refused(command(*(word.format(**values) for word in words)))
    assert errors.strip()
    assert not (tmp_path / "m" / "train").exists()


@pytest.mark.slow
def test_a_reader_that_has_ended(small_config: Path) -> None:
    words = [sys.executable, "-m", "boxwright", "config", "show", str(small_config)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        errors = run.stderr.read()
        run.wait()
    assert b"Traceback" not in errors, errors


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import boxwright.cli.main as module

    def app(**_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(module, "app", app)
    end_of_main()
