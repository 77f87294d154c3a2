"""Each call that writes fails once in commands that write folders: one line, and what stands under a name is whole.

Or it finds no memory, or is the last before a kill; then the same command, once more, completes what it finds.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import boxwright as bw
from boxwright.base.errors import BoxwrightError
from boxwright.base.files import MARKER, partial_files
from boxwright.cli.main import app
from boxwright.weights.store import load_sealed_archive
from tests.failing_calls import PROBLEM, disk_is_full, failing, is_killed_at, memory_is_short

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
    run = folder / "run"
    # The last one imports what draws: a module whose import is cut off would stay so in this process.
    for command in (["train", *words], ["evaluate", "--model_dir", run, "--out", run / "eval"], ["history", run]):
        done = CliRunner().invoke(app, [str(word) for word in command])
        assert done.exception is None, done.output
    return run


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
@pytest.mark.parametrize("end", [disk_is_full, memory_is_short], ids=["disk", "memory"])
@pytest.mark.parametrize("name", COMMANDS)
def test_each_call_that_writes_fails_once(
    name: str, end: Callable[[], None], shapes_data: Path, run_folder: Path, tmp_path: Path
) -> None:
    words_for, least = COMMANDS[name]
    for number in itertools.count(1):
        out = tmp_path / str(number)
        with failing(number, end) as calls:
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
            if end is disk_is_full:
                assert isinstance(done.exception, BoxwrightError), made[number - 1]
                assert PROBLEM in str(done.exception), made[number - 1]
            else:  # the program says that it is the memory
                assert isinstance(done.exception, MemoryError) or "emory" in str(done.exception), made[number - 1]
            # Where the call is the last of all, it flushes a rename that has happened.
            assert name not in LAST or (out / MARKER).is_file() or not (out / LAST[name]).exists(), number
            # A report of an export is written before the file that it is about.
            files = [path for path in out.glob("a.*") if not path.name.endswith(".parity.json")]
            assert name in LAST or made[number - 1] == "fsync" or not files, number
        load_sealed_archive(run_folder / "ckpt-2.pt")  # what was read is what it was
    assert number > least


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_killed_at_each_call_that_writes(
    name: str, shapes_data: Path, run_folder: Path, tmp_path: Path
) -> None:
    words_for, least = COMMANDS[name]

    def run(out: Path) -> None:
        done = CliRunner().invoke(app, list(map(str, words_for(shapes_data / "coco", run_folder, out))))
        assert done.exit_code == 0, done.output

    for number in itertools.count(1):
        out = tmp_path / str(number)
        ended = is_killed_at(number, functools.partial(run, out))
        for path in out.rglob("*.json"):
            assert path.name.startswith(".") or json.loads(path.read_text()) is not None
        load_sealed_archive(run_folder / "ckpt-2.pt")
        if not ended:
            break
        assert name not in LAST or (out / MARKER).is_file() or not (out / LAST[name]).exists(), number
        if (weights := out / "a.safetensors").exists():
            bw.load_weights(bw.build_detector(bw.load_config(run_folder / "pipeline.config")), weights)
        if (graph := out / "a.onnx").exists():
            bw.load(graph)
        if name not in ("onnx", "doctor"):  # one takes seconds, the other wants a new folder
            run(out)
            assert not (out / MARKER).exists()
    assert number > least
