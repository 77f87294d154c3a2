"""Images, records and annotations that are damaged, of other types, or made to hurt."""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import boxwright as bw
from boxwright.base.drawing import contact_sheet, draw_boxes, side_by_side
from boxwright.base.errors import BoxwrightError, DataError, OutputError
from boxwright.base.files import MARKER
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import write_coco, write_tfrecords, write_voc
from boxwright.data.example_messages import Example
from boxwright.data.image_io import decode_image, encode_jpeg, encode_png
from boxwright.data.open_dataset import open_dataset
from boxwright.data.reading import checked_sample, reading
from boxwright.data.shapes import ShapesDataset
from boxwright.data.tfrecord import TFRecordFile, write_records
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.data.voc import VocDataset
from boxwright.types import Sample
from tests.fuzz.guard import guarded
from tests.fuzz.readers import CLASSES, COCO, READERS

PICTURE = ShapesDataset(1, seed=1, size=(24, 30))[0].image


# ---------------------------------------------------------------- images


def png(width: int, height: int, rows: int, colour: int = 2, depth: int = 8) -> bytes:
    """A PNG whose header says one size, and which has so many rows, of zeros."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    line = 1 + -(-width * depth * {0: 1, 2: 3, 6: 4}[colour] // 8)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", compressed_zeros(line * rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def compressed_zeros(count: int) -> bytes:
    """So many zeros as zlib writes them. They may be gigabytes: one block is compressed, and repeated."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    rest = packer.compress(bytes(count % 2**20)) + packer.flush()
    return b"\x78\xda" + block * (count >> 20) + rest + struct.pack(">HH", count % 65521, 1)


def test_a_png_that_is_whole() -> None:
    assert decode_image(png(7, 5, 5), "x").shape == (5, 7, 3)


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_a_png_with_rows_missing(rows: int) -> None:
    with pytest.raises(DataError, match="x.png: the image cannot be decoded: it is cut off: .* rows are missing"):
        decode_image(png(7, 5, rows), "x.png")


