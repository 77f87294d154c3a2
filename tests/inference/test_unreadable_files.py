"""Files that cannot be read among those that can: the others are done, and the bad ones are named and counted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError, DataError
from boxwright.base.files import MARKER
from boxwright.cli.main import app
from boxwright.data.image_io import encode_png
from boxwright.inference import detect_functions, sources
from boxwright.inference.predict import predict
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.sources import Frame, VideoSource, find_sources, reconnecting
from boxwright.types import Array, Detections
from tests.cli.test_commands import RUNNER
from tests.inference.blobs import BlobModel, find_blobs, picture_of
from tests.inference.rtsp_server import serving_pictures
from tests.inference.test_predict import HEIGHT, WIDTH, moving, rows_of

PNG = encode_png(picture_of([(4, 8, 20, 24)], HEIGHT, WIDTH))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four good images and every kind of bad one between them."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a", "c", "e", "g"):
        (folder / f"{name}.png").write_bytes(PNG)
    (folder / "b.png").write_bytes(PNG[: len(PNG) // 2])
    (folder / "d.jpg").write_bytes(b"")
    (folder / "f.jpg").mkdir()
    (folder / "h.jpg").symlink_to(folder / "gone.jpg")
    (folder / "i.mp4").write_bytes(b"no video")
    (folder / "j.jpg").write_bytes(b"<!DOCTYPE html><html>404</html>")
    return folder


BAD = ["b.png", "d.jpg", "f.jpg", "h.jpg", "i.mp4", "j.jpg"]


def command(*words: object) -> tuple[int, str, str]:
    """Return the status of a command, the text of its error, and what it printed."""
    result = RUNNER.invoke(app, ["predict", *map(str, words), "--model_dir", "."])
    return result.exit_code, str(result.exception or ""), result.output


@pytest.fixture
def _blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect_functions, "ModelSource", BlobModel)


# Of an exported detector or on a CPU, and of a GPU, where several threads read and pictures share batches.
DEVICES = ("", "cuda:0")


@pytest.mark.parametrize("device", DEVICES)
def test_good_files_are_done_and_bad_ones_listed(device: str, folder: Path, tmp_path: Path) -> None:
    done = predict(find_blobs, find_sources([str(folder)]), tmp_path / "out", device=device)
    assert (done.pictures, done.objects) == (4, 4)
    assert [Path(line.split(": ")[0]).name for line in done.errors] == BAD
    assert all(line.startswith(str(folder)) and len(line.splitlines()) == 1 for line in done.errors)
    assert "no such file" in done.errors[3].lower()
    assert [Path(row["file_name"]).name for row in rows_of(tmp_path / "out")] == ["a.png", "c.png", "e.png", "g.png"]
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"a.jpg", "c.jpg", "e.jpg", "g.jpg", "detections.json"}, "complete, with no mark"


@pytest.mark.parametrize("device", DEVICES)
def test_strict_stops_at_the_first(device: str, folder: Path, tmp_path: Path) -> None:
    settings = PredictionSettings(strict=True)
    with pytest.raises(DataError, match=r"b\.png"):
        predict(find_blobs, find_sources([str(folder)]), tmp_path / "out", settings, device=device)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a.jpg", "detections.json", MARKER}
    with pytest.raises(ConfigError, match="remove it or --max_errors"):
        PredictionSettings(strict=True, max_errors=0.5)


def test_nothing_that_can_be_read_is_an_error_with_all_reasons(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"b\.png: .*; .*d\.jpg: ") as raised:
        predict(find_blobs, find_sources([str(folder / "b.png"), str(folder / "d.jpg")]), tmp_path / "out")
    assert len(str(raised.value).splitlines()) == 1
    assert (tmp_path / "out" / MARKER).is_file()


@pytest.mark.parametrize("device", DEVICES)
def test_an_array_of_other_channels_is_a_bad_file(device: str, tmp_path: Path) -> None:
    """The detector refuses it, not the reader."""
    np.save(tmp_path / "five.npy", np.zeros((8, 8, 5), np.uint8))
    (tmp_path / "a.png").write_bytes(PNG)

    def detect(images: Sequence[NDArray[np.uint8]]) -> list[Detections[Array]]:
        if any(image.shape[2] != 3 for image in images):
            raise DataError("image 0: expected 3 channels")
        return find_blobs(images)

    words = [str(tmp_path / "five.npy"), str(tmp_path / "a.png")]
    done = predict(detect, find_sources(words), tmp_path / "out", device=device)
    assert done.errors == [f"{words[0]}: image 0: expected 3 channels"]
    assert done.pictures == 1


def test_a_file_of_a_list_that_is_missing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("photos/a.png\nphotos/gone.png\nphotos/c.png\n")
    done = predict(find_blobs, find_sources([f"@{tmp_path / 'list.txt'}"]), tmp_path / "out")
    assert done.pictures == 2
    assert "gone.png" in done.errors[0]
    for wrong in ("photos/gone", "photos/*.none"):
        (tmp_path / "list.txt").write_text(f"photos/a.png\n{wrong}\n")
        with pytest.raises(DataError, match="no such file"):
            find_sources([f"@{tmp_path / 'list.txt'}"])


@pytest.mark.usefixtures("_blobs")
def test_the_command_names_counts_and_exits_with_1(folder: Path, tmp_path: Path) -> None:
    status, error, output = command(folder, "--out", tmp_path / "a")
    assert status == 1
    assert error == "6 of 10 files could not be read, more than --max_errors 0; the others are done"
    assert "4 objects in 4 images" in output
    assert [line for line in output.splitlines() if line.startswith("could not be read: ")] == [
        f"could not be read: {line}" for line in predict(find_blobs, find_sources([str(folder)]), tmp_path / "b").errors
    ]
    assert command(folder, "--out", tmp_path / "c", "--max_errors", 0.5)[0] == 1
    status, _, output = command(folder, "--out", tmp_path / "d", "--max_errors", 0.6)
    assert (status, output.count("could not be read: ")) == (0, 6)
    status, error, _ = command(folder, "--out", tmp_path / "e", "--strict")
    assert status == 1
    assert "b.png" in error
    assert json.loads((tmp_path / "e" / "detections.json").read_text())


@pytest.mark.usefixtures("_blobs")
def test_collections_follow_the_same_rule(folder: Path, tmp_path: Path) -> None:
    (folder / "i.mp4").unlink()
    # What is no file of its own is not listed there: the folder f.jpg, and the link to nothing.
    status, error, output = command(folder, "--out", tmp_path / "r.parquet")
    assert status == 1
    assert error == "3 of 7 files could not be read, more than --max_errors 0; the others are done"
    assert "3 of them could not be read" in output
    assert command(folder, "--out", tmp_path / "r.parquet", "--max_errors", 0.6)[0] == 0
    status, error, _ = command(folder, "--out", tmp_path / "s.parquet", "--strict", "--part_size", 3)
    assert status == 1
    assert error == "part-000000-00000.parquet: 1 image could not be read; column `error` says why"
    assert not [name for name in os.listdir(tmp_path / "s.parquet") if name.startswith("part-000001")]


@dataclass(frozen=True, eq=False)
class Breaking(VideoSource):
    """A camera on the network that gives two pictures, then ends or breaks off, and is away every second time."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "connections", [])

    def frames(self) -> Iterator[Frame]:
        connections: list[int] = self.connections  # type: ignore[attr-defined]
        connections.append(len(connections))
        if len(connections) % 3 == 2:
            raise DataError(f"{self.name}: cannot be opened as a video: Connection refused")
        for number in range(2):
            yield Frame(picture_of(moving(number), HEIGHT, WIDTH), self.name, number, number / 10)
        if len(connections) % 3 == 0:
            raise DataError(f"{self.name}: the video broke off: Input/output error")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What would have been waited, in seconds."""
    waited: list[float] = []
    monkeypatch.setattr(sources, "time", SimpleNamespace(sleep=waited.append, monotonic=time.monotonic))
    return waited


def test_a_stream_is_opened_again(waits: list[float], caplog: pytest.LogCaptureFixture) -> None:
    camera = Breaking("rtsp://h/x", live=True)
    (source,) = reconnecting([camera])
    frames = source.frames()
    taken = [next(frames) for _ in range(9)]
    frames.close()  # type: ignore[attr-defined]
    assert [frame.number for frame in taken] == list(range(9))
    times = [frame.time for frame in taken]
    assert times == sorted(times)  # type: ignore[type-var]
    # It ends, is away, breaks off, ends, is away, breaks off; a failure right after another doubles the wait.
    assert waits == [1, 2, 1, 1, 2, 1]
    lines = [record.getMessage() for record in caplog.records if "connecting again" in record.getMessage()]
    assert lines[:3] == [
        "rtsp://h/x: connecting again in 1 s: it ended",
        "rtsp://h/x: connecting again in 2 s: cannot be opened as a video: Connection refused",
        "rtsp://h/x: connecting again in 1 s: the video broke off: Input/output error",
    ]


def test_waits_grow_to_a_minute_and_a_first_failure_is_an_error(waits: list[float]) -> None:
    @dataclass(frozen=True, eq=False)
    class Away(VideoSource):
        def frames(self) -> Iterator[Frame]:
            if waits:
                raise ConnectionError if len(waits) == 9 else DataError("away")
            yield Frame(picture_of([], HEIGHT, WIDTH), self.name, 0, 0.0)

    with pytest.raises(ConnectionError):
        list(reconnecting([Away("rtsp://h/x", live=True)])[0].frames())
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    with pytest.raises(DataError, match="cannot be opened"):
        list(reconnecting([VideoSource("rtsp://127.0.0.1:9/x", live=True)])[0].frames())


def test_what_is_no_stream_is_not_opened_again(folder: Path) -> None:
    files = find_sources([str(folder / "a.png"), "https://h/a.mp4"])
    with pytest.raises(ConfigError, match="--reconnect: only streams and cameras"):
        reconnecting(files)
    (image, video, stream, camera) = reconnecting([*files, VideoSource("https://h/live"), *find_sources(["camera:1"])])
    assert (image, video) == tuple(files)
    assert (stream.name, camera.name, stream.live, camera.live) == ("https://h/live", "camera:1", True, True)
    assert stream.count() is camera.count() is None


@pytest.mark.slow
def test_a_server_that_cuts_the_connection(tmp_path: Path, waits: list[float]) -> None:
    """A camera on the network that hangs up in the middle; what follows is of the same video, with the same tracks."""
    pictures = [picture_of(moving(number), HEIGHT, WIDTH) for number in range(10)]
    with serving_pictures(pictures, clients=3) as address:
        settings = PredictionSettings(reconnect=True, save_video=True, frames=12)
        done = predict(find_blobs, reconnecting(find_sources([address])), tmp_path / "out", settings)
    assert done.pictures == 12 - done.times.skipped
    assert done.errors == []
    assert len(waits) >= 1
    rows = rows_of(tmp_path / "out")
    assert rows[-1]["frame"] == 11
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
