"""Each call that writes fails once in commands that write folders: one line, and what stands under a name is whole."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from boxwright.base.errors import BoxwrightError
from boxwright.base.files import MARKER, partial_files
from boxwright.cli.main import app
from boxwright.weights.store import load_sealed_archive
from tests.failing_calls import PROBLEM, failing

# The least number of calls that each command makes: fewer would mean that calls are not seen.
COMMANDS: dict[str, tuple[Callable[[Path, Path, Path], list[object]], int]] = {
    "evaluate": (lambda data, run, out: ["evaluate", "--model_dir", run, "--out", out], 10),
    "report": (lambda data, run, out: ["report", run / "eval", "--out", out], 10),
    "compare": (lambda data, run, out: ["compare", run / "eval", run / "eval", "--out", out], 10),
    "history": (lambda data, run, out: ["history", run], 3),
    "doctor": (lambda data, run, out: ["doctor", data, "--fix", out], 10),
    "weights": (lambda data, run, out: ["export", run, out / "a.safetensors"], 3),
    "onnx": (lambda data, run, out: ["export", run, out / "a.onnx", "--allow_difference"], 3),
}


@pytest.fixture(scope="module")
def run_folder(shapes_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, with an evaluation."""
    from tests.conftest import small_config_text

    folder = tmp_path_factory.mktemp("run")
    (folder / "pipeline.config").write_text(small_config_text(shapes_data))
    words = [
        "--config",
        folder / "pipeline.config",
        "--model_dir",
        folder / "run",
        "--num_train_steps",
        2,
        "--workers",
        0,
    ]
    for command in (["train", *words], ["evaluate", "--model_dir", folder / "run", "--out", folder / "run" / "eval"]):
        done = CliRunner().invoke(app, [str(word) for word in command])
        assert done.exception is None, done.output
    return folder / "run"


def require_whole(folder: Path) -> None:
    """Refuse temporary files and JSON that is cut off."""
    folders = [folder, *filter(Path.is_dir, folder.rglob("*"))]
    assert [path for part in folders for path in partial_files(part)] == []
    assert [path for path in folder.rglob(".*") if path.is_dir()] == []
    for path in folder.rglob("*.json"):
        json.loads(path.read_text())


# What a folder has once it is complete; without a mark it may not have this.
LAST = {"evaluate": "metrics.json", "report": "index.html", "compare": "index.html", "doctor": "label_map.pbtxt"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMMANDS)
def test_each_call_that_writes_fails_once(name: str, shapes_data: Path, run_folder: Path, tmp_path: Path) -> None:
    words_for, least = COMMANDS[name]
    for number in itertools.count(1):
        out = tmp_path / str(number)
        with failing(number) as calls:
            done = CliRunner().invoke(app, list(map(str, words_for(shapes_data / "coco", run_folder, out))))
        made = list(calls)
        if out.exists():
            require_whole(out)
        require_whole(run_folder)
        if (picture := run_folder / "history.png").exists():
            Image.open(picture).load()
            picture.unlink()
        if len(made) < number:
            assert done.exit_code == 0, done.output
            break
        if done.exception is not None:
            assert isinstance(done.exception, BoxwrightError), made[number - 1]
            assert PROBLEM in str(done.exception), made[number - 1]
            # Where the call is the last of all, it flushes a rename that has happened.
            assert name not in LAST or (out / MARKER).is_file() or not (out / LAST[name]).exists(), number
            # A report of an export is written before the file that it is about.
            files = [path for path in out.glob("a.*") if not path.name.endswith(".parity.json")]
            assert name in LAST or made[number - 1] == "fsync" or not files, number
        load_sealed_archive(run_folder / "ckpt-2.pt")  # what was read is what it was
    assert number > least
