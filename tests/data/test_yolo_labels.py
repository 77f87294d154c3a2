"""What rows of numbers in YOLO's label files mean, by the numbers of a whole data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boxwright.base.errors import DataError
from boxwright.data.convert import write_yolo
from boxwright.data.yolo import YoloConvention, YoloDataset
from boxwright.data.yolo_labels import crosses_itself
from tests.data.yolo_folders import folder, picture, row

# In a picture of 20 × 10: x from 5 to 15, y from 4 to 6.
BOX, PIXELS = (0.5, 0.5, 0.5, 0.2), [5, 4, 15, 6]
TRIANGLE = (0.25, 0.4, 0.75, 0.4, 0.5, 0.6)
# Not upright, around the same box.
DIAMOND = (0.5, 0.4, 0.75, 0.5, 0.5, 0.6, 0.25, 0.5)
FIVE = (0.25, 0.4, 0.75, 0.4, 0.75, 0.6, 0.5, 0.55, 0.25, 0.6)


def opened(root: Path, *rows: str, yaml: str = "", **options: object) -> YoloDataset:
    text = yaml or "train: images\nnames: [a, b, c]\n"
    return YoloDataset(folder(root, {f"p{number}": one for number, one in enumerate(rows)}, text), **options)  # type: ignore[arg-type]


def assumed(data: YoloDataset) -> list[str]:
    return list(data.notices.assumed.lines())


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([row(0, *BOX)], []),
        ([row(0, *BOX, 0.9)], ["boxes with a confidence after them, left out: 1"]),
        ([row(0, *BOX), row(0, *BOX, 0.9)], ["boxes with a confidence after them, left out: 1"]),
        ([row(0, *BOX, 17)], ["boxes with a track after them, left out: 1"]),
        ([row(0, *BOX, 0.9, 17)], ["boxes with a confidence and a track's number after them, left out: 1"]),
        (
            [row(0, *BOX, 0.9, 17), row(0, *BOX, 0.8)],
            ["boxes with a confidence and a track's number after them, left out: 2"],
        ),
        ([row(0, *TRIANGLE)], ["rows of 6 numbers, read as outlines of three points: 1"]),
        ([row(0, *BOX), row(0, *TRIANGLE)], ["rows of 6 numbers, read as outlines of three points: 1"]),
        ([row(0, *DIAMOND)], ["rows of 8 numbers, read as oriented boxes: 1"]),
        ([row(0, *DIAMOND, 0.7)], ["outlines with a confidence after them, which is ignored: 1"]),
        ([row(0, *BOX), row(0, *DIAMOND)], ["rows of 8 numbers, read as outlines of 4 points: 1"]),
        ([row(0, *BOX), row(0, *DIAMOND), row(0, *FIVE)], []),
        ([row(0, *TRIANGLE, 0.7), row(0, *FIVE, 0.7)], ["outlines with a confidence after them, which is ignored: 2"]),
        ([row(0, *FIVE)], ["rows of 10 numbers, read as outlines of 5 points: 1"]),
    ],
)
def test_each_count_of_numbers(tmp_path: Path, rows: list[str], wanted: list[str]) -> None:
    data = opened(tmp_path, *rows)
    for index in range(len(data)):
        np.testing.assert_allclose(data[index].boxes, [PIXELS], atol=1e-4)
        np.testing.assert_array_equal(data.without_pixels(index).boxes, data[index].boxes)
    assert assumed(data) == wanted


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        # A confidence of 3.5, and a track's number that is none.
        ([row(0, *BOX, 3.5)], r"p0\.txt: line 1 has 5 numbers after the class"),
        ([row(0, *BOX, 0.5), row(0, *FIVE)], r"p0\.txt: line 1 has 5 .* and .*p1\.txt: line 1 has 10 numbers"),
        ([row(0, *FIVE), row(0, *TRIANGLE, 0.5)], "line 1 has 10 .* line 1 has 7 "),
        ([row(0, *DIAMOND, 7.5)], "line 1 has 9 "),
    ],
)
def test_rows_that_contradict_each_other(tmp_path: Path, rows: list[str], wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        opened(tmp_path, *rows)


def test_a_few_broken_rows_are_samples_that_are_not_read(tmp_path: Path) -> None:
    data = opened(tmp_path, row(0, *BOX) * 40, row(0, *BOX) + row(0, *FIVE, 3.0), row(0, *BOX) + "0 0.5\n")
    assert len(data[0].boxes) == 40
    with pytest.raises(DataError, match=r"p1\.txt: line 2: .*found 11 numbers after the class, unlike the other rows"):
        data[1]
    with pytest.raises(DataError, match=r"p2\.txt: line 2: expected a class and 4 numbers"):
        data.without_pixels(2)


def pose(count: int, numbers: int, *, seed: int = 0, inside: bool = True) -> list[str]:
    """Boxes at random places, with keypoints in them, or anywhere."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(20):
        size = draw.uniform(0.1, 0.4, 2)
        center = draw.uniform(size / 2, 1 - size / 2)
        points = draw.uniform(center - size / 2, center + size / 2, (count, 2)) if inside else draw.random((count, 2))
        seen = draw.integers(0, 3, (count, numbers - 2))
        rows.append(row(0, *center, *size, *np.concatenate([points, seen], 1).flatten()))
    return rows


