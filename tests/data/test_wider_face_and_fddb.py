"""WIDER FACE's and RetinaFace's files, the lists of its subsets, and FDDB's ellipses."""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

import boxwright as bw
from boxwright.base.errors import DataError
from boxwright.config.load import parse_message
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import write_coco, write_tfrecords, write_voc
from boxwright.data.dataset import source_sizes
from boxwright.data.fddb import FddbDataset, ellipse_boxes
from boxwright.data.open_dataset import open_dataset
from boxwright.data.recognize import recognize
from boxwright.data.tf_example import RecordFields
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.data.wider_face import FACE_LANDMARKS, WiderFaceDataset
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset

PARADE, MARCH = "0--Parade/0_Parade_marchingband_1_849.jpg", "1--Handshaking/1_Handshaking_2.jpg"
BENCHMARK = f"""{PARADE}
2
10 12 20 30 1 0 0 0 2 1
40 5 8 9 0 0 0 1 0 0
{MARCH}
0
0 0 0 0 0 0 0 0 0 0
1--Handshaking/empty.jpg
0
2--Demonstration/2.jpg
1
3 4 5 6 2 1 1 0 0 0
"""
LANDMARKS = f"""# {PARADE}
10 12 20 30 14.5 20 0.0 25 20.5 0.0 20 26 0.0 15 33 1.0 24 33 0.0 0.82
40 5 8 9 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 0.3
# {MARCH}
"""


@pytest.fixture
def wider(tmp_path: Path) -> Path:
    for name in (PARADE, MARCH, "1--Handshaking/empty.jpg", "2--Demonstration/2.jpg"):
        path = tmp_path / "WIDER_val" / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 48), (9, 99, 199)).save(path)
    (tmp_path / "wider_face_split").mkdir()
    (tmp_path / "wider_face_split" / "wider_face_val_bbx_gt.txt").write_text(BENCHMARK)
    return tmp_path


def annotations(folder: Path) -> Path:
    return folder / "wider_face_split" / "wider_face_val_bbx_gt.txt"


def write_subsets(folder: Path, lists: dict[str, list[list[int]]] | None = None) -> Path:
    """Write lists as the evaluation tool's: two events, of one and of two images; the last is in none of them."""
    chosen = lists or {"easy": [[1], [], []], "medium": [[1], [], []], "hard": [[1, 2], [], []]}
    files = [[PARADE], [MARCH, "1--Handshaking/empty.jpg"]]
    folder.mkdir(exist_ok=True)

    def cells(rows: list[object]) -> object:
        made = np.empty((len(rows), 1), object)
        for number, row in enumerate(rows):
            made[number, 0] = row
        return made

    for name, faces in chosen.items():
        by_event = [[faces[0]], [faces[1], faces[2]]]
        content = {
            "event_list": cells(["0--Parade", "1--Handshaking"]),
            "file_list": cells([cells([Path(file).stem for file in some]) for some in files]),
            "gt_list": cells([cells([np.array(f, np.uint16).reshape(-1, 1) for f in some]) for some in by_event]),
        }
        savemat(folder / f"wider_{name}_val.mat", content)
    return folder


def test_benchmark(wider: Path) -> None:
    data = WiderFaceDataset(annotations(wider))
    assert len(data) == 4
    assert source_sizes(data) == (4,)
    first = data[0]
    assert first.boxes.tolist() == [[10, 12, 30, 42], [40, 5, 48, 14]]
    assert first.labels.tolist() == [0, 0]
    assert first.is_crowd.tolist() == [False, True]
    assert first.id == first.filename == PARADE
    assert first.attribute_names == ("blur", "expression", "illumination", "invalid", "occlusion", "pose")
    assert first.attributes is not None
    assert first.attributes.tolist() == [[1, 0, 0, 0, 2, 1], [0, 0, 0, 1, 0, 0]]
    assert first.keypoints is None
    assert [len(data[number].boxes) for number in range(4)] == [2, 0, 0, 1]
    assert data.categories.by_label(0).keypoints == FACE_LANDMARKS
    kept = first.keep(~first.is_crowd)
    assert kept.attributes is not None
    assert kept.attributes.tolist() == [[1, 0, 0, 0, 2, 1]]


