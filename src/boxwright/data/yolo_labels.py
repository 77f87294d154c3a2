"""The rows of YOLO's label files: a class and some numbers, whose count tells what they mean.

| numbers after the class | meaning                                                                            |
|-------------------------|------------------------------------------------------------------------------------|
| 4                       | center, width and height of a box                                                  |
| 5                       | such a box and a confidence in [0, 1], or a track's whole number                   |
| 6                       | such a box, a confidence and a track; otherwise an outline of three points         |
| 8, and no other count   | the corners of an oriented box                                                     |
| even, various           | the points of an outline                                                           |
| odd, various            | the points of an outline and a confidence                                          |
| 4 + 2 K or 4 + 3 K      | a box and K keypoints, by `kpt_shape`, or where an outline would cross itself      |

A single row may be of several kinds, so all rows of a data set decide; rows of boxes may lie among outlines.

Dimensions: N outlines, P points of each.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.reading import read_text


def crosses_itself(points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which outlines, [N, P, 2], have two edges that cross; edges that only touch do not.

    Memory grows with N · P².
    """
    ends = np.roll(points, -1, axis=1)
    # side[n, i, j]: on which side of edge i the start of edge j lies.
    starts = points[:, None, :, :] - points[:, :, None, :]
    along = (ends - points)[:, :, None, :]
    side = np.sign(_cross(along, starts))
    opposite = side * np.roll(side, -1, axis=2) < 0
    return np.asarray((opposite & opposite.transpose(0, 2, 1)).any((1, 2)))


def _cross(a: NDArray[np.float64], b: NDArray[np.float64]) -> Any:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


BOX = 4
_LARGEST_CLASS = 2**31
_FARTHEST = 1e6  # units of the image
# Rows that are held against both readings where two remain.
_COMPARED, _COMPARED_COUNTS = 2000, 8
# Rows of a count that no reading explains are single mistakes below this share, and otherwise a contradiction.
_FEW = 0.05
# Outlines are drawn without crossings, but for slips.
_CROSSING = 0.2
# The shape of a triangle or a quadrangle does not tell: each of its corners may be far from the others.
_LEAST_POINTS, _MOST_APART = 5, 0.5
_LEAST_ROWS = 10  # of few, all may lie where their first numbers are boxes, too
_PAIRS = 4_000_000  # of edges that are held against each other
_MOST = 0.98
_BEYOND = 0.02  # of the image, that a rounded or carelessly drawn box may cross its border by