def outlines(count: int, *, seed: int = 0) -> list[str]:
    """Outlines of so many points around random centers."""
    draw = np.random.default_rng(seed)
    turns = np.linspace(0, 2 * np.pi, count, endpoint=False)
    rows = []
    for _ in range(20):
        center, sizes = draw.uniform(0.2, 0.8, 2), draw.uniform(0.05, 0.2, count)
        points = center + np.stack([np.cos(turns), np.sin(turns)], 1) * sizes[:, None]
        rows.append(row(0, *points.flatten()))
    return rows


@pytest.mark.parametrize("numbers", [2, 3])
@pytest.mark.parametrize("count", [4, 5, 17])
@pytest.mark.parametrize("inside", [True, False])
def test_keypoints_without_kpt_shape(tmp_path: Path, count: int, numbers: int, inside: bool) -> None:
    rows = pose(count, numbers, inside=inside)
    data = opened(tmp_path, "".join(rows), num_keypoints=None)
    total = 4 + count * numbers
    assert assumed(data) == [
        f"rows of {total} numbers, read as boxes with {count} keypoints (data.yaml has no kpt_shape): 20"
    ]
    sample = data[0]
    first = np.array(rows[0].split()[1:], float)
    x, y, width, height = first[:4] * [20, 10, 20, 10]
    np.testing.assert_allclose(
        sample.boxes[0], [x - width / 2, y - height / 2, x + width / 2, y + height / 2], atol=1e-3
    )
    assert sample.keypoints.shape == (20, count, 3)
    np.testing.assert_allclose(
        sample.keypoints[0, :, :2], first[4:].reshape(count, numbers)[:, :2] * [20, 10], atol=1e-3
    )
    if numbers == 3:
        assert sample.keypoints[0, :, 2].tolist() == (first[4:].reshape(count, 3)[:, 2] > 0).tolist()
    assert opened(tmp_path, "".join(rows))[0].keypoints is None


@pytest.mark.parametrize("count", [3, 4, 5, 8, 30])
def test_outlines_of_one_count_stay_outlines(tmp_path: Path, count: int) -> None:
    rows = outlines(count)
    data = opened(tmp_path, *rows, load_masks=True)
    for index, one in sorted(enumerate(rows), key=lambda pair: f"p{pair[0]}"):
        points = np.array(one.split()[1:], float).reshape(-1, 2) * [20, 10]
        sample = data[[path.stem for path in data.images].index(f"p{index}")]
        np.testing.assert_allclose(sample.boxes, [[*points.min(0), *points.max(0)]], atol=1e-3)
    assert len(assumed(data)) == 1


def test_keypoints_as_kpt_shape_says(tmp_path: Path) -> None:
    yaml = "train: images\nnames: [a, b]\nkpt_shape: [2, 3]\nkpt_names: {0: [head, tail]}\n"
    text = row(0, *BOX, 0.25, 0.5, 2, 0, 0, 0) + row(1, *BOX)
    assert opened(tmp_path, text, yaml=yaml)[0].keypoints is None
    data = opened(tmp_path, text, yaml=yaml, num_keypoints=3)
    np.testing.assert_allclose(data[0].keypoints, [[[5, 5, 1], [0, 0, 0], [0, 0, 0]], np.zeros((3, 3))], atol=1e-4)
    assert [category.keypoints for category in data.categories] == [("head", "tail"), ("point 1", "point 2")]
    assert assumed(data) == []
    with pytest.raises(DataError, match="have 2 keypoints, but num_keypoints is 1"):
        opened(tmp_path, text, yaml=yaml, num_keypoints=1)
    with pytest.raises(DataError, match="object 0 has a box but no outline"):
        opened(tmp_path, text, yaml=yaml, load_masks=True)[0]
    with pytest.raises(
        DataError, match=r"p0\.txt: line 1: 10 numbers after the class, but kpt_shape \[3, 3\] makes 13"
    ):
        opened(tmp_path, text, yaml=yaml.replace("[2, 3]\nkpt_names: {0: [head, tail]}", "[3, 3]"))


def test_all_splits_decide_together(tmp_path: Path) -> None:
    rows = pose(3, 2)
    folder(tmp_path, {f"p{number}": one for number, one in enumerate(rows)})
    picture(tmp_path / "val" / "v.png")
    # As an outline it does not cross itself: alone it would be one.
    (tmp_path / "val" / "v.txt").write_text(row(0, 0.5, 0.5, 0.6, 0.5, 0.6, 0.6, 0.55, 0.7, 0.5, 0.6))
    (tmp_path / "data.yaml").write_text("train: images\nval: val\nnames: [a]\n")
    np.testing.assert_allclose(YoloDataset(tmp_path, "val")[0].boxes, [[4, 2.5, 16, 7.5]], atol=1e-4)