def test_landmarks_are_keypoints(wider: Path) -> None:
    path = wider / "wider_face_split" / "label.txt"
    path.write_text(LANDMARKS)
    data = WiderFaceDataset(path, wider / "WIDER_val" / "images")
    assert len(data) == 2
    first = data[0]
    assert first.keypoints is not None
    assert first.keypoints.shape == (2, 5, 3)
    assert first.keypoints[0].tolist() == [[14.5, 20, 1], [25, 20.5, 1], [20, 26, 1], [15, 33, 1], [24, 33, 1]]
    assert not first.keypoints[1].any()
    assert first.attributes is None
    assert len(data[1].boxes) == 0
    path.write_text(f"# {PARADE}\n10 12 20 30\n")
    alone = WiderFaceDataset(path, wider / "WIDER_val" / "images")[0]
    assert alone.keypoints is not None
    assert not alone.keypoints.any()


def test_subsets_are_attributes(wider: Path) -> None:
    data = WiderFaceDataset(annotations(wider), subsets=write_subsets(wider / "ground_truth"))
    first = data[0]
    assert first.attribute_names[-3:] == ("easy", "medium", "hard")
    assert first.attributes is not None
    assert first.attributes[:, -3:].tolist() == [[1, 1, 1], [0, 0, 1]]
    last = data[3]
    assert last.attributes is not None
    assert last.attributes[:, -3:].tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("lists", "problem"),
    [
        (
            {"easy": [[3], [], []], "medium": [[], [], []], "hard": [[], [], []]},
            "face 3 of 2; these lists belong to other",
        ),
        ({"easy": [[], [], []], "medium": [[], [], []]}, "wider_hard_val.mat: no such file"),
    ],
)
def test_subsets_of_other_data(wider: Path, lists: dict[str, list[list[int]]], problem: str) -> None:
    folder = write_subsets(wider / "ground_truth", lists)
    with pytest.raises(DataError, match=problem):
        WiderFaceDataset(annotations(wider), subsets=folder)


@pytest.mark.parametrize("data", [b"", b"MATLAB 5.0", bytes(200), b"\x00" * 128 + b"\x0f\x00\x00\x00"])
def test_subsets_that_are_no_lists(wider: Path, data: bytes) -> None:
    folder = write_subsets(wider / "ground_truth")
    (folder / "wider_medium_val.mat").write_bytes(data)
    with pytest.raises(DataError, match="wider_medium_val.mat"):
        WiderFaceDataset(annotations(wider), subsets=folder)


def test_subsets_truncated_anywhere(wider: Path) -> None:
    folder = write_subsets(wider / "ground_truth")
    whole = (folder / "wider_easy_val.mat").read_bytes()
    for length in range(0, len(whole), 37):
        (folder / "wider_easy_val.mat").write_bytes(whole[:length])
        # A list that lost its end may be read as a shorter one; nothing but a clear error may come besides.
        with suppress(DataError):
            WiderFaceDataset(annotations(wider), subsets=folder)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no images"),
        (f"{PARADE}\n", "line 1: expected a count"),
        (f"{PARADE}\n2\n1 2 3 4 0 0 0 0 0 0\n", "line 1: 2 faces announced, but the file ends after 1"),
        (f"{PARADE}\n1\n1 2 3\n", "line 3: expected 10 numbers, found 3"),
        (f"{PARADE}\n1\n1 2 x 4 0 0 0 0 0 0\n", "line 3: expected numbers, found 'x'"),
        (f"{PARADE}\n1\n1 2 nan 4 0 0 0 0 0 0\n", "line 3"),
        (f"{PARADE}\n1\n1 2 -3 4 0 0 0 0 0 0\n", "line 3: width -3"),
        (f"{PARADE}\n1\n1 2 3 4 0 0 0 0 0 0\n5 6 7 8 0 0 0 0 0 0\n", "line 4: expected the path of an image"),
        (f"# {PARADE}\n1 2 3\n", "line 2: expected 4 numbers"),
        (f"# {PARADE}\n1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 inf\n", "line 2"),
    ],
)
def test_files_that_are_wrong_name_the_line(wider: Path, text: str, problem: str) -> None:
    annotations(wider).write_text(text)
    with pytest.raises(DataError, match=problem):
        WiderFaceDataset(annotations(wider))


def test_paths_stay_in_the_folder_and_images_are_there(wider: Path) -> None:
    annotations(wider).write_text("../../x.jpg\n0\ngone/1.jpg\n0\n")
    data = WiderFaceDataset(annotations(wider))
    with pytest.raises(DataError, match="line 1"):
        _ = data[0]
    with pytest.raises(DataError, match=r"line 3: no picture 'gone/1\.jpg' in "):
        _ = data[1]
    with pytest.raises(DataError, match="no such file"):
        WiderFaceDataset(wider / "none.txt")


