"""Detecting in images, videos and streams, with a detector that is exact."""

from __future__ import annotations

import csv
import json
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pycocotools.coco import COCO

from boxwright.base.errors import ConfigError, DataError, OutputError
from boxwright.base.files import MARKER, unfinished
from boxwright.data.image_io import decode_image, encode_jpeg, encode_png, read_image
from boxwright.inference.predict import predict
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.sources import CameraSource, Frame, ImageSource, VideoSource, find_sources
from boxwright.inference.video import open_video_for_writing, read_video
from boxwright.types import Array, Detections
from tests.inference.blobs import find_blobs, picture_of
from tests.inference.rtsp_server import serving_pictures

HEIGHT, WIDTH = 96, 160


def moving(number: int) -> list[tuple[int, int, int, int]]:
    """Two squares that pass each other."""
    return [(4 + 3 * number, 10, 24 + 3 * number, 30), (130 - 3 * number, 50, 150 - 3 * number, 70)]


@pytest.fixture
def video(tmp_path: Path) -> Path:
    with open_video_for_writing(tmp_path / "walk.mp4") as writer:
        for number in range(40):
            writer.write(picture_of(moving(number), HEIGHT, WIDTH), number / 20)
    return tmp_path / "walk.mp4"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        boxes = moving(number)[:number]
        (folder / f"{number}.png").write_bytes(encode_png(picture_of(boxes, HEIGHT, WIDTH)))
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "detections.json").read_text())
    return rows


def test_a_video_gives_rows_with_frames_and_times(video: Path, tmp_path: Path) -> None:
    done = predict(find_blobs, find_sources([str(video)]), tmp_path / "out")
    assert (done.pictures, done.objects) == (40, 80)
    rows = rows_of(tmp_path / "out")
    assert [row["frame"] for row in rows] == [number for number in range(40) for _ in range(2)]
    for row in rows:
        assert row["time"] == pytest.approx(row["frame"] / 20, abs=1e-3)
        left, top, _, _ = next(box for box in moving(row["frame"]) if abs(box[1] - row["bbox"][1]) < 6)
        assert row["bbox"] == pytest.approx([left, top, 20, 20], abs=2)  # H.264 blurs edges
        assert row["file_name"] == str(video)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["detections.json"]


@pytest.mark.slow
def test_tracks_keep_their_numbers_and_videos_are_drawn(video: Path, tmp_path: Path) -> None:
    settings = PredictionSettings(track=True, save_video=True)
    predict(find_blobs, find_sources([str(video)]), tmp_path / "out", settings)
    tracks: dict[int, set[int | None]] = {10: set(), 50: set()}
    for row in rows_of(tmp_path / "out"):
        if row["frame"] > 0:
            tracks[10 if row["bbox"][1] < 40 else 50].add(row["track_id"])
    assert [len(numbers) for numbers in tracks.values()] == [1, 1]
    assert tracks[10] != tracks[50]
    assert None not in tracks[10] | tracks[50]
    drawn = [image for image, _ in read_video(str(tmp_path / "out" / "walk.mp4"))]
    assert len(drawn) == 40
    assert max(np.ptp(image, axis=2).max() for image in drawn) > 60  # coloured boxes, where all was grey


def test_two_videos_have_tracks_of_their_own(video: Path, tmp_path: Path) -> None:
    settings = PredictionSettings(track=True)
    predict(find_blobs, find_sources([str(video), str(video)]), tmp_path / "out", settings)
    rows = rows_of(tmp_path / "out")
    assert rows[: len(rows) // 2] == [
        {**row, "image_id": row["image_id"] - 40} for row in rows[len(rows) // 2 :]
    ]  # the second time as the first


def test_tables(photos: Path, video: Path, tmp_path: Path) -> None:
    """All three in one run have the same boxes; COCO's own reader reads the data set."""
    settings = PredictionSettings(as_json=True, coco=True, csv=True, frames=6, pictures=False)
    predict(find_blobs, find_sources([str(photos), str(video)]), tmp_path / "out", settings)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "coco.json",
        "detections.csv",
        "detections.json",
    ]
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 0 + 1 + 2 + 3 * 2
    coco = COCO(str(tmp_path / "out" / "coco.json"))
    assert len(coco.imgs) == 6
    assert [one["bbox"] for one in coco.anns.values()] == [row["bbox"] for row in rows]
    assert all(one["image_id"] in coco.imgs and one["category_id"] in coco.cats for one in coco.anns.values())
    with (tmp_path / "out" / "detections.csv").open() as file:
        table = list(csv.DictReader(file))
    corners = [[float(line[name]) for name in ("x_min", "y_min", "x_max", "y_max")] for line in table]
    for line, row in zip(corners, rows, strict=True):
        x, y, width, height = row["bbox"]
        assert line == pytest.approx([x, y, x + width, y + height], abs=2e-3)
    assert [line["frame"] for line in table[:3]] == ["", "", ""]


