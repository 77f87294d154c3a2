"""Files appear whole or not at all, folders say when they are not."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from boxwright.base.drawing import draw_boxes
from boxwright.base.errors import BoxwrightError, ConfigError, DataError, OutputError
from boxwright.base.files import (
    MARKER,
    is_file,
    open_whole,
    partial_files,
    read_file,
    refuse_unfinished,
    unfinished,
    unique_stem,
    write_whole,
)
from boxwright.base.limits import IMAGE_PIXELS, LIMITS, REMOTE_CACHE_BYTES, Limit
from boxwright.config.load import parse_message
from boxwright.data import archives
from boxwright.data.coco_masks import check_mask_memory, decode_mask
from boxwright.data.dense_pose import PointList
from boxwright.data.image_io import decode_image, encode_png
from boxwright.data.reading import checked_sample
from boxwright.data.tfrecord import TFRecordFile, write_records
from boxwright.inference.fetch import fetch_image
from boxwright.nn.optimization.trainable import Freezing, Trainable
from boxwright.pipeline import messages as m
from boxwright.runtime import sessions
from boxwright.runtime.export_file import read_export_file
from boxwright.runtime.trial import try_in_child
from boxwright.types import Sample
from boxwright.weights.tensorflow.checkpoint import SavedSlices
from boxwright.weights.tensorflow.sstable import read_table, write_table
from boxwright.weights.zoo_archive import unpacked
from tests.exporters.tiny_exports import tiny_export
from tests.weights.tensorflow.test_first_formats import archive, saved_slices


def test_what_was_there_stays_until_all_is_written(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "a.json", "before")
    with pytest.raises(KeyboardInterrupt), open_whole(path) as file:
        file.write(b"half")
        assert len(partial_files(tmp_path)) == 1
        raise KeyboardInterrupt
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"], "nothing half-written stays"


def test_two_writers_have_files_of_their_own(tmp_path: Path) -> None:
    with open_whole(tmp_path / "a") as first, open_whole(tmp_path / "a") as second:
        first.write(b"one")
        second.write(b"two")
        assert len(partial_files(tmp_path)) == 2
    assert (tmp_path / "a").read_bytes() in (b"one", b"two")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_errors_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("boxwright.base.files.os.fsync", refuse)
    with pytest.raises(OutputError, match=rf"metrics.json: could not be written: {os.strerror(number)}"):
        write_whole(tmp_path / "metrics.json", "{}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["none/a", "a\0b", "x" * 300])
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match="could not be written: "):
        write_whole(tmp_path / name, "")
    with pytest.raises(DataError):
        read_file(tmp_path / name)
    with pytest.raises(ConfigError):
        read_file(tmp_path / name, ConfigError)
    assert not is_file(tmp_path / name)


def test_text_that_no_file_can_hold(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="surrogates"):
        write_whole(tmp_path / "a", "\udcff")


def test_a_folder_is_marked_until_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with pytest.raises(ZeroDivisionError), unfinished(folder, "a conversion"):
        assert "a conversion" in (folder / MARKER).read_text()
        _ = 1 / 0
    with pytest.raises(DataError, match="has not finished"):
        refuse_unfinished(folder)
    with unfinished(folder, "a conversion"):
        pass
    refuse_unfinished(folder)
    assert not list(folder.iterdir())


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    """The second hears of the first; what the first leaves unmarked or marked is the first's affair."""
    folder = tmp_path / "out"
    with unfinished(folder, "predictions"):
        wanted = rf"out: another run is writing to this folder: predictions; host {socket.gethostname()}, process {os.getpid()};"
        with pytest.raises(OutputError, match=wanted), unfinished(folder, "an evaluation"):
            pytest.fail("two at a time")
        assert (folder / MARKER).is_file()
    assert not list(folder.iterdir())


