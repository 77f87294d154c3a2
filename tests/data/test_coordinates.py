"""Boxes in another unit than their format's are recognized over a whole data set, and right ones never are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from boxwright.data.coco import CocoDataset
from boxwright.data.coordinates import PictureBoxes, coordinates_problem, find_problem
from boxwright.data.picture_dataset import BoxesAre
from boxwright.data.shapes import ShapesDataset
from tests.data.test_coco import content, picture, written

CORNERS = [[91, 19, 126, 50], [48, 74, 74, 106], [12, 13, 41, 41], [92, 14, 135, 34]]
SIZE = (120, 160)


def placed(
    boxes: list[list[float]], size: tuple[int, int] = SIZE, declared: tuple[int, int] | None = None
) -> list[PictureBoxes]:
    return [PictureBoxes(np.array([box], np.float64), size, declared, f"{n}.png") for n, box in enumerate(boxes)]


def read_as_sizes(rows: list[list[float]]) -> list[list[float]]:
    """Return the boxes that a reader makes of x, y, width, height."""
    return [[x, y, x + width, y + height] for x, y, width, height in rows]


SIZES = [[x, y, right - x, bottom - y] for x, y, right, bottom in CORNERS]
SHARES = [[x / 160, y / 120, width / 160, height / 120] for x, y, width, height in SIZES]
CORNER_SHARES = [[x / 160, y / 120, right / 160, bottom / 120] for x, y, right, bottom in CORNERS]


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [(SIZES, None), (CORNERS, "xyxy"), (SHARES, "normalized_xywh"), (CORNER_SHARES, "normalized_xyxy")],
)
def test_rows_read_as_x_y_width_height(rows: list[list[float]], wanted: BoxesAre | None) -> None:
    problem = find_problem(placed(read_as_sizes(rows)), "xywh", can_change=True)
    assert (problem and problem.boxes_are) == wanted
    if problem:
        words = {"xyxy": "corners", "normalized_xywh": "shares", "normalized_xyxy": "corners_in_shares"}
        assert problem.switch == words[wanted]
        assert problem.sentence.endswith(f"such as [{', '.join(f'{value:g}' for value in rows[0])}]")


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (CORNERS, ""),
        (SIZES, "x, y, width, height in pixels"),
        (SHARES, "x, y, width, height in shares of the picture"),
        (CORNER_SHARES, "corners x1, y1, x2, y2 in shares of the picture"),
        # Corners from the bottom right are another mistake.
        ([[right, bottom, x, y] for x, y, right, bottom in CORNERS], ""),
    ],
)
def test_rows_read_as_corners(rows: list[list[float]], wanted: str) -> None:
    problem = find_problem(placed(rows), "xyxy")
    assert (problem.sentence if problem else "").startswith(f"boxes look like {wanted}," if wanted else "")
    assert (problem is None) == (not wanted)
    # No switch for readers that cannot be told.
    assert problem is None or problem.switch == ""


def test_a_few_careless_boxes_are_no_other_unit() -> None:
    wide: list[list[float]] = [[100, 80, 90, 60], [120, 90, 80, 70]]
    assert find_problem(placed(read_as_sizes([*SIZES, *wide])), "xywh") is None
    # Two boxes prove nothing.
    assert find_problem(placed(read_as_sizes(CORNERS[:2])), "xywh") is None
    # A tool's placeholder is in [0, 1] as well.
    assert find_problem(placed([[0, 0, 1, 1]] * 30), "xywh") is None
    assert find_problem(placed([]), "xywh") is None
    # Of 30 boxes, a third cross the border as sizes, and all fit as corners.
    many: list[list[float]] = [[10, 10, 30, 30]] * 20 + [[90, 60, 140, 110]] * 10
    found = find_problem(placed(read_as_sizes(many)), "xywh", can_change=True)
    assert found is not None
    assert found.boxes_are == "xyxy"


def test_pictures_that_were_resized() -> None:
    boxes = [*CORNERS[:3], [100, 90, 150, 118]]
    found = find_problem(placed(boxes, (60, 80), (120, 160)), "xywh")
    assert found is not None
    assert (found.rescale, found.switch) == (True, "of_another_size")
    assert found.sentence == (
        "pictures were resized since they were labeled: 0.png was 160×120 and is 80×60, and 4 of 4 pictures differ so"
    )
    # Made larger: nothing lies outside, and yet no box is on its object.
    assert find_problem(placed(boxes, (240, 320), (120, 160)), "xywh") is not None
    # Once moved, they are right.
    assert find_problem(placed(boxes, (240, 320), (120, 160)), "xywh", rescaled=True) is None
    # A pixel of rounding, or a minority.
    assert find_problem(placed(boxes, (120, 160), (121, 160)), "xywh") is None
    some = [*placed(boxes[:2], (240, 320), (120, 160)), *placed(boxes, (120, 160), (120, 160))]
    assert find_problem(some, "xywh") is None


def test_a_declared_size_that_no_box_refers_to_is_only_a_wrong_one() -> None:
    boxes: list[list[float]] = [[10 + n, 10, 60 + n, 50] for n in range(8)]
    # By accident, eight boxes would lie in a quarter of the picture once in 65,536 times; two once in 16.
    assert find_problem(placed(boxes, (60, 80), (120, 160)), "xywh") is None
    assert find_problem(placed(boxes[:2], (60, 80), (120, 160)), "xywh") is not None


def test_width_and_height_exchanged() -> None:
    # Some tools exchange them, and have the right boxes.
    assert find_problem(placed(CORNERS, (120, 160), (160, 120)), "xywh") is None
    turned = [[70, 91, 101, 126], [14, 48, 46, 74], [79, 12, 107, 155], [80, 92, 106, 150]]
    found = find_problem(placed(turned, (120, 160), (160, 120)), "xywh")
    assert found is not None
    assert "pictures were turned since they were labeled" in found.sentence
    assert found.switch == ""


@given(
    st.lists(
        st.tuples(st.floats(0, 0.9), st.floats(0, 0.9), st.floats(0.02, 1), st.floats(0.02, 1)), min_size=3, max_size=60
    ),
    st.integers(40, 2000),
    st.integers(40, 2000),
)
def test_boxes_in_their_pictures_are_never_refused(
    places: list[tuple[float, float, float, float]], width: int, height: int
) -> None:
    boxes = [[x * width, y * height, (x + (1 - x) * w) * width, (y + (1 - y) * h) * height] for x, y, w, h in places]
    assume(max(max(box) for box in boxes) > 2)
    assert find_problem(placed(boxes, (height, width), (height, width)), "xywh") is None
    # Whatever the reader's convention, except where it happens to read pixels below 1.
    assert find_problem(placed(boxes, (height, width)), "xyxy") is None


def coco_rows(folder: Path, how: Any) -> Path:
    """Six pictures of 40×20 with two objects each, whose boxes are changed."""
    names = tuple(f"{n}.png" for n in range(6))
    for name in names:
        picture(folder / "images" / name)
    rows = content(names)
    for row in rows["annotations"]:
        row["bbox"] = how(*row["bbox"])
    return written(folder, rows)


def test_a_reader_is_asked_for_samples_without_pixels(tmp_path: Path) -> None:
    path = coco_rows(tmp_path, lambda x, y, width, height: [x, y, x + width, y + height])
    found = coordinates_problem(CocoDataset(path))
    assert found is not None
    assert found.switch == "corners"
    assert coordinates_problem(CocoDataset(path, boxes_are="xyxy")) is None
    path = coco_rows(tmp_path, lambda *numbers: list(numbers))
    assert coordinates_problem(CocoDataset(path)) is None
    # The wrong switch is found out, too.
    found = coordinates_problem(CocoDataset(path, boxes_are="xyxy"))
    assert found is not None
    assert found.switch == ""
    # Missing pictures are another matter, and so are data without such samples.
    for file in (tmp_path / "images").iterdir():
        file.unlink()
    assert coordinates_problem(CocoDataset(path)) is None
    assert coordinates_problem(ShapesDataset(3)) is None


def test_declared_sizes_are_compared_with_the_files(tmp_path: Path) -> None:
    path = coco_rows(tmp_path, lambda *numbers: [2 * value for value in numbers])
    rows = json.loads(path.read_text())
    for row in rows["images"]:
        row.update(width=80, height=40)
    found = coordinates_problem(CocoDataset(written(tmp_path, rows)))
    assert found is not None
    assert found.switch == "of_another_size"
    assert coordinates_problem(CocoDataset(written(tmp_path, rows), rescale=True)) is None
