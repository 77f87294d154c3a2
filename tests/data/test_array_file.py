"""Images that NumPy stored."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest

import boxwright as bw
from boxwright.api.pictures import pictures_of
from boxwright.base.errors import DataError
from boxwright.data.image_io import read_array
from boxwright.inference.sources import ArraySource, find_sources

IMAGE = np.random.default_rng(0).integers(0, 255, (4, 6, 5), np.uint8)


def stored(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("array", [IMAGE, np.asfortranarray(IMAGE), IMAGE[..., :1], IMAGE[:, ::-1]])
def test_what_was_stored_is_read(array: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(stored(array))
    found = read_array(tmp_path / "a.npy")
    np.testing.assert_array_equal(found, array)
    assert found.flags.c_contiguous
    assert found.flags.writeable


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no array that numpy.save wrote"),
        (b"\x89PNG\r\n\x1a\n and more", "no array that numpy.save wrote"),
        (stored(IMAGE)[:9], "no array that numpy.save wrote"),
        (stored(IMAGE)[:-1], "truncated: 119 of 120 bytes of pixels"),
        (
            stored(IMAGE.astype(np.float32)),
            r"expected an image, uint8 \[height, width, channels\], found float32 \(4, 6",
        ),
        (stored(IMAGE[0]), r"found uint8 \(6, 5\)"),
        (stored(IMAGE[:0]), r"found uint8 \(0, 6, 5\)"),
        (stored(np.zeros((1, 1, 33), np.uint8)), r"found uint8 \(1, 1, 33\)"),
        (stored(np.array([Harmful()], object)), "found object"),
        (pickle.dumps(IMAGE), "no array that numpy.save wrote"),
    ],
)
def test_other_files_are_refused(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(DataError, match=problem) as refused:
        read_array(tmp_path / "a.npy")
    assert "\n" not in str(refused.value)


def test_too_many_pixels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_IMAGE_PIXELS", "20")
    (tmp_path / "a.npy").write_bytes(stored(IMAGE))
    with pytest.raises(DataError, match="6×4: 24 pixels of an image are more than the 20 allowed"):
        read_array(tmp_path / "a.npy")


def test_they_are_sources_of_predictions(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(stored(IMAGE))
    (source,) = find_sources([str(tmp_path / "*.npy")])
    assert isinstance(source, ArraySource)
    (frame,) = source.frames()
    np.testing.assert_array_equal(frame.image, IMAGE)


def test_they_are_pictures_for_a_model(tmp_path: Path) -> None:
    """Of a detector of as many channels; one of colors takes those of 1, 3 and 4."""
    (tmp_path / "five.npy").write_bytes(stored(IMAGE))
    (tmp_path / "four.npy").write_bytes(stored(IMAGE[..., :4]))
    (five,) = pictures_of(tmp_path / "five.npy", channels=5)
    np.testing.assert_array_equal(five.image, IMAGE)
    (four,) = pictures_of(tmp_path / "four.npy", channels=4)
    np.testing.assert_array_equal(four.image, IMAGE[..., :4])
    (colors,) = pictures_of(tmp_path / "four.npy")
    np.testing.assert_array_equal(colors.image, IMAGE[..., :3])
    with pytest.raises(DataError, match="five.npy: expected a HWC array with 1, 3 or 4 channels"):
        next(pictures_of(tmp_path / "five.npy"))
    with pytest.raises(bw.DataError, match=r"the detector takes images of 5 channels: an array \[height, width, 5\]"):
        next(pictures_of(b"bytes", channels=5))
