"""How a tool numbers classes and measures boxes in YOLO's labels, and how to see that it does not as YOLO does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.yolo_labels import BOX, LabelRows, RowMeaning

Coordinates = Literal["shares", "pixels", "corners", "corners_in_pixels"]
# Class numbers: enough rows to show that 0 never occurs, and the number that has no name is no slip of a few rows.
_FEWEST, _LEAST_SHARE = 5, 0.01
# Numbers above this are no shares of an image; most rows have one where boxes are in pixels.
_ABOVE_SHARES, _MOST = 2, 0.5
# Corners: (almost) all rows are in order and inside the image, and many would leave it as center, width and height.
_FEWEST_CORNERS, _IN_ORDER, _LEAVE, _BEYOND, _BY_FAR = 4, 0.99, 0.3, 0.02, 0.05
_TRIED = 200


@dataclass(frozen=True)
class YoloConvention:
    """What differs from YOLO's own labels in those of some tools.

    Attributes:
        classes_from_one: Whether classes are numbered from 1.
        coordinates: Whether numbers are shares of the image, as YOLO's, or pixels; and whether boxes are given by
            center, width and height, as YOLO's, or by corners (x_min y_min x_max y_max).
    """

    classes_from_one: bool = False
    coordinates: Coordinates = "shares"

    def __post_init__(self) -> None:
        if self.coordinates not in get_args(Coordinates):
            raise DataError(f"coordinates: expected {', '.join(get_args(Coordinates))}, found {self.coordinates!r}")

    @property
    def in_pixels(self) -> bool:
        """Whether numbers are pixels."""
        return self.coordinates in ("pixels", "corners_in_pixels")

    @property
    def corners(self) -> bool:
        """Whether boxes are given by two corners."""
        return self.coordinates in ("corners", "corners_in_pixels")


def check_class_numbers(rows: LabelRows, names: int, convention: YoloConvention, where: str) -> None:
    """Raise a DataError if classes are clearly numbered from 1 and names from 0, or the other way round.

    Clear is: the number after the last name's occurs in 1 % of the rows or more, 0 in none, and there are 5 rows.

    Args:
        names: How many classes have a name.
        where: The data, for the error.
    """
    if len(rows) < _FEWEST:
        return
    zeros, beyond = (int((rows.classes == number).sum()) for number in (0, names))
    if convention.classes_from_one:
        if zeros >= _LEAST_SHARE * len(rows):
            raise DataError(f"{where}: class 0 occurs {zeros} times: leave out classes_from_one")
        return
    if not zeros and beyond >= _LEAST_SHARE * len(rows) and rows.classes.min() > 0 and rows.classes.max() == names:
        raise DataError(
            f"{where}: classes seem to be numbered from 1 in the label files: class {names} occurs {beyond} times and "
            f"class 0 never, but the {names} names are numbered from 0; if so, boxwright convert --labels_are "
            "classes_from_one reads them"
        )


def check_coordinates(
    rows: LabelRows, convention: YoloConvention, where: str, size_of: Callable[[int], tuple[int, int] | None]
) -> None:
    """Raise a DataError if most numbers are clearly pixels in place of shares, or the other way round.

    Clear is: more than half of the rows have a number above 2.

    Args:
        where: The data, for the error.
        size_of: Returns a picture's (height, width), or None if it is not readable.
    """
    if not len(rows):
        return
    plain = rows.counts <= BOX + 2
    largest = np.abs(np.where(plain[:, None], rows.heads, rows.extents)).max(1)
    in_pixels = (largest > _ABOVE_SHARES).mean() > _MOST
    if in_pixels and not convention.in_pixels:
        kind = "corners_in_pixels" if _are_corners(_as_shares(rows, np.flatnonzero(plain), size_of)) else "pixels"
        what = "corners of boxes (x_min y_min x_max y_max) in pixels" if kind != "pixels" else "pixels"
        raise DataError(
            f"{where}: the numbers in the label files seem to be {what}, up to {largest.max():.5g}, not shares of the "
            f"image from 0 to 1; if so, boxwright convert --labels_are {kind} reads them"
        )
    if convention.in_pixels and (largest <= 1).mean() > _MOST:
        raise DataError(
            f"{where}: most numbers in the label files lie between 0 and 1: they are shares of the image, not "
            f"{convention.coordinates}"
        )


def check_corners(rows: LabelRows, meaning: RowMeaning, convention: YoloConvention, where: str) -> None:
    """Raise a DataError if boxes are clearly given by their corners in place of center, width and height.

    Clear is: there are 4 boxes, as corners 99 % are in order and inside the image, and as center, width and height
    30 % leave it by more than 5 % of its size.
    """
    own = rows.heads[~meaning.is_outline(rows.counts)]
    if convention.coordinates == "shares" and meaning.kind != "keypoints" and _are_corners(own):
        raise DataError(
            f"{where}: the numbers in the label files seem to be corners of boxes (x_min y_min x_max y_max), not "
            "center, width and height: as those, many boxes would leave the image; if so, boxwright convert "
            "--labels_are corners reads them"
        )


def _are_corners(boxes: NDArray[np.float64]) -> bool:
    """Return whether [n, 4] are corners rather than center, width and height, in shares of the image."""
    if len(boxes) < _FEWEST_CORNERS:
        return False
    first, second = boxes[:, :2], boxes[:, 2:]
    inside = (second > first) & (first >= -_BEYOND) & (second <= 1 + _BEYOND)
    leaves = (first - second / 2 < -_BY_FAR) | (first + second / 2 > 1 + _BY_FAR)
    return bool(inside.all(1).mean() >= _IN_ORDER and leaves.any(1).mean() >= _LEAVE)


def _as_shares(
    rows: LabelRows, chosen: NDArray[np.int64], size_of: Callable[[int], tuple[int, int] | None]
) -> NDArray[np.float64]:
    """Return some rows of boxes in pixels, [n, 4], as shares of their images."""
    sampled = chosen[:: max(len(chosen) // _TRIED, 1)].tolist()
    sizes = [size_of(int(rows.pictures[row])) for row in sampled]
    shares = [rows.heads[row] / (*size[::-1], *size[::-1]) for row, size in zip(sampled, sizes, strict=True) if size]
    return np.array(shares, np.float64).reshape(-1, 4)
