"""Each call that writes fails once, as SQLite's tests have it: the first, the second, and so on to the last.

After each there is one error of ours, no temporary file, and what stood under a name before is whole.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from boxwright.base.errors import BoxwrightError
from boxwright.base.files import MARKER, make_folder, partial_files, write_whole
from boxwright.data.convert import write_coco, write_tfrecords, write_voc, write_yolo
from boxwright.data.image_io import encode_png
from boxwright.data.shapes import ShapesDataset
from boxwright.data.tool_files import Tool, write_for_tool
from boxwright.data.write_rows import write_parquet, write_web_dataset
from boxwright.inference.predict import predict
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.sources import find_sources
from tests.failing_calls import PROBLEM, disk_is_full, failing, is_killed_at, memory_is_short
from tests.inference.blobs import find_blobs

BEFORE = b"what was there before"


def predictions(folder: Path) -> None:
    image = folder.parent / "image.png"
    predict(find_blobs, find_sources([str(image)]), folder, PredictionSettings(as_json=True, coco=True, csv=True))


SHAPES = ShapesDataset(2, seed=3, size=(24, 32))
WRITERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "coco": (lambda folder: write_coco(SHAPES, folder / "a.json"), "a.json"),
    "yolo": (lambda folder: write_yolo(SHAPES, folder / "data.yaml"), "labels/train/*.txt"),
    "voc": (lambda folder: write_voc(SHAPES, folder), "ImageSets/Main/all.txt"),
    "tfrecord": (lambda folder: write_tfrecords(SHAPES, folder / "a.record", num_shards=1), "a.record"),
    "web_dataset": (lambda folder: write_web_dataset(SHAPES, folder / "a.tar", num_shards=2), "a-00000*.tar"),
    "parquet": (lambda folder: write_parquet(SHAPES, folder / "a.parquet", masks=True), "a.parquet"),
    "cvat": (lambda folder: write_for_tool(SHAPES, folder / "a.xml", Tool.CVAT), "a.xml"),
    "predictions": (predictions, "coco.json"),
}


def write_once(name: str, root: Path) -> tuple[Path, bytes]:
    """Return the place of the file that is watched, below a folder, and its content."""
    write, pattern = WRITERS[name]
    write_whole(root / "image.png", encode_png(np.zeros((24, 32, 3), np.uint8)))
    (root / "whole").mkdir()
    write(root / "whole")
    earlier = min((root / "whole").glob(pattern)).relative_to(root / "whole")
    return earlier, (root / "whole" / earlier).read_bytes()


@pytest.mark.filterwarnings("ignore:masks are dropped")
@pytest.mark.parametrize("end", [disk_is_full, memory_is_short], ids=["disk", "memory"])
@pytest.mark.parametrize("name", WRITERS)
def test_each_call_that_writes_fails_once(name: str, end: Callable[[], None], tmp_path: Path) -> None:
    write, _ = WRITERS[name]
    earlier, complete = write_once(name, tmp_path)
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        write_whole(make_folder((folder / earlier).parent) / earlier.name, BEFORE)
        problem = ""
        with failing(number, end) as calls:
            try:
                write(folder)
            except BoxwrightError as error:
                problem = str(error)
            except MemoryError:
                problem = "not enough memory"
        if len(calls) < number:  # nothing was left to fail
            assert problem == ""
            break
        assert (PROBLEM if end is disk_is_full else "not enough memory") in problem, calls[number - 1]
        folders = [folder, *filter(Path.is_dir, folder.rglob("*"))]
        assert [path for part in folders for path in partial_files(part)] == [], calls[number - 1]
        found = (folder / earlier).read_bytes()
        # Results up to the failure are kept, in a folder that says so.
        assert found in (BEFORE, complete) or (folder / MARKER).is_file(), calls[number - 1]
    assert number > 5


@pytest.mark.filterwarnings("ignore:masks are dropped", "ignore:This process:DeprecationWarning")
@pytest.mark.slow_except("coco")
@pytest.mark.parametrize("name", WRITERS)
def test_a_kill_at_each_call_that_writes_leaves_whole_files(name: str, tmp_path: Path) -> None:
    """What is there under a name is what was there, or complete, or the folder says that it is not; then it is."""
    write, _ = WRITERS[name]
    earlier, complete = write_once(name, tmp_path)
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        write_whole(make_folder((folder / earlier).parent) / earlier.name, BEFORE)
        ended = is_killed_at(number, functools.partial(write, folder))
        found = (folder / earlier).read_bytes()
        assert found in (BEFORE, complete) or (folder / MARKER).is_file(), number
        if not ended:
            break
        write(folder)
        assert (folder / earlier).read_bytes() == complete
        assert not (folder / MARKER).exists()
    assert number > 5