def test_masks_are_written_as_run_lengths(photos: Path, tmp_path: Path) -> None:
    from pycocotools import mask

    def detect(images: Sequence[NDArray[np.uint8]]) -> list[Detections[Array]]:
        from dataclasses import replace

        return [replace(found, masks=np.ones((len(found), 4, 4), np.float32)) for found in find_blobs(images)]

    predict(detect, find_sources([str(photos / "1.png")]), tmp_path / "out")
    (row,) = rows_of(tmp_path / "out")
    assert mask.toBbox(row["segmentation"]).tolist() == pytest.approx(row["bbox"], abs=1)


@dataclass(frozen=True, eq=False)
class Film:
    """Ten pictures; the reading of the fourth is announced."""

    fourth: threading.Event
    name = "film.mp4"
    live = False
    moving = True

    def frames(self) -> Iterator[Frame]:
        for number in range(10):
            if number == 3:
                self.fourth.set()
            yield Frame(picture_of(moving(number), HEIGHT, WIDTH), self.name, number, number / 100)


def test_on_a_gpu_pictures_share_batches_and_keep_their_order(photos: Path, tmp_path: Path) -> None:
    """The first two are held until more are ready, which the next ones then have together."""
    film = Film(threading.Event())
    sources = [*find_sources([str(photos)]), film, *find_sources([str(photos)])]
    sizes: list[int] = []

    def look(images: Sequence[NDArray[np.uint8]]) -> list[Detections[Array]]:
        assert film.fourth.wait(60)
        sizes.append(len(images))
        return find_blobs(images)

    done = predict(look, sources, tmp_path / "together", device="cuda:0", batch_size=5)  # type: ignore[arg-type]
    assert (sum(sizes), done.pictures) == (16, 16)
    assert 1 < max(sizes) <= 5
    sizes.clear()
    predict(find_blobs, sources, tmp_path / "alone", batch_size=5)  # type: ignore[arg-type]
    assert rows_of(tmp_path / "together") == rows_of(tmp_path / "alone")


def test_patterns_and_lists(photos: Path, video: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"photos/2.png\n\n{video}\n")
    names = [source.name for source in find_sources([str(photos / "[01].png"), f"@{tmp_path / 'list.txt'}"])]
    assert names == [str(photos / "0.png"), str(photos / "1.png"), str(photos / "2.png"), str(video)]


def test_pictures_of_subfolders_are_left_out_in_a_line(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("no picture")
    with pytest.raises(DataError, match=rf"{tmp_path}: no image or video in this folder; .*: '{tmp_path}/\*\*/\*.png'"):
        find_sources([str(tmp_path)])
    names = [source.name for source in find_sources([f"{tmp_path}/**/*.png"])]
    assert names == [source.name for source in find_sources([str(photos)])]
    assert not caplog.records
    (tmp_path / "a.jpg").write_bytes(b"")
    assert [source.name for source in find_sources([str(tmp_path)])] == [str(tmp_path / "a.jpg")]
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"{tmp_path}: only what is in the folder itself is taken; ")


