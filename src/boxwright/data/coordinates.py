"""Whether boxes are in the unit that their format has: pixels of the picture, and corners or sizes.

Tools write corners where a format has width and height, or shares of the picture where it has pixels; and pictures are
resized after they were labeled. One box tells nothing of that, but a data set does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.picture_dataset import BoxesAre, PictureDataset, Size
from boxwright.data.row_dataset import RowDataset

_MOST_SAMPLES = 200
# Shares of boxes: so many that cannot be read as they are, and so many that can be read otherwise.
_WRONG, _WRONG_OF_MANY, _RIGHT = 0.5, 0.25, 0.98
_FEW, _MANY = 3, 10
_AS_SIZES = 0.8
_BEYOND_DECLARED = 0.05
# A box may cross the border by a pixel and by 1 % of the picture, as careless ones do.
_SLOP_PIXELS, _SLOP_SHARE = 1.0, 0.01
# The chance at which all boxes lie in the smaller of two pictures by accident.
_ACCIDENT = 1e-3
_WORDS: dict[BoxesAre, str] = {
    "xywh": "x, y, width, height in pixels",
    "xyxy": "corners x1, y1, x2, y2 in pixels",
    "normalized_xywh": "x, y, width, height in shares of the picture",
    "normalized_xyxy": "corners x1, y1, x2, y2 in shares of the picture",
    "sizes": "x, y, width, height in pixels, in place of corners",
}


@dataclass(frozen=True)
class CoordinateProblem:
    """Why the boxes of a data set are not on its objects.

    Attributes:
        sentence: The explanation.
        boxes_are: What the numbers are, if the reader can be told.
        rescale: Whether boxes are to be moved from the size that annotations declare to that of the picture.
        word: Of `--labels_are`, for a reader whose own numbers are corners.
    """

    sentence: str
    boxes_are: BoxesAre | None = None
    rescale: bool = False
    word: str = ""

    @property
    def switch(self) -> str:
        """What `--labels_are` of the commands repairs it with; empty if nothing does."""
        words: dict[BoxesAre | None, str] = {
            "xyxy": "corners",
            "normalized_xywh": "shares",
            "normalized_xyxy": "corners_in_shares",
        }
        return "of_another_size" if self.rescale else self.word or words.get(self.boxes_are, "")


@dataclass(frozen=True)
class PictureBoxes:
    """The boxes of one picture.

    Attributes:
        boxes: float64 [N, 4], xyxy as they are read.
        size: (height, width) of the picture as it is read.
        declared: (height, width) that its annotation states, if any.
        name: Of the picture.
    """

    boxes: NDArray[np.float64]
    size: Size
    declared: Size | None
    name: str


def coordinates_problem(dataset: object, *, most: int = _MOST_SAMPLES) -> CoordinateProblem | None:
    """Return what is wrong with the boxes of a data set as a whole, or None.

    Samples that cannot be read are passed over; so are data sets of another kind than `PictureDataset` and
    `RowDataset`.

    Args:
        dataset: Any reader's.
        most: How many samples to look at, evenly spaced; the first ones of data that are read in sequence.
    """
    if isinstance(dataset, RowDataset):
        return find_problem(_first_boxes(dataset, most), dataset.boxes_are, can_change=True)
    if not isinstance(dataset, PictureDataset):
        return None
    count = len(dataset)
    placed = []
    for index in np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64)).tolist():
        try:
            sample = dataset.without_pixels(index)
            declared = dataset.declared_size(index)
        except DataError:
            continue
        size = (sample.image.shape[0], sample.image.shape[1])
        placed.append(PictureBoxes(sample.boxes.astype(np.float64), size, declared, sample.filename or sample.id))
    problem = find_problem(placed, dataset.boxes_are or "xyxy", can_change=True, rescaled=dataset.rescale)
    if problem is None or dataset.boxes_are is not None:
        return problem
    word = "" if problem.boxes_are is None else dataset.repairs.get(problem.boxes_are, "")
    return replace(problem, boxes_are=None, word=word)


def _first_boxes(dataset: RowDataset, most: int) -> list[PictureBoxes]:
    placed = []
    for index in range(min(most, len(dataset))):
        with suppress(DataError):
            sample = dataset[index]
            size = (sample.image.shape[0], sample.image.shape[1])
            placed.append(PictureBoxes(sample.boxes.astype(np.float64), size, None, sample.filename or sample.id))
    return placed


def find_problem(
    placed: Sequence[PictureBoxes], boxes_are: BoxesAre, *, can_change: bool = False, rescaled: bool = False
) -> CoordinateProblem | None:
    """Return what is wrong with boxes as a whole, or None.

    Args:
        boxes_are: What their numbers are in the file, as it is read.
        can_change: Whether the reader can be told otherwise.
        rescaled: Whether boxes have been moved to the size of the pictures already.
    """
    if not rescaled and (problem := _resized(placed)):
        return problem
    if boxes_are.startswith("normalized"):
        return None
    raw = [_numbers(picture.boxes, boxes_are) for picture in placed]
    numbers = np.concatenate([np.zeros((0, 4)), *raw])
    # (height, width) of each box's picture.
    sizes = np.concatenate([np.zeros((0, 2)), *(np.tile(picture.size, (len(picture.boxes), 1)) for picture in placed)])
    actual = _normalized(numbers, sizes, boxes_are) or _other_pair(numbers, sizes, boxes_are)
    if actual is None:
        return None
    example = ", ".join(f"{value:g}" for value in numbers[0])
    stated, likely = _WORDS[boxes_are], _WORDS[actual]
    sentence = f"boxes look like {likely}, but are read as {stated}: such as [{example}]"
    return CoordinateProblem(sentence, actual if can_change else None)


def _numbers(boxes: NDArray[np.float64], boxes_are: BoxesAre) -> NDArray[np.float64]:
    """Return the numbers that a file has, from boxes as they are read."""
    if boxes_are == "xyxy":
        return boxes
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)


def _corners(numbers: NDArray[np.float64], boxes_are: BoxesAre) -> NDArray[np.float64]:
    if boxes_are.endswith("xyxy"):
        return numbers
    return np.concatenate([numbers[:, :2], numbers[:, :2] + numbers[:, 2:]], 1)


def _fit_inside(corners: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which boxes lie in their pictures and have an area."""
    slop = _SLOP_SHARE * sizes + np.where(sizes > 2, _SLOP_PIXELS, 0)
    low = (corners[:, [1, 0]] >= -slop).all(1)
    high = (corners[:, [3, 2]] <= sizes + slop).all(1)
    return np.asarray(low & high & (corners[:, 2:] > corners[:, :2]).all(1), np.bool_)