def test_faces_need_a_class_of_their_name(wider: Path) -> None:
    named = bw.Categories((bw.Category(0, 1, "hand"), bw.Category(1, 2, "face")))
    assert WiderFaceDataset(annotations(wider), categories=named)[0].labels.tolist() == [1, 1]
    other = bw.Categories((bw.Category(0, 1, "hand"), bw.Category(1, 2, "foot")))
    with pytest.raises(DataError, match="named face"):
        WiderFaceDataset(annotations(wider), categories=other)


def test_what_is_known_of_faces_survives_conversion(wider: Path, tmp_path: Path) -> None:
    """Attributes, invalid marks and event folders, through TFRecord and COCO; landmarks through TFRecord."""
    data = WiderFaceDataset(annotations(wider), subsets=write_subsets(wider / "ground_truth"))
    first = data[0]
    assert first.attributes is not None
    wanted = dict(zip(first.attribute_names, first.attributes.T.tolist(), strict=True))
    record, coco = tmp_path / "out" / "val.record", tmp_path / "out" / "val.json"
    write_tfrecords(data, record)
    write_coco(data, coco)
    for found in (TFRecordDataset([record], data.categories)[0], CocoDataset(coco)[0]):
        assert found.attributes is not None
        assert dict(zip(found.attribute_names, found.attributes.T.tolist(), strict=True)) == wanted
        assert found.is_crowd.tolist() == [False, True]
        assert found.filename == PARADE
        assert np.allclose(found.boxes, first.boxes, atol=1e-3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        write_voc(data, tmp_path / "voc")
    assert {str(warning.message).split(" are ")[0] for warning in caught} == {"attributes", "crowds"}
    (tmp_path / "label.txt").write_text(LANDMARKS)
    marked = WiderFaceDataset(tmp_path / "label.txt", wider / "WIDER_val" / "images")
    write_tfrecords(marked, tmp_path / "marked" / "val.record")
    points = TFRecordDataset([tmp_path / "marked" / "val.record"], marked.categories, RecordFields(num_keypoints=5))[
        0
    ].keypoints
    assert points is not None
    assert np.allclose(points, marked[0].keypoints, atol=1e-3)  # type: ignore[arg-type]


def test_formats_are_told_apart(wider: Path, tmp_path: Path) -> None:
    assert recognize(annotations(wider)).train.format == "wider_face"
    (tmp_path / "label.txt").write_text(LANDMARKS)
    assert recognize(tmp_path / "label.txt").train.format == "wider_face"
    (tmp_path / "fold.txt").write_text("2002/08/11/big/img_591\n1\n10 8 0 20 20  1\n")
    assert recognize(tmp_path / "fold.txt").train.format == "fddb"
    (tmp_path / "other.txt").write_text("a b c\n")
    with pytest.raises(bw.DataError, match="no known format"):
        recognize(tmp_path / "other.txt")
    assert len(open_dataset(annotations(wider))) == 4
    (tmp_path / "label.txt").write_bytes(b"\xef\xbb\xbf" + LANDMARKS.encode())
    assert recognize(tmp_path / "label.txt").train.format == "wider_face"
    (tmp_path / "fold.txt").write_text("\n2002/08/11/big/img_591\n1\n10 8 0 20 20  1\n")
    assert len(open_dataset(tmp_path / "f*ld.txt", image_folder=tmp_path)) == 1


def test_an_image_that_is_listed_twice_is_in_its_subsets_twice(wider: Path) -> None:
    path = annotations(wider)
    path.write_text(BENCHMARK + "\n".join(BENCHMARK.splitlines()[:4]) + "\n")
    data = WiderFaceDataset(path, subsets=write_subsets(wider / "ground_truth"))
    for found in (data[0], data[4]):
        assert found.attributes is not None
        assert found.attributes[:, -3:].tolist() == [[1, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("ellipse", "box"),
    [
        ((10, 5, 0, 20, 30), (10, 25, 30, 35)),
        ((10, 5, math.pi / 2, 20, 30), (15, 20, 25, 40)),
        ((7, 7, 1.1, 20, 30), (13, 23, 27, 37)),
        # At 45° both half sides are √((10² + 5²) / 2).
        ((10, 5, math.pi / 4, 0, 0), (-math.sqrt(62.5), -math.sqrt(62.5), math.sqrt(62.5), math.sqrt(62.5))),
    ],
)
def test_boxes_of_ellipses_by_hand(ellipse: tuple[float, ...], box: tuple[float, ...]) -> None:
    assert ellipse_boxes(np.array([ellipse], np.float64))[0].tolist() == pytest.approx(box)


def test_boxes_of_ellipses_hold_every_point_and_touch() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        long, short, angle = random.uniform(1, 50), random.uniform(1, 50), random.uniform(-4, 4)
        t = np.linspace(0, 2 * np.pi, 20001)
        x = long * np.cos(t) * np.cos(angle) - short * np.sin(t) * np.sin(angle)
        y = long * np.cos(t) * np.sin(angle) + short * np.sin(t) * np.cos(angle)
        found = ellipse_boxes(np.array([[long, short, angle, 0, 0]]))[0]
        assert found.tolist() == pytest.approx([x.min(), y.min(), x.max(), y.max()], abs=1e-4)


def test_fddb(tmp_path: Path) -> None:
    folder = tmp_path / "2002" / "08" / "11" / "big"
    folder.mkdir(parents=True)
    Image.new("RGB", (64, 48)).save(folder / "img_591.jpg")
    (tmp_path / "FDDB-fold-01-ellipseList.txt").write_text("2002/08/11/big/img_591\n2\n10 5 0 20 30  1\n4 4 0 5 5  1\n")
    (tmp_path / "FDDB-fold-02-ellipseList.txt").write_text("2002/08/11/big/img_591\n0\n")
    data = FddbDataset(tmp_path / "*ellipseList.txt")
    assert len(data) == 2
    assert data[0].boxes.tolist() == [[10, 25, 30, 35], [1, 1, 9, 9]]
    assert data[0].id == "2002/08/11/big/img_591"
    assert len(data[1].boxes) == 0
    assert data.encoded(0)[1] == "2002_08_11_big_img_591.jpg"
    empty = data.without_pixels(0)
    assert (empty.image.shape, empty.boxes.tolist()) == ((48, 64, 0), data[0].boxes.tolist())
    config = parse_message(f'fddb_input_reader {{ annotations: "{tmp_path}/*ellipseList.txt" }}', m.InputReader)
    assert len(build_dataset(config, "train_input_reader")) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no images"),
        ("img_1\nx\n", "line 1: expected an image's name"),
        ("img_1\n2\n10 5 0 20 30 1\n", "2 faces announced"),
        ("img_1\n1\n10 5 0 20\n", "line 3: expected 5 numbers"),
        ("img_1\n1\n10 -5 0 20 30 1\n", "may not be negative"),
        ("img_1\n1\n10 5 inf 20 30 1\n", "line 3"),
        ("img_1\n1\n10 5 a 20 30 1\n", "line 3: expected numbers"),
    ],
)
def test_fddb_that_is_wrong_names_the_line(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "fold.txt").write_text(text)
    with pytest.raises(DataError, match=problem):
        FddbDataset(tmp_path / "fold.txt")