def test_kinds_of_sources(tmp_path: Path) -> None:
    kinds = [type(source) for source in find_sources(["camera", "camera:2", "0", "rtsp://h/x", "https://h/a.mp4"])]
    assert kinds == [CameraSource, CameraSource, CameraSource, VideoSource, VideoSource]
    assert [source.live for source in find_sources(["rtsp://h/x", "https://h/a.mp4"])] == [True, False]
    (tmp_path / "7").write_bytes(b"")
    assert isinstance(find_sources([str(tmp_path / "7")])[0], ImageSource)
    for word, message in [
        ("none.jpg", "no such file"), ("*.none", "no such file"), ("@none.txt", "No such file"),
        ("s3://bucket/x", "ends in .parquet"), (str(tmp_path), "no image or video"),
    ]:  # fmt: skip
        with pytest.raises(DataError, match=message):
            find_sources([word])


def test_a_folder_is_one_predictions_at_a_time(tmp_path: Path) -> None:
    """The mark that is there is the first's, and stays until the first's end."""
    (tmp_path / "a.png").write_bytes(encode_png(picture_of([(4, 8, 20, 24)], HEIGHT, WIDTH)))
    sources = find_sources([str(tmp_path / "a.png")])
    with unfinished(tmp_path / "out", "predictions"):
        with pytest.raises(OutputError, match="out: another run is writing to this folder: predictions; host "):
            predict(find_blobs, sources, tmp_path / "out")
        assert [path.name for path in (tmp_path / "out").iterdir()] == [MARKER]
    assert predict(find_blobs, sources, tmp_path / "out").pictures == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.jpg", "detections.json"]


def test_a_camera_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="camera:99: no such camera"):
        predict(find_blobs, find_sources(["camera:99"]), tmp_path / "out")
    assert (tmp_path / "out" / MARKER).is_file()


@pytest.mark.slow
def test_a_stream_over_the_network(tmp_path: Path) -> None:
    """Pictures that come faster than they are looked at are left out; the newest is always looked at."""
    pictures = [picture_of(moving(number), HEIGHT, WIDTH) for number in range(40)]
    with serving_pictures(pictures) as address:
        sources = find_sources([address])
        done = predict(find_blobs, sources, tmp_path / "out", PredictionSettings(save_video=True))
    assert done.pictures + done.times.skipped == 40
    rows = rows_of(tmp_path / "out")
    assert rows[-1]["frame"] == 39
    assert rows[-1]["bbox"][2:] == pytest.approx([20, 20], abs=2)
    (name,) = (path for path in (tmp_path / "out").glob("*.mp4"))
    assert len(list(read_video(str(name)))) == done.pictures


@dataclass(frozen=True, eq=False)
class Endless:
    """A camera that does not stop."""

    interrupt_at: int
    name = "endless"
    live = True
    moving = True

    def count(self) -> int | None:
        return None

    def frames(self) -> Iterator[Frame]:
        number = 0
        while True:
            yield Frame(picture_of(moving(number % 30), HEIGHT, WIDTH), self.name, number, number / 100)
            number += 1


def test_an_interrupt_ends_a_stream_and_all_of_it_is_whole(tmp_path: Path) -> None:
    seen = 0

    def interrupting(_: Frame) -> None:
        nonlocal seen
        seen += 1
        if seen == 5:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    done = predict(find_blobs, [Endless(5)], tmp_path / "out", PredictionSettings(save_video=True), interrupting)  # type: ignore[list-item]
    assert signal.getsignal(signal.SIGINT) is before
    assert done.pictures >= 5
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["detections.json", "endless.mp4"]
    assert len(list(read_video(str(tmp_path / "out" / "endless.mp4")))) == done.pictures
    assert {thread.name for thread in threading.enumerate()}.isdisjoint({"read", "network", "draw", "write"})


def test_tiles_through_predict(tmp_path: Path) -> None:
    boxes = [(3, 3, 20, 20), (150, 100, 170, 130), (95, 60, 130, 80)]
    (tmp_path / "a.png").write_bytes(encode_png(picture_of(boxes, 160, 200)))
    for merge in ("nms", "wbf"):
        settings = PredictionSettings(tile=64, overlap=0.4, merge=merge)
        predict(find_blobs, find_sources([str(tmp_path / "a.png")]), tmp_path / merge, settings)
        found = sorted(row["bbox"] for row in rows_of(tmp_path / merge))
        assert found == sorted([x, y, right - x, bottom - y] for x, y, right, bottom in boxes)
        assert read_image(tmp_path / merge / "a.jpg").shape[2] == 3
    with pytest.raises(ConfigError, match="expected nms or wbf"):
        predict(find_blobs, [], tmp_path / "x", PredictionSettings(merge="soft"))