WRITER = """
import os, sys, time
from boxwright.base.files import unfinished
with unfinished(sys.argv[1], "predictions"):
    reading, writing = os.pipe()
    if os.fork() == 0:  # a worker that outlives its parent; what Python does after a fork is done now
        os.write(writing, b"x")
        time.sleep(600)
    os.read(reading, 1)
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_killed_writer_leaves_its_mark_and_the_folder_open(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "held\n"
            with (
                pytest.raises(OutputError, match=f"another run is writing .*process {writer.pid};"),
                unfinished(tmp_path, "predictions"),
            ):
                pass
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            with pytest.raises(DataError, match="has not finished"):
                refuse_unfinished(tmp_path)
            with unfinished(tmp_path, "predictions"):
                assert f"process {os.getpid()}." in (tmp_path / MARKER).read_text()
            assert not list(tmp_path.iterdir())
        finally:
            os.killpg(writer.pid, signal.SIGKILL)


def test_a_mark_that_another_run_made_meanwhile_stays(tmp_path: Path) -> None:
    """A user takes a mark away, and begins anew: the first's end is not the second's."""
    with unfinished(tmp_path, "predictions"):
        (tmp_path / MARKER).unlink()
        (tmp_path / MARKER).write_text("another's")
    assert (tmp_path / MARKER).read_text() == "another's"


def test_a_mark_that_points_elsewhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MARKER).symlink_to(tmp_path / "mine.txt")
    with pytest.raises(OutputError, match=f"{MARKER}: could not be written"), unfinished(tmp_path / "out", "x"):
        pass
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_folder_on_a_full_disk_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("boxwright.base.files.os.fsync", full)
    with pytest.raises(OutputError, match=rf"{MARKER}: could not be written: No space"), unfinished(tmp_path, "x"):
        pass
    assert not list(tmp_path.iterdir())
    (tmp_path / MARKER).write_text("of a run that was killed")
    with pytest.raises(OutputError, match="No space"), unfinished(tmp_path, "x"):
        pass
    assert (tmp_path / MARKER).is_file()


def test_a_folder_that_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems: said, and left to the user."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.warns(UserWarning, match="a second run can write"), unfinished(tmp_path, "x"):
        assert (tmp_path / MARKER).is_file()
    assert not list(tmp_path.iterdir())


def test_stems_are_names_and_all_different() -> None:
    taken: set[str] = set()
    given = ["a-2", "a", "a", "A", "../x", "x" * 100_000, "x" * 100_000, "²", "浣熊" * 200, "", ".hidden", "a/b", "a_b"]
    stems = [unique_stem(name, taken) for name in given]
    assert len({stem.lower() for stem in stems}) == len(given)
    assert stems[:4] == ["a-2", "a", "a-3", "A-4"]
    assert all(0 < len(stem.encode()) < 140 and "/" not in stem and not stem.startswith(".") for stem in stems)


def test_limits_are_raised_by_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({limit.variable for limit in LIMITS}) == len(LIMITS) == 21
    assert "BOXWRIGHT_MAX_IMAGE_PIXELS" in IMAGE_PIXELS.exceeded(10**9)
    assert not IMAGE_PIXELS.exceeded(10**8)
    monkeypatch.setenv("BOXWRIGHT_MAX_IMAGE_PIXELS", "2e9")
    assert not IMAGE_PIXELS.exceeded(10**9)
    for bad in ("many", "-1", "nan", "0", "inf", "1_000", "\u0661\u0660"):
        monkeypatch.setenv("BOXWRIGHT_MAX_IMAGE_PIXELS", bad)
        with pytest.raises(ConfigError, match="expected a number of 1 or more"):
            _ = IMAGE_PIXELS.value


@pytest.mark.slow_cases("pattern_seconds", "trial_bytes", "trial_seconds")
# What is over the cache's limit is removed, not refused (test_remote.py).
@pytest.mark.parametrize(
    "limit", [limit for limit in LIMITS if limit is not REMOTE_CACHE_BYTES], ids=lambda limit: limit.name
)
def test_every_limit_holds_and_is_a_users(limit: Limit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allowed by default is refused where a user allows 1, by an error that names the variable."""
    use = USES[limit.name]
    use(tmp_path)
    monkeypatch.setenv(limit.variable, "1")
    if limit.name == "picture_side":
        assert max(draw_boxes(np.zeros((9, 7, 3), np.uint8), np.zeros((0, 4)), [], []).shape[:2]) == 1
    elif limit.name == "pattern_seconds":
        with pytest.raises(ConfigError, match=limit.variable):
            Trainable(
                torch.nn.Linear(1, 1), Freezing(freeze=("^(a|aa)+$",)), {"weight": ("a" * 60 + "!",), "bias": ("b",)}
            )
    else:
        if limit.name.endswith("_seconds"):  # the clock goes by two seconds at each look
            monkeypatch.setattr("time.monotonic", itertools.count(0, 2).__next__)
        with pytest.raises(BoxwrightError, match=limit.variable):
            use(tmp_path)


