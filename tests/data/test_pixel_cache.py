"""The cache of decoded pictures: the same pixels as decoding, whatever was left in its file."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from boxwright.base.errors import ConfigError, DataError, OutputError
from boxwright.data import picture_dataset, tfrecord_dataset
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import encode_example
from boxwright.data.image_io import decode_image
from boxwright.data.listed import ListedDataset
from boxwright.data.pixel_cache import PixelCache, plan_pixel_cache
from boxwright.data.shapes import ShapesDataset
from boxwright.data.tfrecord import write_records
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.training.examples import keep_pixels

# Sides of which no product is a multiple of eight, and one picture of a single pixel.
SIZES = [(31, 17), (17, 31), (1, 1), (40, 24), (13, 7)]
EXIF_ORIENTATION, TURNED = 0x0112, 6


class Kept(NamedTuple):
    dataset: CocoDataset
    cache: PixelCache

    def overwrite(self, index: int, change: Callable[[bytearray], None]) -> None:
        """Change the bytes of a picture's slot."""
        start = int(self.cache.starts[index])
        ends = [*self.cache.starts.tolist()[1:], self.cache.size]
        content = bytearray(self.cache.path.read_bytes())
        slot = content[start : ends[index]]
        change(slot)
        content[start : ends[index]] = slot
        self.cache.path.write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pictures of several kinds with a COCO file."""
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    rng, images = np.random.default_rng(0), []
    for number, size in enumerate(SIZES):
        pixels = Image.fromarray(rng.integers(0, 256, (*size, 3)).astype(np.uint8))
        name = f"{number}.{'png' if number % 2 else 'jpg'}"
        exif = Image.Exif()
        if number == 0:
            exif[EXIF_ORIENTATION] = TURNED
        (pixels.convert("L") if number == 3 else pixels).save(tmp_path / "data" / name, exif=exif)
        images.append({"id": number, "file_name": name})
    content = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "a"}]}
    (tmp_path / "data" / "a.json").write_text(json.dumps(content))
    return tmp_path / "data"


def plain(folder: Path) -> CocoDataset:
    return CocoDataset(folder / "a.json", folder)


def keep(folder: Path) -> Kept:
    dataset = plain(folder)
    cache = keep_pixels(dataset)
    cache.reserve()
    return Kept(dataset, cache)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pictures that were decoded since."""
    names: list[str] = []
    read = picture_dataset.read_image

    def counted(path: Path, **options: Any) -> Any:
        names.append(path.name)
        return read(path, **options)

    monkeypatch.setattr(picture_dataset, "read_image", counted)
    return names


def assert_same_pixels(dataset: CocoDataset, folder: Path) -> None:
    other = plain(folder)
    for index in range(len(other)):
        image = dataset[index].image
        assert (image.dtype, image.flags.writeable) == (np.uint8, True)
        assert np.array_equal(image, other[index].image)