def _normalized(numbers: NDArray[np.float64], sizes: NDArray[np.float64], boxes_are: BoxesAre) -> BoxesAre | None:
    """Return which shares of the picture the numbers are, if all lie in [0, 1]; None if they are pixels."""
    inside = len(numbers) > 0 and numbers.min() >= -_SLOP_SHARE and numbers.max() <= 1 + _SLOP_SHARE
    # 0 and 1 alone may be a tool's placeholder for the lack of a box.
    if not inside or (numbers == numbers.round()).all() or sizes.min() <= 2:
        return None
    unit = np.ones((len(numbers), 2))
    pair: tuple[BoxesAre, BoxesAre] = ("normalized_xywh", "normalized_xyxy")
    first, second = pair if boxes_are == "xywh" else pair[::-1]
    shares = [float(_fit_inside(_corners(numbers, kind), unit).mean()) for kind in (first, second)]
    return second if shares[1] >= _RIGHT > shares[0] else first


def _other_pair(numbers: NDArray[np.float64], sizes: NDArray[np.float64], boxes_are: BoxesAre) -> BoxesAre | None:
    """Return corners for sizes or the reverse, if boxes mostly do not fit their pictures, but do so read otherwise."""
    other: BoxesAre = "xyxy" if boxes_are == "xywh" else "xywh"
    count = len(numbers)
    if count < _FEW:
        return None
    wrong = 1 - float(_fit_inside(_corners(numbers, boxes_are), sizes).mean())
    right = float(_fit_inside(_corners(numbers, other), sizes).mean())
    return other if right >= _RIGHT and wrong > (_WRONG if count < _MANY else _WRONG_OF_MANY) else None


def look_like_sizes(corners: NDArray[np.float64], sizes: NDArray[np.float64]) -> bool:
    """Return whether what should be corners is x, y, width and height.

    Args:
        corners: float64 [N, 4].
        sizes: (height, width) of each box's picture, float64 [N, 2].
    """
    if not len(corners) or (corners[:, 2:] >= corners[:, :2]).all():
        return False
    # Exchanged corners are of some boxes, whose numbers as sizes lead out of their pictures.
    return float(_fit_inside(_corners(corners, "xywh"), sizes).mean()) >= _AS_SIZES


def in_order(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """Return a box from its smaller to its larger sides."""
    return min(box[0], box[2]), min(box[1], box[3]), max(box[0], box[2]), max(box[1], box[3])


def _resized(placed: Sequence[PictureBoxes]) -> CoordinateProblem | None:
    """Return the problem of pictures that were resized or turned since they were labeled."""
    sized = [(picture, picture.declared) for picture in placed if picture.declared and min(picture.declared) > 0]
    others = [(picture, size) for picture, size in sized if _sizes_differ(size, picture.size)]
    if 2 * len(others) <= len(sized) or not sized:
        return None
    count = sum(len(picture.boxes) for picture, _ in others)
    outside = sum(_count_outside(picture.boxes, picture.size) for picture, _ in others)
    if all(not _sizes_differ(size[::-1], picture.size) for picture, size in others):
        # Width and height are exchanged in some tools' files, and boxes are right all the same.
        return None if not count or outside / count <= _WRONG_OF_MANY else _change("turned", others, len(sized))
    # Boxes beyond the declared size do not refer to it.
    beyond = sum(_count_outside(picture.boxes, size) for picture, size in others)
    if count and beyond / count > _BEYOND_DECLARED:
        return None
    # Boxes that would lie in a small part of the declared size by accident refer to the picture, whatever is declared.
    chance = sum(
        len(picture.boxes) * math.log(min(math.prod(picture.size) / math.prod(size), 1.0)) for picture, size in others
    )
    if outside == 0 and chance < math.log(_ACCIDENT):
        return None
    return _change("resized", others, len(sized))


def _count_outside(boxes: NDArray[np.float64], size: Size) -> int:
    return int((~_fit_inside(boxes, np.tile(size, (len(boxes), 1)))).sum())


def _sizes_differ(declared: Size, size: Size) -> bool:
    return any(abs(a - b) > max(_SLOP_PIXELS, _SLOP_SHARE * b) for a, b in zip(declared, size, strict=True))


def _change(how: str, others: Sequence[tuple[PictureBoxes, Size]], count: int) -> CoordinateProblem:
    first, (height, width) = others[0]
    sentence = (
        f"pictures were {how} since they were labeled: {first.name} was {width}×{height} and is "
        f"{first.size[1]}×{first.size[0]}, and {len(others)} of {count} pictures differ so"
    )
    return CoordinateProblem(sentence, rescale=how == "resized")
