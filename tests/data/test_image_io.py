"""Images of every kind, and those that NumPy stored: defined behaviour."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import boxwright as bw
from boxwright.api.pictures import iterate_pictures
from boxwright.base.errors import BoxwrightError, DataError
from boxwright.data.image_io import (
    ImageHeader,
    decode_image,
    encode_png,
    parse_header,
    read_array,
    read_header,
    read_image,
)
from boxwright.data.reading import reading
from boxwright.inference.sources import ArraySource, find_sources

RAMP = (np.arange(6 * 8).reshape(6, 8) * 5).astype(np.uint8)


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def test_grey_becomes_three_equal_channels() -> None:
    pixels = decode_image(encoded(Image.fromarray(RAMP)), "here")
    assert pixels.shape == (6, 8, 3)
    assert all(np.array_equal(pixels[..., c], RAMP) for c in range(3))


def test_one_bit() -> None:
    assert set(np.unique(decode_image(encoded(Image.fromarray(RAMP > 100)), "here"))) == {0, 255}


def test_palette_with_transparency_keeps_its_colours() -> None:
    image = Image.new("P", (3, 2))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    pixels = decode_image(encoded(image, transparency=1), "here")
    assert pixels[0, 0].tolist() == [10, 20, 30]
    assert pixels[0, 1].tolist() == [200, 100, 50]


def test_alpha_is_dropped_not_blended() -> None:
    pixels = decode_image(encoded(Image.new("RGBA", (2, 2), (9, 8, 7, 0))), "here")
    assert pixels[0, 0].tolist() == [9, 8, 7]


def test_cmyk() -> None:
    pixels = decode_image(encoded(Image.new("CMYK", (4, 4), (255, 0, 0, 0)), "JPEG"), "here")
    assert pixels.shape == (4, 4, 3)
    assert pixels[0, 0, 0] < 40 < 200 < pixels[0, 0, 2]


def test_sixteen_bits_keep_their_upper_half() -> None:
    deep = RAMP.astype(np.uint16) * 256 + 77
    pixels = decode_image(encoded(Image.fromarray(deep)), "here")
    assert np.array_equal(pixels[..., 0], RAMP)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif(orientation: int, kind: str) -> None:
    """Stored pixels unless asked for upright, or unless the annotation's size says upright."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(np.stack([RAMP] * 3, -1)), kind, exif=exif, lossless=True)
    assert parse_header(data, "here") == ImageHeader((6, 8), orientation)
    stored = decode_image(data, "here")
    assert np.array_equal(stored[..., 0], RAMP)
    upright = decode_image(data, "here", upright=True)
    with Image.open(io.BytesIO(data)) as image:
        from PIL import ImageOps

        assert np.array_equal(upright, np.asarray(ImageOps.exif_transpose(image)))
    turned = orientation in (5, 6, 7, 8)
    assert decode_image(data, "here", declared=(8, 6)).shape[:2] == ((8, 6) if turned else (6, 8))
    assert decode_image(data, "here", declared=(6, 8)).shape[:2] == (6, 8)


XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


@pytest.mark.parametrize("says", ["nothing", "exif", "xmp"])
def test_where_a_jpeg_says_how_it_was_held(says: str) -> None:
    """Without a word it is decoded without Pillow, to the same pixels."""
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"nothing": {}, "exif": {"exif": exif}, "xmp": {"xmp": XMP}}[says]
    picture = Image.fromarray(np.stack([RAMP] * 3, -1))
    data = encoded(picture, "JPEG", quality=95, **options)
    stored = decode_image(data, "here")
    assert np.array_equal(stored, decode_image(encoded(picture, "JPEG", quality=95), "here"))
    upright = decode_image(data, "here", upright=True)
    assert np.array_equal(upright, stored if says == "nothing" else np.rot90(stored, -1))
    with pytest.raises(DataError, match="cut off"):
        decode_image(data[:-20], "here")


def test_exif_after_a_pngs_pixels(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.fromarray(RAMP), exif=exif)
    start = data.index(b"eXIf") - 4
    length = int.from_bytes(data[start : start + 4], "big") + 12
    late = data[:start] + data[start + length : -12] + data[start : start + length] + data[-12:]
    for whole in (data, late):
        assert parse_header(whole, "here") == ImageHeader((6, 8), 6)
        assert decode_image(whole, "here", upright=True).shape == (8, 6, 3)
    # A header is read without the pixels, which may be damaged.
    pixels = data.index(b"IDAT")
    (tmp_path / "a.png").write_bytes(data[: pixels + 10])
    assert read_header(tmp_path / "a.png") == ImageHeader((6, 8), 6)


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (3, 3), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_image(data, "here")[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", "the image is empty"),
        (b"GIF? no", "not an image of a known format"),
        (encode_png(RAMP)[:45], "cannot be decoded|not an image"),
    ],
)
def test_bad_images(data: bytes, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted) as caught:
        decode_image(data, "that.png")
    assert "that.png" in str(caught.value)


def test_truncated_jpeg() -> None:
    data = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)), "JPEG")
    with pytest.raises(DataError, match="cannot be decoded"):
        decode_image(data[: len(data) // 2], "half.jpg")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_image(tmp_path / "none.jpg")


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
    (five,) = iterate_pictures(tmp_path / "five.npy", channels=5)
    np.testing.assert_array_equal(five.image, IMAGE)
    (four,) = iterate_pictures(tmp_path / "four.npy", channels=4)
    np.testing.assert_array_equal(four.image, IMAGE[..., :4])
    (colors,) = iterate_pictures(tmp_path / "four.npy")
    np.testing.assert_array_equal(colors.image, IMAGE[..., :3])
    with pytest.raises(DataError, match="five.npy: expected a HWC array with 1, 3 or 4 channels"):
        next(iterate_pictures(tmp_path / "five.npy"))
    with pytest.raises(bw.DataError, match=r"the detector takes images of 5 channels: an array \[height, width, 5\]"):
        next(iterate_pictures(b"bytes", channels=5))


@pytest.mark.parametrize(
    "problem", [MemoryError(), ValueError("Insufficient memory (case 4)"), OSError("out of memory")]
)
def test_short_memory_is_no_damage(problem: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """--skip_bad_records would leave out good images; what reads samples names it, in an error of its own."""

    def fail(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr("boxwright.data.image_io.to_rgb", fail)
    png = encode_png(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(MemoryError, match=r"^a\.png: not enough memory to decode the image$"):
        decode_image(png, "a.png")
    with pytest.raises(BoxwrightError, match="^set: sample 3: not enough memory") as refused, reading("set: sample 3"):
        decode_image(png, "a.png")
    assert not isinstance(refused.value, DataError)


def test_an_error_without_a_text_names_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError

    monkeypatch.setattr("boxwright.data.image_io.to_rgb", fail)
    with pytest.raises(DataError, match="the image cannot be decoded: KeyError$"):
        decode_image(encode_png(np.zeros((4, 4, 3), np.uint8)), "a.png")


def test_a_gray_array_is_drawn_like_a_gray_image(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((4, 5, 1), 7, np.uint8))
    (source,) = find_sources([str(tmp_path / "a.npy")])
    (frame,) = source.frames()
    assert frame.image.shape == (4, 5, 3)
    assert (frame.image == 7).all()