def test_pictures_are_decoded_once_and_are_the_same(folder: Path, decoded: list[str]) -> None:
    dataset, cache = keep(folder)
    assert dataset[0].image.shape == (17, 31, 3), "turned upright"
    assert cache.size == sum(24 + -(-height * width * 3 // 8) * 8 for height, width in SIZES)
    for _ in range(2):
        assert_same_pixels(dataset, folder)
    dataset[1].image[:] = 0  # what a caller does with its image is its own affair
    again, second = keep(folder)
    assert second.path == cache.path, "another run reads the same file"
    assert_same_pixels(again, folder)
    # Each was decoded once for the cache, and three times to compare with.
    assert sorted(decoded) == sorted([f"{n}.{'png' if n % 2 else 'jpg'}" for n in range(len(SIZES))] * 4)


def test_another_process_reads_the_same_slots(folder: Path, decoded: list[str]) -> None:
    kept = keep(folder)
    assert_same_pixels(kept.dataset, folder)
    decoded.clear()
    assert_same_pixels(pickle.loads(pickle.dumps(kept.dataset)), folder)
    assert len(decoded) == len(SIZES), "those to compare with"


def shorten(slot: bytearray, count: int) -> None:
    slot[count:] = bytes(len(slot) - count)


@pytest.mark.parametrize(
    "change",
    [
        lambda slot: shorten(slot, 24),
        lambda slot: shorten(slot, 20),
        lambda slot: shorten(slot, len(slot) // 2),
        lambda slot: shorten(slot, len(slot) - 9),
        lambda slot: slot.__setitem__(slice(0, 24), bytes(24)),
        lambda slot: slot.__setitem__(30, slot[30] ^ 1),
    ],
    ids=["head alone", "half a head", "half the pixels", "all but the last pixels", "pixels alone", "one bit"],
)
def test_slot_that_was_not_written_whole_is_empty(
    change: Callable[[bytearray], None], folder: Path, decoded: list[str]
) -> None:
    kept = keep(folder)
    assert_same_pixels(kept.dataset, folder)
    kept.overwrite(1, change)
    decoded.clear()
    kept.dataset[1]
    kept.dataset[1]
    assert decoded == ["1.png"], "decoded again, and kept again"
    assert_same_pixels(kept.dataset, folder)


def test_file_that_is_cut_off_or_longer_is_completed(folder: Path) -> None:
    kept = keep(folder)
    assert_same_pixels(kept.dataset, folder)
    os.truncate(kept.cache.path, kept.cache.size // 2)
    assert_same_pixels(kept.dataset, folder)
    os.truncate(kept.cache.path, 3)
    assert_same_pixels(keep(folder).dataset, folder)
    os.truncate(kept.cache.path, kept.cache.size * 2)
    assert_same_pixels(keep(folder).dataset, folder)


def test_picture_that_changes_is_read_anew(folder: Path, decoded: list[str]) -> None:
    kept = keep(folder)
    assert_same_pixels(kept.dataset, folder)
    path = folder / "1.png"
    before = path.stat()
    Image.new("RGB", SIZES[1][::-1], (200, 10, 10)).save(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert (kept.dataset[1].image == (200, 10, 10)).all()
    # Of another size it has no slot while the run lasts.
    Image.new("RGB", (5, 6), (1, 2, 3)).save(path)
    assert kept.dataset[1].image.shape == (6, 5, 3)
    decoded.clear()
    assert kept.dataset[1].image.shape == (6, 5, 3)
    assert decoded == ["1.png"]
    assert keep(folder).cache.path != kept.cache.path
    path.unlink()
    with pytest.raises(DataError, match="1.png"):
        kept.dataset[1]


def test_picture_that_cannot_be_read_has_no_slot(folder: Path) -> None:
    (folder / "3.png").write_bytes(b"no picture")
    dataset, cache = keep(folder)
    assert cache.shapes.tolist()[3] == [0, 0]
    for _ in range(2):
        with pytest.raises(DataError, match="3.png"):
            dataset[3]
    assert np.array_equal(dataset[4].image, plain(folder)[4].image)


def test_only_listed_pictures_have_slots(folder: Path, decoded: list[str]) -> None:
    dataset = ListedDataset(plain(folder), [(4, ""), (1, "")], "list.txt")
    cache = keep_pixels(dataset)
    cache.reserve()
    assert np.flatnonzero(cache.shapes[:, 0]).tolist() == [1, 4]
    for _ in range(2):
        assert np.array_equal(dataset[0].image, plain(folder)[4].image)
    assert decoded.count("4.jpg") == 3


def test_other_data_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="neither files nor records of one image"):
        keep_pixels(ShapesDataset(2))
    remote = plain(folder)
    remote.at_address = True
    with pytest.raises(ConfigError, match="these are at an address"):
        keep_pixels(remote)


def write_record(folder: Path, count: int) -> TFRecordDataset:
    """Write so many of the pictures as records, and return these."""
    dataset, path = plain(folder), folder / "pictures.record"
    rows = [encode_example(dataset[n], dataset.encoded(n)[0], dataset.categories) for n in range(count)]
    write_records(path, rows)
    return TFRecordDataset([path], dataset.categories)


def test_pictures_in_records(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, without = write_record(folder, len(SIZES)), write_record(folder, len(SIZES))
    cache, decoded = keep_pixels(dataset), []
    cache.reserve()
    # As TensorFlow reads it, the first one is not turned where nothing states the size of the turned one.
    assert cache.shapes.tolist()[1:] == [list(size) for size in SIZES[1:]]
    assert cache.shapes.tolist()[0] == list(without[0].image.shape[:2])

    def counted(*picture: Any, **options: Any) -> Any:
        decoded.append(picture)
        return decode_image(*picture, **options)

    monkeypatch.setattr(tfrecord_dataset, "decode_image", counted)
    for _ in range(2):
        for index in range(len(SIZES)):
            assert np.array_equal(dataset[index].image, without[index].image)
    assert len(decoded) == 3 * len(SIZES)
    path = folder / "pictures.record"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    decoded.clear()
    assert np.array_equal(dataset[2].image, plain(folder)[2].image)
    assert len(decoded) == 1, "another time, another file"


def test_what_has_no_room_is_refused_before_a_file_is_made(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5000))
    with pytest.raises(OutputError, match=r"0\.0 GB are free, and the decoded pictures take 0\.0 GB") as raised:
        keep(folder)
    assert "\n" not in str(raised.value)
    assert list((tmp_path / "cache" / "pixels").iterdir()) == []


def test_full_disk_ends_a_run_with_its_cause(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, cache = keep(folder)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OutputError, match="No space left on device; train without it"):
            dataset[1]
    assert_same_pixels(dataset, folder)
    cache.path.unlink()
    with pytest.raises(OutputError, match="No such file"):
        dataset[1]


# Destroys each slot, and lets it be filled again.
WRITER = """
import os, sys
from pathlib import Path
from tests.data.test_pixel_cache import keep
dataset, cache = keep(Path(sys.argv[1]))
file = os.open(cache.path, os.O_RDWR)
print("begun", flush=True)
while True:
    for index in range(len(dataset)):
        os.pwrite(file, bytes(9), int(cache.starts[index]) + 25)
        dataset[index]
"""


@pytest.mark.slow
def test_processes_that_write_at_once_and_are_killed(folder: Path) -> None:
    """Two processes empty and fill all slots without end; one that reads meanwhile never sees other pixels."""
    kept = keep(folder)
    words = [sys.executable, "-c", WRITER, str(folder)]
    writers = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "begun\n"
        for _ in range(30):
            assert_same_pixels(kept.dataset, folder)
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
    for _ in range(2):
        assert_same_pixels(kept.dataset, folder)


def test_windows_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "preadv")
    with pytest.raises(ConfigError, match="needs Linux or macOS; train without it"):
        plan_pixel_cache([(folder / "data", (2, 3))], "")
