"""Pictures of every scale that people have: floats, 10 to 16 bits, gray, channels first, turned by EXIF."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import boxwright as bw
from boxwright.api.pictures import iterate_pictures
from boxwright.data.coco import CocoDataset
from boxwright.data.image_io import decode_image, measure_depth
from boxwright.data.own_dataset import as_dataset
from boxwright.data.pixel_scale import measure_white_level
from boxwright.nn.preprocessing import image_tensors
from boxwright.types import Categories, Category, Sample

CLASSES = Categories((Category(0, 1, "cat"), Category(1, 7, "dog")))
TARGET = {"boxes": torch.tensor([[1.0, 2, 11, 12]]), "labels": torch.tensor([2])}
RNG = np.random.default_rng(0)
# Ends of the range, so that one picture shows it.
PICTURE = RNG.integers(0, 256, (20, 30, 3)).astype(np.uint8)
PICTURE[0, 0], PICTURE[0, 1] = 0, 255
GRAY = PICTURE[..., 0]
TWELVE = (GRAY.astype(np.uint16) << 4) + RNG.integers(0, 16, GRAY.shape).astype(np.uint16)  # 0 to 4095, >> 4 is GRAY


class Mine(list[Any]):
    """A data set as people write them: a class with __len__ and __getitem__."""

    categories = CLASSES


def sample_of(image: Any) -> Sample:
    return Sample(image, np.array([[1, 2, 11, 12]], np.float32), np.array([1]))


def levels(item: Any) -> NDArray[Any]:
    return as_dataset(Mine([item]))[0].image


def gray_as_colors(gray: NDArray[Any]) -> NDArray[Any]:
    return np.repeat(gray[..., None], 3, axis=2)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (PICTURE.astype(np.float32) / 255, PICTURE),
        (PICTURE / 255, PICTURE),
        (PICTURE.astype(np.float32), PICTURE),
        (PICTURE.astype(np.int64), PICTURE),
        (PICTURE.astype(np.uint16) * 257, PICTURE),
        (gray_as_colors(TWELVE), gray_as_colors(GRAY)),
        (gray_as_colors(TWELVE).astype(np.int32), gray_as_colors(GRAY)),
        (GRAY, gray_as_colors(GRAY)),
        (GRAY[..., None], gray_as_colors(GRAY)),
        (TWELVE, gray_as_colors(GRAY)),
        (PICTURE.transpose(2, 0, 1), PICTURE),
        (torch.from_numpy(PICTURE.transpose(2, 0, 1).copy()), PICTURE),
        (np.concatenate([PICTURE, PICTURE[..., :1]], 2), PICTURE),
        (torch.from_numpy(PICTURE.transpose(2, 0, 1) / 255).half(), PICTURE),
    ],
    ids=[
        *("float32 in 0..1", "float64 in 0..1", "float32 in 0..255", "int64 in 0..255", "16 bits", "12 bits"),
        *("12 bits in int32", "HW", "HW1", "12 bits in HW", "CHW array", "CHW tensor", "RGBA", "float16 tensor"),
    ],
)
def test_arrays_of_a_data_set(image: Any, expected: NDArray[np.uint8]) -> None:
    """A Sample and a pair read alike: levels of 0..255, in three channels."""
    for item in (sample_of(image), (image, TARGET)):
        found = levels(item)
        assert found.shape == (20, 30, 3)
        assert found.dtype in (np.uint8, np.float32)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("image", "line"),
    [
        (PICTURE.astype(np.float32) / 255, "images are float32 of 0 to 1: taken for 0..1, by the range of 1 images"),
        (gray_as_colors(TWELVE), r"uint16 of \d+ to 4,\d+: taken for 0..4,095 \(12 bits\)"),
        (PICTURE.astype(np.uint16) * 256, r"uint16 of 0 to 65,280: taken for 0..65,535 \(16 bits\)"),
        (PICTURE, ""),
    ],
)
def test_the_scale_that_was_chosen_is_said(image: Any, line: str) -> None:
    import re

    level, note = measure_white_level(as_dataset(Mine([sample_of(image)])))
    assert re.search(line, note) if line else note == ""
    assert bool(level) == bool(line)


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ((PICTURE / 255 - 0.5) / 0.25, "the images are float64 of -2 to 2, as after Normalize"),
        (PICTURE.astype(np.float32) / 255 * 1.4, r"of 0 to 1.4: clip them to 0..1 \(image.clip\(0, 1\)\)"),
        (PICTURE.astype(np.int32) - 128, "of -128 to 127, as after Normalize or a conversion"),
        (PICTURE.astype(np.uint32) << 12, "more than 16 bits; state their white as train_input_reader.white_level"),
        (np.full((20, 30, 3), np.inf), "values are not finite"),
        (PICTURE > 128, "expected numbers in 0..255, found bool"),
        (PICTURE.astype(object), "expected numbers in 0..255, found object"),
        (np.zeros((20, 30, 2), np.uint8), r"expected a HWC array with 1, 3 or 4 channels .* found shape \(20, 30, 2\)"),
        (np.zeros((2, 20, 30, 3), np.uint8), r"found shape \(2, 20, 30, 3\)"),
        ("cat.jpg", "expected a PIL image, an array or a tensor, found str"),
        (None, "expected a PIL image, an array or a tensor, found NoneType"),
    ],
)
def test_what_follows_no_convention_is_refused_with_the_remedy(image: Any, wanted: str) -> None:
    with pytest.raises(bw.DataError, match=wanted):
        levels(sample_of(image))


def test_the_data_set_decides_not_a_picture() -> None:
    """A dark picture among others of floats in 0..1, and of 12 bits, keeps its darkness."""
    floats = as_dataset(Mine([sample_of(PICTURE / 255), sample_of(PICTURE / 255 / 10)]))
    assert floats[1].image.max() == 26
    deep = as_dataset(Mine([sample_of(TWELVE), sample_of(TWELVE // 16)]))
    assert deep.white_level == 4095
    assert deep[1].image.max() == 15


def test_one_float_among_many_bytes_is_named() -> None:
    """Sixteen of a hundred pictures are looked at; the one that is otherwise is not guessed at."""
    own = Mine([sample_of(PICTURE) for _ in range(100)])
    own[51] = sample_of(PICTURE / 255)
    dataset = as_dataset(own)
    assert dataset[50].image is own[50].image, "uint8 costs nothing"
    with pytest.raises(bw.DataError, match=r"sample 51: the image: float64 of 0 to 1 among images of uint8"):
        dataset[51]


def test_a_value_above_the_data_sets_white_is_named() -> None:
    own = Mine([sample_of(TWELVE) for _ in range(100)])
    own[2] = sample_of(TWELVE.astype(np.uint16) * 4)
    with pytest.raises(bw.DataError, match=r"sample 2: the image: expected numbers in 0..4095, found .*scale=16383"):
        as_dataset(own)[2]


def test_two_scales_in_one_data_set_are_refused() -> None:
    with pytest.raises(bw.DataError, match="the images have several scales: uint16 of .* and float64 of"):
        as_dataset(Mine([sample_of(TWELVE), sample_of(PICTURE / 255)]))


def encoded(image: Image.Image, kind: str, **more: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def deep_image(values: NDArray[Any]) -> Image.Image:
    return Image.fromarray(values.astype(np.uint16))


def test_pil_images_of_more_than_8_bits() -> None:
    """Mode I;16 with 12 bits, mode I with 0..255, mode F with 0..1: none of them is black."""
    expected = gray_as_colors(GRAY)
    for image in (
        deep_image(TWELVE),
        Image.fromarray(GRAY.astype(np.int32), mode=None),
        Image.fromarray(GRAY.astype(np.float32) / 255),
    ):
        np.testing.assert_array_equal(levels((image, TARGET)), expected, err_msg=image.mode)


def coco_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    content = {
        "images": [{"id": n, "file_name": name, "width": 30, "height": 20} for n, name in enumerate(files)],
        "annotations": [
            {"id": n, "image_id": n, "category_id": 1, "bbox": [1, 2, 10, 10], "area": 100, "iscrowd": 0}
            for n in range(len(files))
        ],
        "categories": [{"id": 1, "name": "cat"}],
    }
    path = folder / "instances.json"
    path.write_text(json.dumps(content))
    return path


def colors_png(values: NDArray[Any]) -> bytes:
    done, data = cv2.imencode(".png", values[..., ::-1])
    assert done
    return data.tobytes()


DEEP_COLORS = (PICTURE.astype(np.uint16) << 4) + 3
FILES = {
    "gray PNG of 12 bits": (encoded(deep_image(TWELVE), "PNG"), 4095, gray_as_colors(GRAY)),
    "gray TIFF of 12 bits": (encoded(deep_image(TWELVE), "TIFF"), 4095, gray_as_colors(GRAY)),
    "PNG in colors of 12 bits": (colors_png(DEEP_COLORS), 4095, PICTURE),
    "PNG of 16 bits": (encoded(deep_image(GRAY.astype(np.uint16) * 257), "PNG"), 65535, gray_as_colors(GRAY)),
    "TIFF of 32 bits with 0..255": (encoded(Image.fromarray(GRAY.astype(np.int32)), "TIFF"), 255, gray_as_colors(GRAY)),
    "TIFF of floats in 0..1": (
        encoded(Image.fromarray(GRAY.astype(np.float32) / 255), "TIFF"),
        1,
        gray_as_colors(GRAY),
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_more_than_8_bits(kind: str, tmp_path: Path) -> None:
    from boxwright.data.dataset import with_white_level

    data, white, expected = FILES[kind]
    dataset = CocoDataset(coco_folder(tmp_path, {"a.img": data}), tmp_path)
    level, line = measure_white_level(dataset)
    assert level == white
    assert "white_level states another" in line
    np.testing.assert_array_equal(with_white_level(dataset, level)[0].image, expected)


def test_a_tiff_states_its_bits(tmp_path: Path) -> None:
    """The tag MaxSampleValue, which microscopes write, holds where the pictures are dark."""
    data = encoded(deep_image(TWELVE // 4), "TIFF", tiffinfo={281: 4095})
    values = measure_depth(data, "a.tif")
    assert values is not None
    assert values.white == 4095
    level, line = measure_white_level(CocoDataset(coco_folder(tmp_path, {"a.tif": data}), tmp_path))
    assert level == 4095
    assert "as the files state" in line


def test_files_of_8_bits_are_not_opened_to_measure() -> None:
    for kind in ("JPEG", "PNG", "BMP", "WEBP"):
        assert measure_depth(encoded(Image.fromarray(PICTURE), kind), "a") is None
    assert measure_depth(encoded(Image.fromarray(PICTURE), "TIFF"), "a") is None


def test_a_file_above_the_white_of_the_others_is_named(tmp_path: Path) -> None:
    data = encoded(deep_image(TWELVE * 4), "PNG")
    with pytest.raises(bw.DataError, match=r"a.png: expected numbers in 0..4095, found .*; state their white"):
        decode_image(data, "a.png", white_level=4095)


@pytest.mark.parametrize("cut", [30, 60, 200])
def test_truncated_deep_files_are_named(cut: int) -> None:
    for kind in ("PNG", "TIFF"):
        with pytest.raises(bw.DataError, match=r"a\.img"):
            decode_image(encoded(deep_image(TWELVE), kind)[:-cut], "a.img", white_level=4095)


def turned_jpeg() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(Image.fromarray(PICTURE), "JPEG", exif=exif.tobytes())


def test_pil_images_are_turned_as_files_are() -> None:
    data = turned_jpeg()
    wanted = decode_image(data, "a", upright=True)
    assert wanted.shape == (30, 20, 3)
    opened = Image.open(io.BytesIO(data))
    with pytest.warns(UserWarning, match="EXIF orientation is applied: Result.image is upright"):
        (picture,) = iterate_pictures(opened)
    assert picture.image.shape == wanted.shape
    assert np.abs(picture.image.astype(int) - wanted).mean() < 3, "two JPEG decoders"
    assert image_tensors([opened])[0].shape == (30, 20, 3)
    assert levels((opened, TARGET)).shape == (30, 20, 3)
    assert levels((opened.convert("RGB"), TARGET)).shape == (30, 20, 3), "converting keeps the orientation"


def test_a_pil_image_that_cannot_be_read_is_one_line() -> None:
    """Pillow reads an opened file when its pixels are asked for."""
    data = turned_jpeg()
    closed = Image.open(io.BytesIO(data))
    closed.close()
    for image in (Image.open(io.BytesIO(data[:-30])), closed):
        with pytest.raises(bw.DataError, match="image 0: cannot be read: "):
            list(iterate_pictures(image))


def test_a_dictionary_is_no_list_of_pictures() -> None:
    """As data sets of other libraries have, with the picture under a name."""
    with pytest.raises(bw.DataError, match="or a list of such, found dict"):
        list(iterate_pictures({"image": PICTURE}))


def test_files_and_serving_read_what_the_model_was_trained_with(tmp_path: Path) -> None:
    from boxwright.inference.serving.pictures import decode_pictures
    from boxwright.inference.serving.settings import ServerSettings
    from boxwright.inference.sources import find_sources, read_by_white_level

    data = encoded(deep_image(TWELVE), "PNG")
    (tmp_path / "a.png").write_bytes(data)
    (source,) = read_by_white_level(find_sources([str(tmp_path / "a.png")]), 4095)
    (frame,) = source.frames()
    (served,) = decode_pictures([data], ServerSettings(white_level=4095))
    (picture,) = iterate_pictures(tmp_path / "a.png", white_level=4095)
    for image in (frame.image, served, picture.image):
        np.testing.assert_array_equal(image, gray_as_colors(GRAY))


def test_dark_files_of_16_bits_are_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A detector of bytes reads the upper 8 of 16 bits, as TensorFlow does; the first dark file of a call is named."""
    data = encoded(deep_image(TWELVE), "PNG")
    (tmp_path / "a.png").write_bytes(data)
    read: list[Path] = []

    def read_once(path: Path) -> bytes:
        read.append(path)
        return path.read_bytes()

    monkeypatch.setattr("boxwright.api.pictures.read_file", read_once)
    for given in (data, tmp_path / "a.png", io.BytesIO(data)):
        caplog.clear()
        (picture,) = iterate_pictures([given])
        np.testing.assert_array_equal(picture.image, gray_as_colors(TWELVE >> 8).astype(np.uint8))
        assert "nearly black by the upper 8 bits; state what is white, 4095 for 12 bits: scale=4095" in caplog.text
    assert read == [tmp_path / "a.png"]
    for deep in (deep_image(TWELVE), Image.fromarray(PICTURE).convert("I")):
        caplog.clear()
        list(iterate_pictures([deep, deep]))
        assert caplog.text.count("nearly black by the upper 8 bits") == 1
    caplog.clear()
    list(iterate_pictures([data, PICTURE], 4095))
    list(iterate_pictures([encoded(Image.fromarray(PICTURE), "PNG")]))
    assert not caplog.text