def test_faces_are_on_upright_pictures_unless_exif_is_ignored(wider: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for path in (wider / "WIDER_val" / "images" / PARADE, tmp_path / "img_1.jpg"):
        Image.new("RGB", (64, 48)).save(path, exif=exif)
    (tmp_path / "fold.txt").write_text("img_1\n1\n10 5 0 20 30 1\n")
    for reader, path in ((WiderFaceDataset, annotations(wider)), (FddbDataset, tmp_path / "fold.txt")):
        assert reader(path)[0].image.shape == (64, 48, 3)
        assert reader(path).without_pixels(0).image.shape == (64, 48, 0)
        assert reader(path, ignore_exif=True)[0].image.shape == (48, 64, 3)
        assert reader(path, ignore_exif=True).without_pixels(0).image.shape == (48, 64, 0)


def test_faces_pictures_may_be_named_as_on_another_machine(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (64, 48)).save(tmp_path / "a" / "x.jpg")
    (tmp_path / "faces.txt").write_text("a\\x.jpg\n1\n10 12 20 30 1 0 0 0 2 1\nnone.jpg\n0\n")
    data = WiderFaceDataset(tmp_path / "faces.txt", tmp_path)
    assert data[0].boxes.tolist() == [[10, 12, 30, 42]]
    assert list(data.notices.assumed.lines()) == ["pictures named with backslashes, or by ..: 1 (a\\x.jpg)"]
    for read in (data.without_pixels, data.encoded):
        with pytest.raises(DataError, match="line 4: no picture 'none.jpg'"):
            read(1)


def test_reader_of_a_configuration(wider: Path) -> None:
    subsets = write_subsets(wider / "ground_truth")
    text = f'wider_face_input_reader {{ annotations: "{annotations(wider)}" subsets: "{subsets}" }}'
    data = build_dataset(parse_message(text, m.InputReader), "eval_input_reader")
    assert data[0].attribute_names[-1] == "hard"