def test_no_bit_of_a_pngs_pixels_may_change() -> None:
    """Every bit of header, palette and pixels: refused, or the same picture."""
    palette = io.BytesIO()
    Image.fromarray(PICTURE).convert("P").save(palette, format="PNG")
    interlaced = encode_png(PICTURE)
    for data in (encode_png(PICTURE[:6, :6]), palette.getvalue()[:2000], interlaced[:300]):
        try:
            whole = decode_image(data, "x")
        except DataError:
            continue
        for bit in range(0, len(data) * 8, 7):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            with suppress(DataError):
                assert np.array_equal(decode_image(bytes(changed), "x"), whole), bit


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_cut_off_with_its_end_mark(share: float, mode: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(buffer, format="JPEG")
    data = buffer.getvalue()
    assert decode_image(data, "x").shape == (64, 64, 3)
    with pytest.raises(DataError, match="it is cut off"):
        decode_image(data[: int(len(data) * share)] + b"\xff\xd9", "x.jpg")


@pytest.mark.slow_cases("13000-13000-0-6-8")
@pytest.mark.parametrize(
    ("width", "height", "rows", "colour", "depth"),
    [(13000, 13000, 0, 2, 8), (13000, 13000, 0, 6, 8), (13000, 13000, 13000, 0, 1), (2**31 - 1, 1, 1, 2, 8)],
)
def test_a_budget_of_pixels(width: int, height: int, rows: int, colour: int, depth: int) -> None:
    data = png(width, height, rows, colour, depth)
    outcome = guarded(lambda: decode_image(data, "x.png"), memory=2**30)
    assert outcome.kind == "refused", outcome.text
    assert "BOXWRIGHT_MAX_IMAGE_PIXELS" in outcome.text or "pixels than the" in outcome.text


def test_the_budget_is_a_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_IMAGE_PIXELS", "100")
    with pytest.raises(DataError, match="30×24: 720 pixels of an image are more than the 100 allowed"):
        decode_image(encode_jpeg(PICTURE), "x")


def test_a_jpeg_that_claims_more_than_it_has() -> None:
    data = bytearray(encode_jpeg(PICTURE))
    place = data.index(b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", 13000, 13000)
    assert guarded(lambda: decode_image(bytes(data), "x"), memory=2**30).kind == "refused"


def test_no_other_program_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr("subprocess.check_call", start)
    monkeypatch.setattr("subprocess.Popen", start)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(DataError, match="a.jpg: not an image of a known format"):
        decode_image(eps, "a.jpg")


@pytest.mark.parametrize("value", [0, 9, 65535, -1])
def test_orientations_that_are_none(value: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = value if value >= 0 else 2
    buffer = io.BytesIO()
    Image.fromarray(PICTURE).save(buffer, format="JPEG", exif=exif)
    turned = decode_image(buffer.getvalue(), "x", upright=True)
    plain = decode_image(buffer.getvalue(), "x")
    assert np.array_equal(turned, plain if value >= 0 else plain[:, ::-1])


# ---------------------------------------------------------------- pictures


@pytest.mark.slow_cases("size1", "size2", "size4")
@pytest.mark.parametrize("size", [(20000, 1), (1, 20000), (2000, 3), (1, 1), (5000, 4000)])
def test_pictures_have_a_largest_size(size: tuple[int, int]) -> None:
    boxes = np.array([[0, 0, 1e9, 1e9], [-1e9, -1e30, 1e30, 1e9], [np.nan, 0, 1, 1], [0, 0, np.inf, 3], [5, 5, 2, 2]])

    def draw() -> tuple[int, int]:
        picture = draw_boxes(np.zeros((*size, 3), np.uint8), boxes, [0, 1, 2, 3, 4], ["a", "b\n\0", "c", "d", "e"])
        sheet = contact_sheet([picture, picture], ["x", "y"])
        beside = side_by_side(picture, picture, ("x", "y"))
        assert max(picture.shape) <= 4096
        assert max(sheet.shape) <= 1000
        assert max(beside.shape) <= 8300
        return picture.shape[:2]

    outcome = guarded(draw, memory=2**31)
    assert outcome.kind == "returned", outcome.text


def test_a_box_that_crosses_the_border_has_no_edge_there() -> None:
    picture = draw_boxes(np.zeros((400, 400, 3), np.uint8), np.array([[100, -1e9, 200, 1e9]]), [0], [""])
    assert picture[0, 150].sum() == picture[-1, 150].sum() == 0
    assert picture[200, 100].sum() > 0
    whole = draw_boxes(np.zeros((400, 400, 3), np.uint8), np.array([[0, 0, 400, 400]]), [0], [""])
    assert whole[0, 150].sum() > 0


def test_captions_of_any_text() -> None:
    for text in ("x" * 10**6, "\ud800", "\u202e浣熊\0\n", "🙂"):
        assert draw_boxes(PICTURE, np.array([[1, 1, 9, 9]]), [0], [text]).any()


# ---------------------------------------------------------------- samples


def test_every_failure_of_a_reader_is_a_data_error() -> None:
    for error in (
        ValueError("odd"),
        TypeError(),
        KeyError("x"),
        RecursionError(),
        OSError(5, "I/O error"),
    ):
        with pytest.raises(DataError, match="file: record 3"), reading("file: record 3"):
            raise error
    # The data are not at fault where memory is short.
    with pytest.raises(BoxwrightError, match="file: record 3: not enough memory") as short, reading("file: record 3"):
        raise MemoryError
    assert not isinstance(short.value, DataError)
    for passes in (KeyboardInterrupt, SystemExit):
        with pytest.raises(passes), reading("x"):
            raise passes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("boxes", np.nan),
        ("boxes", np.inf),
        ("boxes", 1e9),
        ("weights", np.nan),
        ("weights", -np.inf),
        ("areas", np.inf),
    ],
)
def test_numbers_that_would_spoil_a_run(field: str, value: float) -> None:
    sample = Sample(PICTURE, np.array([[0, 0, 3, 3], [1, 1, 4, 4]], np.float32), np.zeros(2, np.int64))
    getattr(sample, field)[1] = value
    with pytest.raises(DataError, match="file: (.*object 1|box .*1000000000)"):
        checked_sample(sample, "file")


def record(**features: Any) -> bytes:
    """A record of one circle, with some features changed."""
    example = Example()
    whole: dict[str, Any] = {
        "image/encoded": [encode_jpeg(PICTURE)],
        "image/object/bbox/xmin": [0.1],
        "image/object/bbox/ymin": [0.1],
        "image/object/bbox/xmax": [0.6],
        "image/object/bbox/ymax": [0.7],
        "image/object/class/label": [1],
    } | {key.replace("__", "/"): value for key, value in features.items()}
    for key, values in whole.items():
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
        getattr(example.features.feature[key], kind).value.extend(values)
    return bytes(example.SerializeToString())


NAN = float("nan")
BAD_FEATURES = [
    ("image__height", [b"tall"], "image/height: expected numbers"),
    ("image__height", [float("inf")], "image/height: expected a finite number"),
    ("image__encoded", [1.0], "image/encoded: expected bytes"),
    ("image__object__bbox__xmin", [b"a"], "image/object/bbox/xmin: expected numbers"),
    ("image__object__bbox__ymin", [NAN], "boxes of object 0 are not finite"),
    ("image__object__bbox__ymax", [9223372036854775807], "pixels from the origin"),
    ("image__object__weight", [NAN], "weights of object 0 are not finite"),
    ("image__object__weight", [b"a"], "image/object/weight: expected numbers"),
    ("image__object__area", [float("inf")], "areas of object 0 are not finite"),
    ("image__object__class__label", [1.7], "image/object/class/label: expected a whole number, found 1.7"),
    ("image__object__class__label", [b"circle"], "image/object/class/label: expected numbers"),
    ("image__object__class__label", [float("-inf")], "expected a finite number"),
    ("image__object__class__text", [5], "image/object/class/text: expected bytes"),
    ("image__class__label", [2.5], "image/class/label: expected a whole number"),
    ("image__object__difficult", [b"1"], "image/object/difficult: expected numbers"),
    ("image__filename", [2.5], "image/filename: expected a whole number"),
]


@pytest.mark.parametrize(("key", "value", "wanted"), BAD_FEATURES)
def test_features_of_other_types(tmp_path: Path, key: str, value: list[Any], wanted: str) -> None:
    write_records(tmp_path / "a.record", [record(), record(**{key: value})])
    dataset = TFRecordDataset([tmp_path / "a.record"], CLASSES)
    assert dataset[0].labels.tolist() == [0]
    with pytest.raises(DataError, match=f"a.record: record 1: .*{wanted}") as caught:
        _ = dataset[1], dataset.encoded(1)
    assert len(str(caught.value)) < 600


def test_features_that_are_only_odd(tmp_path: Path) -> None:
    """Whole numbers as floats, numbers as ids: read."""
    write_records(tmp_path / "a.record", [record(image__object__class__label=[2.0], image__source_id=[77])])
    sample = TFRecordDataset([tmp_path / "a.record"], CLASSES)[0]
    assert (sample.labels.tolist(), sample.id) == ([1], "77")


@pytest.mark.slow_except("voc")
@pytest.mark.parametrize("source", ["records", "coco", "voc"])
def test_bad_samples_are_left_out_whatever_the_source(
    source: str, small_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of three samples has a field of another type: a run that skips such learns from the others."""
    shapes = ShapesDataset(3, seed=4, size=(40, 40))
    if source == "records":
        write_tfrecords(shapes, tmp_path / "a.record")
        good = [TFRecordFile(tmp_path / "a.record")[index] for index in (0, 2)]
        write_records(tmp_path / "a.record", [good[0], record(image__height=[b"tall"]), good[1]])
        reader = f"tf_record_input_reader {{ input_path: '{tmp_path}/a.record' }}"
    elif source == "coco":
        write_coco(shapes, tmp_path / "c.json")
        content = json.loads((tmp_path / "c.json").read_text())
        content["images"][1]["height"] = [48]
        (tmp_path / "c.json").write_text(json.dumps(content))
        reader = f"coco_input_reader {{ annotations: '{tmp_path}/c.json' }}"
    else:
        with pytest.warns(UserWarning, match="dropped"):
            write_voc(shapes, tmp_path / "v")
        bad = sorted((tmp_path / "v" / "Annotations").iterdir())[1]
        bad.write_bytes(b'<?xml version="1.0" encoding="nonsense"?><annotation/>')
        reader = f"voc_input_reader {{ root: '{tmp_path}/v' }}"
    labels = tmp_path / "labels.pbtxt"
    labels.write_text("".join(f"item {{ id: {c.id} name: '{c.name}' }}\n" for c in shapes.categories))
    config = bw.load_config(small_config, ["train_config.num_steps=3", "train_config.batch_size=2"])
    from boxwright.config.load import parse_message
    from boxwright.pipeline import messages as m
    from tests.conftest import Silent

    config.train_input_reader = parse_message(f"label_map_path: '{labels}' shuffle: false {reader}", m.InputReader)
    heard: list[str] = []

    class Listener(Silent):
        def message(self, text: str) -> None:
            heard.append(text)

    settings = bw.RunSettings(evaluate=False, workers=0, skip_bad_records=True, log_every_n=1)
    assert bw.train(config, tmp_path / "m", settings, {"test": Listener()}).step == 3
    assert sum(text.startswith("left out (") for text in heard) == 2, heard


# ---------------------------------------------------------------- record files


@pytest.mark.parametrize("make", ["none", "bits", "half", "twice", "npz", "short", "old"])
def test_an_index_is_not_trusted(tmp_path: Path, make: str) -> None:
    path, wanted = tmp_path / "r", [b"one", b"x" * 300, b"", b"four"]
    write_records(path, wanted)
    assert len(TFRecordFile(path)) == 4
    index = tmp_path / ".r.index"
    data = bytearray(index.read_bytes())
    body, digest = data[:-32], data[-32:]
    if make == "bits":
        for bit in range(0, len(data) * 8, 5):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            index.write_bytes(changed)
            file = TFRecordFile(path)
            assert [file[number] for number in range(len(file))] == wanted
        return
    index.write_bytes(
        {
            "none": b"",
            "half": body[:-16] + digest,
            "twice": body + body[-32:] + digest,
            "npz": b"PK\x03\x04",
            "short": data[:40],
            "old": b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }",
        }[make]
    )
    file = TFRecordFile(path)
    assert [file[number] for number in range(len(file))] == wanted


def test_records_replaced_while_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write_records(path, [b"a" * 100, b"b" * 100, b"c" * 100])
    file = TFRecordFile(path)
    for other in ([b"x" * 37] * 9, [b"y"], [b"z" * 10**5]):
        write_records(path, other)
        for index in range(3):
            with suppress(DataError):
                assert file[index] in other
    path.write_bytes(b"")
    with pytest.raises(DataError, match="has become shorter while in use"):
        _ = file[0]


def test_a_record_that_announces_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_records(tmp_path / "r", [b"a" * 100])
    monkeypatch.setenv("BOXWRIGHT_MAX_RECORD_BYTES", "50")
    with pytest.raises(DataError, match="100 bytes of a record are more than the 50 allowed"):
        _ = TFRecordFile(tmp_path / "r")[0]


# ---------------------------------------------------------------- COCO


def coco(folder: Path, change: Any) -> CocoDataset:
    content = json.loads(json.dumps(COCO))
    change(content)
    (folder / "a.jpg").write_bytes(encode_jpeg(PICTURE))
    (folder / "c.json").write_text(json.dumps(content))
    return CocoDataset(folder / "c.json", load_masks=True)


def test_coco_of_the_right_types(tmp_path: Path) -> None:
    dataset = coco(tmp_path, lambda content: None)
    first, second = dataset[0], dataset[1]
    assert first.masks is not None
    assert second.masks is not None
    assert first.masks[0].sum() == 30
    assert second.masks[0].sum() == 20
    assert (second.is_crowd.tolist(), second.areas.tolist()) == ([True], [3.0])


def setting(*path: Any) -> Any:
    *steps, last, value = path

    def change(content: Any) -> None:
        for step in steps:
            content = content[step]
        content[last] = value

    return change


FIRST = ("annotations", 0)
BAD_COCO = [
    (setting("images", 0, "height", [48]), "image 1: height: expected a number"),
    (setting("images", 0, "height", "tall"), "image 1: height: expected a number"),
    (setting("images", 0, "width", 1e400), "image 1: width: expected a finite number"),
    (setting(*FIRST, "bbox", 2, "1"), "annotation 1: bbox: expected a number"),
    (setting(*FIRST, "bbox", 2, 10**400), "annotation 1: bbox: expected a finite number"),
    (setting(*FIRST, "bbox", [0, 0, 1e10, 1]), "pixels from the origin"),
    (setting(*FIRST, "area", "big"), "annotation 1: area: expected a number"),
    (setting(*FIRST, "area", [1]), "annotation 1: area: expected a number"),
    (setting(*FIRST, "iscrowd", "0"), "annotation 1: iscrowd: expected a number"),
    (setting(*FIRST, "segmentation", [[1, 1, 1e8, 1, 1e8, 1e8]]), "segmentation: polygon 0: 100,000,000.* from the origin"),
    (setting(*FIRST, "segmentation", [[1, 1, 4294967296, 1, 3, 3]]), "from the origin"),
    (setting(*FIRST, "segmentation", [[0, 0, 9e6, 9e6] * 500]), "pixels along a polygon's boundary"),
    (setting(*FIRST, "segmentation", [[1, "x", 2, 2, 3, 3]]), "polygon 0: expected a number"),
    (setting(*FIRST, "segmentation", {"size": [60000, 60000], "counts": "0d0"}), "the mask is 60000×60000, the image 24×30"),
    (setting(*FIRST, "segmentation", {"size": [24, 30], "counts": [0, 10**12]}), "do not fill an image"),
    (setting(*FIRST, "segmentation", {"size": [24, 30], "counts": [-5, 725]}), "do not fill an image"),
    (setting(*FIRST, "segmentation", {"size": [24, 30], "counts": "\x00zz"}), "not COCO's compressed run lengths"),
    (setting(*FIRST, "segmentation", {"size": [24, 30], "counts": "o" * 5000}), "not COCO's compressed run lengths|do not fill|cut off"),
    (setting(*FIRST, "segmentation", {"size": "24", "counts": []}), "expected size"),
    (setting(*FIRST, "segmentation", 5), "expected polygons"),
    (setting("categories", 0, "id", "abc"), "category id 'abc' is not a number"),
    (setting("categories", 0, "id", "²"), "category id '²' is not a number"),
    (setting("categories", 0, "name", 5), r"categories\[0\].name: expected text"),
    (setting("images", 0, "file_name", "a\0b"), "null byte"),
    (setting("images", 0, "file_name", "x" * 5000), "no picture .xxx"),
    (setting("images", 0, "file_name", 7), r"images\[0\].file_name: expected text"),
    (setting("images", "x"), "expected a list of objects under 'images'"),
]  # fmt: skip


@pytest.mark.slow_except(
    "change-annotation 1: area: expected a number0",
    "change-segmentation: polygon 0: 100,000,000.* from the origin",
    "change-category id '\\xb2' is not a number",
    "change-expected a list of objects under 'images'",
)
@pytest.mark.parametrize(("change", "wanted"), BAD_COCO)
def test_coco_of_other_types(tmp_path: Path, change: Any, wanted: str) -> None:
    import re

    outcome = guarded(lambda: coco(tmp_path, change)[0])
    assert outcome.kind == "refused", outcome.text
    assert re.search(wanted, outcome.text), outcome.text
    assert len(outcome.text) < 1000


@pytest.mark.parametrize("text", ['{"images": ' + "1" * 5000 + "}", "[" * 100_000, '{"images": "\udcff"}', "", "nul"])
def test_json_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    outcome = guarded(lambda: CocoDataset(tmp_path / "c.json"))
    assert outcome.kind == "refused", outcome.text


def test_packed_run_lengths_are_those_of_pycocotools() -> None:
    from pycocotools import mask as theirs

    from boxwright.data.coco_masks import decode_mask
    from boxwright.nn.ops.pasted_masks import encode_mask

    rng = np.random.default_rng(3)
    for _ in range(200):
        size = tuple(int(side) for side in rng.integers(1, 60, 2))
        mask = (rng.random(size) < rng.random()).astype(np.uint8)
        packed = encode_mask(mask)
        assert np.array_equal(decode_mask(packed, size, "x"), mask)  # type: ignore[arg-type]
        runs = theirs.frPyObjects({"size": list(size), "counts": decode_runs(mask)}, *size)
        assert runs["counts"].decode() == packed["counts"]


def decode_runs(mask: np.ndarray[Any, Any]) -> list[int]:
    flat = np.concatenate([[0], mask.ravel(order="F")])
    changes = np.flatnonzero(np.diff(flat)) if len(flat) > 1 else np.zeros(0, int)
    edges = [0, *changes.tolist(), mask.size]
    return [after - before for before, after in pairwise(edges)]


@pytest.mark.parametrize("kind", ["relative", "absolute"])
def test_names_that_lead_out_of_the_folder(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(encode_jpeg(PICTURE))
    name = "../secret.jpg" if kind == "relative" else str(secret)
    content = json.loads(json.dumps(COCO))
    content["images"][0]["file_name"] = name
    (tmp_path / "in" / "c.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="lies outside .*allow_paths_outside"):
        _ = CocoDataset(tmp_path / "in" / "c.json", tmp_path / "in")[0]
    with pytest.raises(DataError, match="lies outside"):
        CocoDataset(tmp_path / "in" / "c.json", tmp_path / "in").encoded(0)
    allowed = CocoDataset(tmp_path / "in" / "c.json", tmp_path / "in", allow_paths_outside=True)
    assert allowed[0].image.shape == PICTURE.shape
    inside = str(tmp_path / "in" / "b.jpg")
    (tmp_path / "in" / "b.jpg").write_bytes(encode_jpeg(PICTURE))
    content["images"][0]["file_name"] = inside
    (tmp_path / "in" / "c.json").write_text(json.dumps(content))
    assert CocoDataset(tmp_path / "in" / "c.json", tmp_path / "in")[0].image.shape == PICTURE.shape


# ---------------------------------------------------------------- VOC

XML = (
    "<annotation><filename>{0}.jpg</filename><object><name>{1}</name><bndbox><xmin>1</xmin><ymin>2</ymin>"
    "<xmax>9</xmax><ymax>8</ymax></bndbox></object></annotation>"
)


def voc(folder: Path, lines: str | bytes, stems: tuple[str, ...] = ("a", "a b", "b")) -> Path:
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    for stem in stems:
        (folder / "Annotations" / f"{stem}.xml").write_text(XML.format(stem, "cat"))
        (folder / "JPEGImages" / f"{stem}.jpg").write_bytes(encode_jpeg(PICTURE))
    (folder / "ImageSets" / "Main" / "l.txt").write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    return folder


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("a\na b\n", ["a", "a b"]),
        ("a  1\nb -1\n", ["a", "b"]),
        ("a b  0\r\n\r\n  b\n", ["a b", "b"]),
        ("\ufeffa\nb", ["a", "b"]),
    ],
)
def test_lists_name_whole_stems(tmp_path: Path, lines: str, wanted: list[str]) -> None:
    assert VocDataset(voc(tmp_path, lines), "l").stems == wanted


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("../../outside\n", "l.txt: line 1: .*lies outside"),
        ("a\n/etc/hostname\n", "l.txt: line 2: .*lies outside"),
        (b"caf\xe9\n", "1 image without an annotation in .*: café"),
        (b"caf\x81\n", "l.txt: not UTF-8"),
        ("x" * 5000, "1 image without an annotation"),
        ("a\0b", "null byte"),
    ],
)
def test_lists_that_cannot_be(tmp_path: Path, lines: str | bytes, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        VocDataset(voc(tmp_path / "v", lines), "l")


def test_a_name_that_may_be_two(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="may mean a 1.xml, or a.xml with a flag"):
        VocDataset(voc(tmp_path, "a 1\n", ("a", "a 1")), "l")


def test_annotations_in_other_encodings(tmp_path: Path) -> None:
    root = voc(tmp_path, "a\n", ("a",))
    text = '<?xml version="1.0" encoding="gb2312"?>' + XML.format("a", "浣熊".replace("浣", "猫"))
    (root / "Annotations" / "a.xml").write_bytes(text.encode("gb2312"))
    assert [c.name for c in VocDataset(root).categories] == ["猫熊"]
    for bad in (
        b'<?xml version="1.0" encoding="nonsense"?><annotation/>',
        b"\xff\xfe<",
        b"<a>" * 50_000,
        b"<annotation>\xff",
    ):
        (root / "Annotations" / "a.xml").write_bytes(bad)
        outcome = guarded(lambda: VocDataset(root, categories=CLASSES)[0])
        assert outcome.kind == "refused", outcome.text
        assert "a.xml" in outcome.text


@pytest.mark.slow_cases("<filename>a {a {", "<xmax>1e10", "change4")
@pytest.mark.parametrize(
    "change", ["<filename>" + "a" * 5000, "<filename>a {a {", "<xmax>1e10", "<xmax>nan", "<name>" + "x" * 10**6]
)
def test_voc_of_odd_values(tmp_path: Path, change: str) -> None:
    tag = change.partition(">")[0] + ">"
    root = voc(tmp_path, "a\n", ("a",))
    text = XML.format("a", "cat")
    start = text.index(tag)
    (root / "Annotations" / "a.xml").write_text(text[:start] + change + text[text.index("</", start) :])
    outcome = guarded(lambda: READERS["voc"].read((root / "Annotations" / "a.xml").read_bytes(), _fresh(tmp_path)))
    assert outcome.kind in ("returned", "refused"), outcome.text
    assert len(outcome.text) < 2000


def _fresh(folder: Path) -> Path:
    (folder / "again").mkdir()
    return folder / "again"


NAMES = ["a b", "\x85", "\u2028 ~", " outer ", "浣熊", "a&b<c>", "tab\tin", "🙂", "'\""]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["voc", "coco", "record"])
def test_names_of_classes_and_files_come_back_the_same(tmp_path: Path, name: str, target: str) -> None:
    data = Named(name, f"{name} 1.jpg" if "/" not in name else "x.jpg")
    if target == "voc":
        write_voc(data, tmp_path / "v")
        again: Any = open_dataset(tmp_path / "v", image_set="all")
    elif target == "coco":
        again = open_dataset(write_coco(data, tmp_path / "c.json"))
    else:
        again = open_dataset(write_tfrecords(data, tmp_path / "a.record")[0])
    assert [c.name for c in again.categories] == [name]
    assert [again[index].boxes.tolist() for index in range(2)] == [[[1, 2, 9, 8]]] * 2
    assert again[0].labels.tolist() == [0]


class Named:
    """Two samples of one class, and one file name for both."""

    parts = (2,)
    name = "named"

    def __init__(self, kind: str, file: str) -> None:
        from boxwright.types import Categories, Category

        self.categories, self.file = Categories((Category(0, 1, kind),)), file

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Sample:
        image = np.full_like(PICTURE, index * 9)
        return Sample(image, np.array([[1, 2, 9, 8]], np.float32), np.zeros(1, np.int64), filename=self.file)

    def encoded(self, index: int) -> tuple[bytes, str]:
        return encode_png(self[index].image), self.file


def test_a_name_that_xml_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written to VOC's XML"):
        write_voc(Named("a\x01", "x.png"), tmp_path / "v")
    with pytest.raises(DataError, match="has not finished"):
        VocDataset(tmp_path / "v")


# ---------------------------------------------------------------- conversions


class Ending(Named):
    """Ends after the first sample, as by a full disk, Ctrl-C or a bad record."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("cat", "x.png")
        self.error = error

    def __getitem__(self, index: int) -> Sample:
        if index:
            raise self.error
        return super().__getitem__(index)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OutputError("No space left"), DataError("bad"), MemoryError()])