@pytest.mark.parametrize("white", [0.0, 255.0])
def test_calls_with_arrays_on_a_detector_of_bytes(white: float) -> None:
    """int64 of 0..255 is read as before; 16 bits are refused with the word that is needed."""
    (image,) = image_tensors([PICTURE.astype(np.int64)], white_level=white)
    assert image.max() == 255
    with pytest.raises(bw.DataError, match=r"found 0 to 65535 .*; state their white: scale=65535 in a call"):
        image_tensors([PICTURE.astype(np.uint16) * 257], white_level=white)
    (deep,) = image_tensors([PICTURE.astype(np.uint16) * 257], 65535, white_level=white)
    np.testing.assert_array_equal(deep.numpy(), PICTURE)
    for wrong in (-1, float("nan"), True, "255", None):
        with pytest.raises(bw.DataError, match="scale: expected guess or pixels or unit"):
            image_tensors([PICTURE], wrong)  # type: ignore[arg-type]


def test_calls_take_the_scale_of_the_training_data() -> None:
    """Never the picture's own: one that is dark stays dark."""
    (image,) = image_tensors([PICTURE.astype(np.float32) / 255 / 100], white_level=1.0)
    assert float(image.max()) == pytest.approx(2.55)
    (deep,) = image_tensors([TWELVE // 16], white_level=4095.0)
    assert int(deep.max()) == 15
    (same,) = image_tensors([PICTURE], white_level=4095.0)
    assert int(same.max()) == 255, "bytes are bytes"
    with pytest.raises(bw.DataError, match=r"floats of which none is above 1, as if they were in 0\.\.1"):
        image_tensors([PICTURE / 255], white_level=4095.0)
    (unit,) = image_tensors([PICTURE / 255], "unit", white_level=4095.0)
    assert float(unit.max()) == 255
    with pytest.raises(bw.DataError, match=r"expected numbers in 0\.\.1, found 0 to 255 .*clip them to 0\.\.1, or set"):
        image_tensors([PICTURE.astype(np.float32)], white_level=1.0)


AUGMENTED = [
    (lambda image: image / 255, r"images in 0\.\.255 became floats of at most 1, .* multiply them by 255"),
    (lambda image: (image / 255 - 0.45) / 0.22, "leave out what normalizes them"),
    (
        lambda image: image.transpose(2, 0, 1),
        r"became ndarray of shape \(3, 20, 30\); expected .* \[height, width, 3\]",
    ),
    (lambda image: image[..., 0], r"became ndarray of shape \(20, 30\)"),
    (lambda image: torch.from_numpy(image), "became Tensor of shape"),
    (lambda image: image > 3, "images became bool"),
    (lambda image: image.astype(np.uint16) * 257, "expected numbers in 0..255, found 0 to 65535"),
    (lambda image: image * np.nan, "not finite"),
    (lambda _: None, "images became NoneType"),
]


@pytest.mark.parametrize(("change", "wanted"), AUGMENTED)
def test_what_augmentations_may_return(change: Any, wanted: str) -> None:
    from dataclasses import replace

    from boxwright.data.augmentation.user_transforms import OwnTransform

    def transform(sample: Sample, rng: np.random.Generator) -> Sample:
        del rng
        return replace(sample, image=change(sample.image))

    with pytest.raises(bw.DataError, match=f"user_augmentation: .*{wanted}"):
        OwnTransform(transform)(sample_of(PICTURE), np.random.default_rng(0))


@pytest.mark.parametrize(("kind", "wanted"), [(np.int64, np.uint8), (np.float64, np.float32), (np.float32, np.float32)])
def test_levels_of_other_types_are_fine(kind: Any, wanted: Any) -> None:
    from dataclasses import replace

    from boxwright.data.augmentation.user_transforms import OwnTransform

    transform = OwnTransform(lambda sample, _: replace(sample, image=sample.image.astype(kind)))
    found = transform(sample_of(PICTURE), np.random.default_rng(0)).image
    assert found.dtype == wanted
    np.testing.assert_array_equal(found, PICTURE)


def test_pictures_that_are_nearly_black_are_found_before_a_run(tmp_path: Path) -> None:
    from boxwright.training.preflight.images import check_levels
    from boxwright.training.preflight.records import read_records

    black = {"a.png": encoded(Image.fromarray((PICTURE / 255).astype(np.uint8)), "PNG")}
    good = {"a.png": encoded(Image.fromarray(PICTURE), "PNG")}
    for name, files, verdict, words in (
        ("black", black, "warning", ("0 to 1 of 0..255", "nearly black", "train_input_reader.white_level")),
        ("good", good, "fine", ("of 0..255",)),
    ):
        dataset = CocoDataset(coco_folder(tmp_path / name, files), tmp_path / name)
        (finding,) = check_levels(read_records(dataset, [0])[0], "the training data")
        assert finding.verdict == verdict
        assert all(word in str(finding) for word in words)


@pytest.mark.slow
def test_doctor_shows_the_ends_of_the_histogram(tmp_path: Path) -> None:
    from boxwright.training.preflight.examine import examine_data

    files = {f"{n}.png": encoded(deep_image(np.roll(TWELVE, n * 7, 1)), "PNG") for n in range(3)}
    dataset = CocoDataset(coco_folder(tmp_path / "deep", files), tmp_path / "deep")
    found = [finding for finding in examine_data(dataset, None) if finding.check == "pixels"]
    assert [finding.verdict for finding in found] == ["note", "fine"]
    assert "taken for 0..4,095 (12 bits)" in found[0].found
    assert "pixels of the training data are " in found[1].found