def _download(_: Path) -> None:
    """Fetch an image from a server that answers once."""
    picture = encode_png(np.zeros((2, 2, 3), np.uint8))
    head = f"HTTP/1.0 200 OK\r\nContent-Type: image/png\r\nContent-Length: {len(picture)}\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(head.encode() + picture)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            fetch_image(f"http://127.0.0.1:{server.getsockname()[1]}/a.png")
        finally:
            thread.join()


def _record(folder: Path) -> None:
    write_records(folder / "r", [b"two bytes"])
    _ = TFRecordFile(folder / "r")[0]


def _polygon(_: Path) -> None:
    decode_mask([[0, 0, 4, 0, 4, 4]], (8, 8), "x")


def _first_format(folder: Path) -> None:
    (folder / "model.ckpt").write_bytes(saved_slices({"a": np.ones(3, np.float32)}))
    SavedSlices(folder / "model.ckpt")


def _archive(folder: Path) -> None:
    (folder / "a.tar").write_bytes(archive({"x/a.config": b"", "x/b.config": b""}, "w"))
    with unpacked(folder / "a.tar"):
        pass


BOX = Sample(np.zeros((4, 4, 3), np.uint8), np.array([[0, 0, 3, 3]], np.float32), np.zeros(1, np.int64))
POINTS = PointList(np.array([2]), *[np.zeros(2)] * 5)


def _archive_of_data(folder: Path) -> None:
    """Unpack an archive of two files that is new each time, as others are in the cache."""
    new = Path(tempfile.mkdtemp(dir=folder))
    with zipfile.ZipFile(new / "a.zip", "w") as packed:
        packed.writestr("a", "1")
        packed.writestr("b", "2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOXWRIGHT_CACHE", str(new))
        archives.unpacked(new / "a.zip")


USES: dict[str, Callable[[Path], object]] = {
    "image_pixels": lambda _: decode_image(encode_png(np.zeros((2, 2, 3), np.uint8)), "x"),
    "mask_pixels": lambda _: check_mask_memory(2, (2, 2), "x"),
    "mask_boundary": _polygon,
    "surface_points": lambda _: POINTS.padded("x"),
    "coordinate": lambda _: checked_sample(BOX, "x"),
    "file_bytes": lambda folder: read_file(write_whole(folder / "a", b"12")),
    "record_bytes": _record,
    "trial_bytes": lambda _: try_in_child(read_export_file(tiny_export(".onnx")), sessions.__name__),
    "trial_seconds": lambda _: try_in_child(read_export_file(tiny_export(".onnx")), sessions.__name__),
    "download_bytes": _download,
    "download_seconds": _download,
    "picture_side": lambda _: None,
    "config_nesting": lambda _: parse_message("model { ssd { } }", m.TrainEvalPipelineConfig),
    "config_values": lambda _: parse_message("model { ssd { } }", m.TrainEvalPipelineConfig),
    "index_bytes": lambda _: read_table(write_table({b"key": b"value"}), "x"),
    "checkpoint_bytes": _first_format,
    "archive_files": _archive,
    "data_files": _archive_of_data,
    "data_bytes": _archive_of_data,
    "pattern_seconds": lambda _: None,
}