def parse_rows(path: Path) -> list[tuple[int, int, list[float]]]:
    """Return the line, the class and the numbers of each object in a label file.

    Raises:
        DataError: If it cannot be read, or a line is not a class and 4 numbers or more.
    """
    rows = []
    for line_number, line in enumerate(read_text(path).splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        where = f"{path}: line {line_number}"
        try:
            if "_" in line or not line.isascii():  # as `to_number`, for a whole line
                raise ValueError(line)
            number, values = float(words[0]), [float(word) for word in words[1:]]
        except ValueError:
            raise DataError(f"{where}: expected numbers, found {line[:60]!r}") from None
        if (
            len(values) < BOX
            or not abs(number) < _LARGEST_CLASS
            or number != int(number)
            # `max` would pass over what is not a number.
            or not all(abs(value) < _FARTHEST for value in values)
        ):
            raise DataError(f"{where}: {_EXPECTED}, found {line[:60]!r}")
        rows.append((line_number, int(number), values))
    return rows


_EXPECTED = "expected a class and 4 numbers, or a class and an outline of 3 or more points"


@dataclass(frozen=True)
class LabelRows:
    """All R rows of a data set's label files, as far as boxes follow from them.

    Attributes:
        pictures: int64 [R], ascending; which picture each belongs to.
        lines: int64 [R]; its line in the label file.
        classes: int64 [R], as written.
        counts: int64 [R]; the numbers after the class.
        heads: float64 [R, 4]; the first four of them.
        extents: float64 [R, 4]; xyxy around the points of an outline, 0 for rows of 4 or 5 numbers.
        tails: float64 [R, 3]; the fifth, the sixth and the last number, 0 where there are fewer.
        compared: float64 [n, count] by count; some rows in full, of the first counts that are no plain boxes.
        problems: What is wrong with a picture's label file, by picture; none of its rows is here.
    """

    pictures: NDArray[np.int64]
    lines: NDArray[np.int64]
    classes: NDArray[np.int64]
    counts: NDArray[np.int64]
    heads: NDArray[np.float64]
    extents: NDArray[np.float64]
    tails: NDArray[np.float64]
    compared: dict[int, NDArray[np.float64]]
    problems: dict[int, str]

    def __len__(self) -> int:
        return len(self.counts)


def read_rows(files: Sequence[Path | None]) -> LabelRows:
    """Return the rows of the label file of each picture."""
    whole, real = array("q"), array("d")
    compared: dict[int, list[list[float]]] = {}
    problems: dict[int, str] = {}
    for picture, path in enumerate(files):
        if path is None:
            continue
        try:
            rows = parse_rows(path)
        except DataError as error:  # raised again when the sample is read, where it can be skipped
            problems[picture] = str(error)
            continue
        for line, number, values in rows:
            count = len(values)
            whole.extend((picture, line, number, count))
            real.extend(values[:BOX])
            if count <= BOX + 1:
                real.extend((0, 0, 0, 0, values[-1] if count > BOX else 0, 0, values[-1]))
                continue
            xs, ys = values[0 : count - 1 : 2], values[1::2]
            real.extend((min(xs), min(ys), max(xs), max(ys), values[4], values[5], values[-1]))
            if len(compared) < _COMPARED_COUNTS or count in compared:
                same = compared.setdefault(count, [])
                same += [values] if len(same) < _COMPARED else []
    table = np.frombuffer(whole, np.int64).reshape(-1, 4) if whole else np.zeros((0, 4), np.int64)
    numbers = np.frombuffer(real, np.float64).reshape(-1, 11) if real else np.zeros((0, 11))
    full = {count: np.array(same, np.float64) for count, same in compared.items()}
    pictures, lines, classes, counts = np.ascontiguousarray(table.T)
    heads, extents, tails = numbers[:, :4], numbers[:, 4:8], numbers[:, 8:]
    return LabelRows(pictures, lines, classes, counts, heads, extents, tails, full, problems)


def place_of_row(rows: LabelRows, files: Sequence[Path | None], row: int) -> str:
    """Return the file and the line of a row, for messages."""
    return f"{files[rows.pictures[row]]}: line {rows.lines[row]}"


@dataclass(frozen=True)
class RowMeaning:
    """What the rows of a data set mean.

    Attributes:
        kind: Whether rows of more numbers than a box has are boxes, outlines, or boxes with keypoints.
        counts: How many numbers a row may have.
        keypoints: K, and 2 or 3 numbers each; None without keypoints.
        assumed: What was concluded from the numbers alone; empty if nothing had to be.
    """

    kind: Literal["boxes", "outlines", "keypoints"]
    counts: frozenset[int]
    keypoints: tuple[int, int] | None = None
    assumed: str = ""

    def is_outline(self, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows are outlines, by the count of their numbers."""
        return (counts > BOX) & (self.kind == "outlines")


def row_meaning(rows: LabelRows, keypoints: tuple[int, int] | None, place: Callable[[int], str]) -> RowMeaning:
    """Return what the rows mean.

    Args:
        keypoints: `kpt_shape`, if the data say it.
        place: Names the file and line of a row.

    Raises:
        DataError: If they contradict each other, or two readings remain; with file and line.
    """
    times = Counter(rows.counts.tolist())
    if keypoints is not None:
        wanted = BOX + keypoints[0] * keypoints[1]
        unexpected = np.flatnonzero((rows.counts != BOX) & (rows.counts != wanted))
        if len(unexpected) > _FEW * len(rows):
            raise DataError(
                f"{place(unexpected[0])}: {rows.counts[unexpected[0]]} numbers after the class, but kpt_shape "
                f"{[*keypoints]} makes {wanted}: correct kpt_shape, or remove it"
            )
        return RowMeaning("keypoints", frozenset({BOX, wanted}), keypoints)
    meaning = _by_counts(frozenset(times), rows)
    if meaning is None:
        usual = frozenset(count for count in times if _count_rows_of_kind(count, times) >= _FEW * len(rows))
        meaning = _by_counts(usual, rows)
    if meaning is None:
        kinds = [number for number, _ in Counter(rows.counts.tolist()).most_common()]
        first = [int(np.flatnonzero(rows.counts == count)[0]) for count in kinds[:2]]
        raise DataError(
            " and ".join(f"{place(row)} has {rows.counts[row]} numbers after the class" for row in first)
            + ": boxes have 4, or 5 with a confidence; outlines 6 or more, an even count; boxes with keypoints a count "
            "that kpt_shape in data.yaml says. These rows fit none of it together"
        )
    return meaning


def _count_rows_of_kind(count: int, times: Counter[int]) -> int:
    """Return how many rows are of a count's kind: of outlines, each count is rare."""
    if count <= BOX + 2:
        return times[count]
    return sum(number for other, number in times.items() if other > BOX + 2 and other % 2 == count % 2)


def _by_counts(counts: frozenset[int], rows: LabelRows) -> RowMeaning | None:
    """Return the meaning of rows of these counts; None if they contradict each other."""
    used = np.isin(rows.counts, list(counts))
    more = counts - {BOX}
    if not more:
        return RowMeaning("boxes", frozenset({BOX}))
    if more <= {BOX + 1, BOX + 2}:
        # Trackers write a confidence for all boxes or for none: plain boxes beside rows of 6 numbers are drawn by hand.
        drawn = counts == {BOX, BOX + 2} and not _are_ids(rows.tails[rows.counts == BOX + 2])
        boxes = None if drawn else _boxes_and_more(counts, rows.counts[used], rows.tails[used])
        if boxes is not None or BOX + 1 in more:
            return boxes
        return RowMeaning("outlines", counts, assumed="rows of 6 numbers, read as outlines of three points")
    if BOX + 1 in more:
        return None
    frequent, times = Counter(rows.counts[used & (rows.counts > BOX)].tolist()).most_common(1)[0]
    # A few rows that are broken do not make outlines of all others.
    if times >= (1 - _FEW) * np.count_nonzero(used & (rows.counts > BOX)) and frequent in rows.compared:
        return _by_place(frequent, counts, rows.compared[frequent])
    if all(count % 2 == 0 for count in more):
        return RowMeaning("outlines", _all_up_to(max(more), odd=False))
    if all(count % 2 for count in more) and _are_shares(rows.tails[used & (rows.counts > BOX), 2]):
        assumed = "outlines with a confidence after them, which is ignored"
        return RowMeaning("outlines", _all_up_to(max(more), odd=True), assumed=assumed)
    return None


def _all_up_to(most: int, *, odd: bool) -> frozenset[int]:
    return frozenset({BOX, *range(7 if odd else 6, most + 1, 2)})


def _are_shares(values: NDArray[np.float64]) -> bool:
    return bool(((values >= 0) & (values <= 1)).all())


def _are_whole(values: NDArray[np.float64]) -> bool:
    return bool((values == np.round(values)).all())


def _are_ids(tails: NDArray[np.float64]) -> bool:
    """Return whether the last of two numbers are whole and above 1, as a track's and no share of a picture are."""
    return _are_shares(tails[:, 0]) and _are_whole(tails[:, 1]) and bool((tails[:, 1] > 1).any())


def _boxes_and_more(counts: frozenset[int], own: NDArray[np.int64], tails: NDArray[np.float64]) -> RowMeaning | None:
    """Return the meaning of boxes with a confidence, a track's number or both; None if the numbers are neither."""
    fifth, both = tails[own == BOX + 1, 0], tails[own == BOX + 2]
    if not _are_shares(both[:, 0]) or not _are_whole(both[:, 1]):
        return None
    if not _are_shares(fifth) and not _are_whole(fifth):
        return None
    what = "a confidence and a track's number" if len(both) else "a confidence" if _are_shares(fifth) else "a track"
    return RowMeaning("boxes", counts, assumed=f"boxes with {what} after them, left out")


def _by_place(count: int, counts: frozenset[int], rows: NDArray[np.float64]) -> RowMeaning | None:
    """Return whether rows of one count are outlines or boxes with keypoints, by where their numbers lie.

    Args:
        rows: float64 [n, count].
    """
    mixed = BOX in counts
    third = rows[:, 6::3] if (count - BOX) % 3 == 0 else None
    box, size = rows[:, :2], rows[:, 2:4]
    within = (box - size / 2 >= -_BEYOND) & (box + size / 2 <= 1 + _BEYOND) & (size > 0)
    boxes_fit = within.all(1).mean() >= _MOST
    if third is not None and boxes_fit and np.isin(third, (0, 1, 2)).all():
        return _with_keypoints(count, 3)
    if count % 2:
        if third is not None and boxes_fit and _are_shares(third):
            return _with_keypoints(count, 3)
        if not _are_shares(rows[:, -1]):
            return None
        assumed = "outlines with a confidence after them, which is ignored"
        return RowMeaning("outlines", frozenset({BOX, count}), assumed=assumed)
    outlines_fit = ((rows >= -_BEYOND) & (rows <= 1 + _BEYOND)).all(1).mean() >= _MOST
    # Keypoints jump from side to side, and the second point of such an outline would be the size of the box.
    few = rows[: max(_PAIRS // count**2, 1)]
    points = few.reshape(len(few), -1, 2)
    implausible = crosses_itself(points).mean() >= _CROSSING or _second_stands_apart(points).mean() > _MOST_APART
    if boxes_fit and (not outlines_fit or implausible):
        return _with_keypoints(count, 2)
    kind = "oriented boxes" if count == 8 and not mixed else f"outlines of {count // 2} points"
    # Outlines beside plain boxes are nothing odd, unless they could be boxes with keypoints all the same.
    assumed = "" if mixed and not boxes_fit else f"rows of {count} numbers, read as {kind}"
    return RowMeaning("outlines", _all_up_to(count, odd=False), assumed=assumed)


def _second_stands_apart(points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which outlines [n, P, 2] of five points or more have their second far from the others, as a size is."""
    if points.shape[1] < _LEAST_POINTS or len(points) < _LEAST_ROWS:
        return np.zeros(len(points), np.bool_)
    others = np.delete(points, 1, axis=1)
    low, high = others.min(1), others.max(1)
    beyond = np.maximum(np.maximum(low - points[:, 1], points[:, 1] - high), 0)
    return np.asarray(np.hypot(*beyond.T) > np.hypot(*(high - low).T) / 2, np.bool_)


def _with_keypoints(count: int, numbers: int) -> RowMeaning:
    number = (count - BOX) // numbers
    assumed = f"rows of {count} numbers, read as boxes with {number} keypoints (data.yaml has no kpt_shape)"
    return RowMeaning("keypoints", frozenset({BOX, count}), (number, numbers), assumed)


def row_boxes(rows: LabelRows, meaning: RowMeaning, *, corners: bool) -> NDArray[np.float64]:
    """Return each row's box, float64 [R, 4] xyxy in the unit of the rows; of an outline, the box around it.

    Args:
        corners: Whether rows of boxes have two corners in place of center, width and height.
    """
    centers, sizes = rows.heads[:, :2], rows.heads[:, 2:]
    boxes = rows.heads if corners else np.concatenate([centers - sizes / 2, centers + sizes / 2], 1)
    return np.where(meaning.is_outline(rows.counts)[:, None], rows.extents, boxes)


def problem_of_count(count: int, meaning: RowMeaning) -> str:
    """Return what is wrong with a row of so many numbers; empty if it fits the data set's other rows."""
    if count in meaning.counts or (meaning.kind == "boxes" and count == BOX):
        return ""
    return f"{_EXPECTED}, found {count} numbers after the class, unlike the other rows, which are {meaning.kind}"