def test_half_a_conversion_is_no_data_set(tmp_path: Path, error: BaseException) -> None:
    write_tfrecords(Named("cat", "x.png"), tmp_path / "t" / "a.record", num_shards=2)
    before = {path.name: path.read_bytes() for path in (tmp_path / "t").iterdir()}
    with pytest.raises(type(error)):
        write_tfrecords(Ending(error), tmp_path / "t" / "a.record", num_shards=2)
    assert {path.name: path.read_bytes() for path in (tmp_path / "t").iterdir()} == before, "not even one of two shards"
    with pytest.raises(type(error)):
        write_coco(Ending(error), tmp_path / "c" / "c.json")
    assert not (tmp_path / "c" / "c.json").exists()
    with pytest.raises(type(error)):
        write_voc(Ending(error), tmp_path / "v")
    assert (tmp_path / "v" / MARKER).is_file()
    with pytest.raises(DataError, match="this folder is incomplete"):
        open_dataset(tmp_path / "v")
    write_voc(Named("cat", "x.png"), tmp_path / "v")
    assert len(open_dataset(tmp_path / "v")) == 2
    assert not list(tmp_path.rglob("*.partial"))


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("boxwright.base.files.os.fsync", full)
    for write, name in ((write_tfrecords, "a.record"), (write_coco, "c.json"), (write_voc, "v")):
        with pytest.raises(OutputError, match=f"{tmp_path}/.*: could not be written: No space left on device"):
            write(Named("cat", "x.png"), tmp_path / name)  # type: ignore[operator]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