def test_a_video_over_itself_is_refused(video: Path) -> None:
    with pytest.raises(DataError, match="one of the sources"):
        predict(find_blobs, find_sources([str(video)]), video.parent, PredictionSettings(save_video=True))


def test_a_broken_video_keeps_what_came_before(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "b.mp4").write_bytes(b"rubbish")
    settings = PredictionSettings(strict=True)
    with pytest.raises(DataError, match="b.mp4"):
        predict(find_blobs, find_sources([str(photos), str(tmp_path / "b.mp4")]), tmp_path / "out", settings)
    assert len(rows_of(tmp_path / "out")) == 3
    assert (tmp_path / "out" / MARKER).is_file()
    assert (tmp_path / "out" / "2.jpg").is_file()


@pytest.mark.slow_cases("png-\\x89PNG")
@pytest.mark.parametrize(("format", "start"), [("jpg", b"\xff\xd8\xff"), ("png", b"\x89PNG")])
def test_formats_of_pictures(photos: Path, tmp_path: Path, format: str, start: bytes) -> None:
    predict(find_blobs, find_sources([str(photos)]), tmp_path / "out", PredictionSettings(picture_format=format))
    for number in range(3):
        content = (tmp_path / "out" / f"{number}.{format}").read_bytes()
        assert content.startswith(start)
        drawn = decode_image(content, "a picture").astype(int)
        assert (np.ptp(drawn, axis=2).max() > 200) == (number > 0), "boxes are coloured, where the photo is grey"
    with pytest.raises(ConfigError, match="--picture_format gif: expected jpg or png"):
        PredictionSettings(picture_format="gif")


def test_pictures_do_not_lie_over_their_sources(photos: Path) -> None:
    (photos / "0-detected.jpg").write_bytes(encode_jpeg(picture_of([], HEIGHT, WIDTH)))
    for number in range(2):
        (photos / f"{number}.jpg").write_bytes(encode_jpeg(picture_of([], HEIGHT, WIDTH)))
    before = {path.name: path.read_bytes() for path in photos.iterdir()}
    predict(find_blobs, find_sources([str(photos)]), photos)
    after = {path.name: path.read_bytes() for path in photos.iterdir()}
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 6 + 1, "a picture of each, and what was found"


def test_a_full_disk_ends_it_where_the_picture_would_have_been(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures are written by another thread; its error is this one's."""
    import boxwright.inference.predict as module
    from boxwright.base.errors import OutputError

    def full(path: Path, content: bytes) -> None:
        raise OutputError(f"{path}: could not be written: No space left on device")

    monkeypatch.setattr(module, "write_whole", full)
    with pytest.raises(OutputError, match="0.jpg: could not be written"):
        predict(find_blobs, find_sources([str(photos)]), tmp_path / "out")
    assert (tmp_path / "out" / MARKER).is_file()
    assert {thread.name for thread in threading.enumerate()}.isdisjoint({"read", "network", "draw", "write"})


def test_pictures_of_ones_own_stay(tmp_path: Path) -> None:
    """A folder that no run wrote may hold photographs; one that a run wrote is written again."""
    (tmp_path / "new").mkdir()
    (tmp_path / "album").mkdir()
    (tmp_path / "new" / "cat.png").write_bytes(encode_png(picture_of([(3, 3, 20, 20)], 60, 60)))
    (tmp_path / "album" / "cat.jpg").write_bytes(b"my own")
    sources = find_sources([str(tmp_path / "new")])
    predict(find_blobs, sources, tmp_path / "album", PredictionSettings())
    assert (tmp_path / "album" / "cat.jpg").read_bytes() == b"my own"
    assert (tmp_path / "album" / "cat-detected.jpg").is_file()
    for _ in range(2):
        predict(find_blobs, sources, tmp_path / "out", PredictionSettings())
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cat.jpg", "detections.json"]