def test_crossing_edges() -> None:
    square = [[0, 0], [1, 0], [1, 1], [0, 1]]
    bow = [[0, 0], [1, 1], [1, 0], [0, 1]]
    touching = [[0, 0], [2, 0], [1, 0], [1, 1]]
    assert crosses_itself(np.array([square, bow, touching], float)).tolist() == [False, True, False]


ONES = "".join(row(number, *BOX) for number in (1, 2, 3, 3, 2, 1))


def test_classes_from_one(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match="class 3 occurs 2 times and class 0 never, .* boxwright convert --labels_are classes_from_one reads them",
    ):
        opened(tmp_path, ONES)
    data = opened(tmp_path, ONES, convention=YoloConvention(classes_from_one=True))
    assert data[0].labels.tolist() == [0, 1, 2, 2, 1, 0]
    keyed = "train: images\nnames: {1: a, 2: b, 3: c}\n"
    assert (
        opened(tmp_path, ONES, yaml=keyed, convention=YoloConvention(classes_from_one=True)).categories.by_label(2).name
        == "c"
    )
    with pytest.raises(DataError, match=r"class 0 is missing \(there are 1, 2, 3\)"):
        opened(tmp_path, ONES, yaml=keyed)
    # One wrong row, or rows of class 0, show no numbering.
    for text in (row(3, *BOX), ONES + row(0, *BOX)):
        with pytest.raises(DataError, match="class 3, but data.yaml names 3 from 0"):
            opened(tmp_path, text)[0]
    with pytest.raises(DataError, match="class 0 occurs 6 times: leave out classes_from_one"):
        opened(tmp_path, row(0, *BOX) * 6, convention=YoloConvention(classes_from_one=True))
    with pytest.raises(DataError, match="class 4, but data.yaml names 3 from 1"):
        opened(tmp_path, row(4, *BOX), convention=YoloConvention(classes_from_one=True))[0]


def test_pixels(tmp_path: Path) -> None:
    text = row(0, 10, 5, 10, 2) * 3
    with pytest.raises(
        DataError, match="seem to be pixels, up to 10, not shares .* boxwright convert --labels_are pixels reads them$"
    ):
        opened(tmp_path, text)
    np.testing.assert_allclose(
        opened(tmp_path, text, convention=YoloConvention(coordinates="pixels"))[0].boxes, [PIXELS] * 3
    )
    with pytest.raises(DataError, match="lie between 0 and 1: they are shares"):
        opened(tmp_path, row(0, *BOX), convention=YoloConvention(coordinates="pixels"))
    with pytest.raises(DataError, match="coordinates: expected shares, pixels"):
        YoloConvention(coordinates="percent")  # type: ignore[arg-type]
    # Few far numbers are few wrong boxes.
    assert len(opened(tmp_path, row(0, *BOX) * 3 + row(0, 10, 5, 10, 2))[0].boxes) == 4


@pytest.mark.parametrize("in_pixels", [False, True])
def test_corners(tmp_path: Path, in_pixels: bool) -> None:
    draw = np.random.default_rng(0)
    first = draw.uniform(0, 0.8, (20, 2))
    corners = np.concatenate([first, first + draw.uniform(0.05, 0.2, (20, 2))], 1)
    written = corners * [20, 10, 20, 10] if in_pixels else corners
    kind = "corners_in_pixels" if in_pixels else "corners"
    text = "".join(row(0, *one) for one in written)
    with pytest.raises(DataError, match=f"corners of boxes .* boxwright convert --labels_are {kind} reads them$"):
        opened(tmp_path, text)
    data = opened(tmp_path, text, convention=YoloConvention(coordinates=kind))
    np.testing.assert_allclose(data[0].boxes, corners * [20, 10, 20, 10], atol=1e-3)
    # Large boxes at the center are in order as corners, too.
    large = np.concatenate([draw.uniform(0.4, 0.45, (20, 2)), draw.uniform(0.7, 0.8, (20, 2))], 1)
    assert len(opened(tmp_path, "".join(row(0, *one) for one in large))[0].boxes) == 20


@pytest.mark.parametrize("orientation", range(1, 9))
def test_labels_refer_to_the_upright_picture(tmp_path: Path, orientation: int) -> None:
    root = folder(tmp_path / "data", {"p": row(0, 0.25, 0.5, 0.5, 0.2)}, ending=".jpg")
    picture(root / "images" / "p.jpg", (20, 10), orientation)
    data = YoloDataset(root)
    height, width = (20, 10) if orientation >= 5 else (10, 20)
    assert data[0].image.shape == (height, width, 3)
    assert data.without_pixels(0).image.shape == (height, width, 0)
    np.testing.assert_allclose(data[0].boxes, [[0, 0.4 * height, width / 2, 0.6 * height]], atol=1e-4)
    assert YoloDataset(root, ignore_exif=True)[0].image.shape == (10, 20, 3)
    # Written and read again, boxes stay where they are in the upright picture; the file keeps its orientation.
    write_yolo(data, tmp_path / "again" / "data.yaml")
    again = YoloDataset(tmp_path / "again")
    np.testing.assert_allclose(again[0].boxes, data[0].boxes, atol=1e-4)
    np.testing.assert_array_equal(again[0].image, data[0].image)
    assert again.encoded(0)[0] == data.encoded(0)[0]
