"""YOLO's text labels: pictures, a label file of rows of numbers for each, and a file that names the classes.

Files are found by `yolo_layout` and `yolo_files`; what rows mean is decided by `yolo_labels`, over the whole data set.
How a tool numbers classes and measures boxes, where it does not as YOLO does, is its `YoloConvention`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import is_folder, read_file, shown
from boxwright.data.coco_masks import check_mask_memory, decode_mask
from boxwright.data.image_io import read_header
from boxwright.data.picture_dataset import PictureDataset
from boxwright.data.reading import Notices, checked_sample, find_label
from boxwright.data.yolo_files import find_label_files, list_pictures
from boxwright.data.yolo_labels import (
    BOX,
    LabelRows,
    RowMeaning,
    parse_rows,
    place_of_row,
    problem_of_count,
    read_rows,
    row_boxes,
    row_meaning,
)
from boxwright.data.yolo_layout import YoloLayout, find_yolo, read_layout
from boxwright.types import Categories, Category, Sample

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


class YoloDataset(PictureDataset):
    """Samples from images and YOLO's text labels; a sample's id is its image's name without suffix."""

    def __init__(
        self,
        data: str | Path,
        split: str = "train",
        categories: Categories | None = None,
        *,
        load_masks: bool = False,
        num_keypoints: int | None = 0,
        convention: YoloConvention | None = None,
        ignore_exif: bool = False,
        allow_paths_outside: bool = False,
    ) -> None:
        """Find the images, and read the label files.

        Args:
            data: A `data.yaml` or `obj.data`, or a folder that holds one, or that holds `classes.txt`.
            split: train, val, valid or test.
            categories: The classes, matched by name; by default those that the data name, with ids from 1.
            load_masks: Whether to draw outlines as masks; plain boxes are then an error.
            num_keypoints: Keypoints per object; 0 to skip them, None for as many as there are.
            convention: In what the labels differ from YOLO's own, as classes from 1; by default in nothing.
            ignore_exif: Whether pixels stay as stored where nothing shows that labels refer to the upright picture: for
                a tool that ignores EXIF.
            allow_paths_outside: Whether `data.yaml` may name folders outside its own.

        Raises:
            DataError: If a file or folder is missing, the classes are not named, or rows of numbers contradict each
                other, or clearly mean something else than they should.
        """
        layout = _layout(Path(data), convention)
        self.path, self.load_masks, self.notices = layout.path, load_masks, Notices()
        self.name, self.convention = f"{layout.path} ({split})", convention or YoloConvention()
        self.ignore_exif = ignore_exif
        self._choose_classes(layout, categories, keypoints=num_keypoints != 0)
        self.images, self._problems = list_pictures(
            layout, layout.split_called(split), self.notices, allow_outside=allow_paths_outside
        )
        self._files = find_label_files(self.images, self.notices)
        self._read_labels(layout, split)
        self._place_keypoints(num_keypoints)

    def _choose_classes(self, layout: YoloLayout, categories: Categories | None, *, keypoints: bool) -> None:
        points = layout.keypoint_names if keypoints and layout.keypoint_names else ((),) * len(layout.names)
        names = zip(layout.names, points, strict=True)
        items = tuple(Category(label, label + 1, name, keypoints=own) for label, (name, own) in enumerate(names))
        try:
            own = Categories(items)
        except DataError as error:
            raise DataError(f"{layout.path}: {error}") from None
        self.categories = categories or own
        self._labels = [find_label(name, self.categories, layout.path) for name in layout.names]
        self._keypoint_names = layout.keypoint_names

    def _read_labels(self, layout: YoloLayout, split: str) -> None:
        """Read all rows, decide what they mean, and keep the boxes."""
        rows = read_rows(self._files)
        where = str(self.path)
        check_class_numbers(rows, len(layout.names), self.convention, where)
        check_coordinates(rows, self.convention, where, self._known_size)
        self.meaning = _meaning(rows, self._files, layout, split)
        check_corners(rows, self.meaning, self.convention, where)
        if self.meaning.assumed:
            self.notices.assumed.add(self.meaning.assumed, "", int((rows.counts != BOX).sum()))
        self._problems = rows.problems | self._problems
        for count in np.unique(rows.counts).tolist():
            if problem := problem_of_count(count, self.meaning):
                for row in np.flatnonzero(rows.counts == count).tolist():
                    where = place_of_row(rows, self._files, row)
                    self._problems.setdefault(int(rows.pictures[row]), f"{where}: {problem}")
        # The objects of picture i are rows starts[i] to starts[i + 1].
        self._starts = np.searchsorted(rows.pictures, np.arange(len(self.images) + 1))
        self._classes = rows.classes - self.convention.classes_from_one
        self._boxes = row_boxes(rows, self.meaning, corners=self.convention.corners)

    def _place_keypoints(self, wanted: int | None) -> None:
        """Find where each keypoint goes among those of all classes, for each label."""
        count = self.meaning.keypoints[0] if self.meaning.keypoints and wanted != 0 else 0
        self._places: dict[int, list[int]] = {}
        for number, label in enumerate(self._labels if count else ()):
            category = self.categories.by_label(label)
            names = self._keypoint_names[number] if self._keypoint_names else ()
            places = dict(zip(category.keypoints, category.keypoint_indices, strict=True))
            if places and len(places) != count and not set(names) <= set(places):
                raise DataError(
                    f"{self.path}: class {category.name!r} has {count} keypoints, but in the label map {len(places)}"
                )
            in_order = [*category.keypoint_indices] or [*range(count)]
            self._places[label] = [places[name] for name in names] if names and set(names) <= set(places) else in_order
        most = max((max(places) + 1 for places in self._places.values()), default=0)
        if wanted and most > wanted:
            raise DataError(f"{self.path}: its classes have {most} keypoints, but num_keypoints is {wanted}")
        self._num_keypoints = wanted or most

    def _known_size(self, index: int) -> tuple[int, int] | None:
        try:
            return read_header(self.images[index]).size_for(None, upright=not self.ignore_exif)
        except DataError:  # raised again when the sample is read, where it can be skipped
            return None

    def __len__(self) -> int:
        return len(self.images)

    def _where(self, index: int) -> str:
        return str(self._files[index] or self.images[index])

    def _path(self, index: int) -> Path:
        if index in self._problems:
            raise DataError(self._problems[index])
        return self.images[index]

    def _sample(self, index: int, image: NDArray[np.uint8]) -> Sample:
        where, size = self._where(index), (image.shape[0], image.shape[1])
        own = slice(self._starts[index], self._starts[index + 1])
        scale = np.ones(2) if self.convention.in_pixels else np.array([size[1], size[0]], np.float64)
        labels = [self._label(number, where) for number in self._classes[own].tolist()]
        path = self._files[index]
        needs_rows = path is not None and (self.load_masks or self._num_keypoints)
        rows = [values for _, _, values in parse_rows(path)] if path is not None and needs_rows else []
        sample = Sample(
            image=image,
            boxes=(self._boxes[own] * np.tile(scale, 2)).astype(np.float32),
            labels=np.array(labels, np.int64),
            masks=self._masks(rows, size, scale, where) if self.load_masks else None,
            keypoints=self._keypoints(rows, labels, scale) if self._num_keypoints else None,
            id=self.images[index].stem,
            filename=self.images[index].name,
        )
        return checked_sample(sample, where)

    def _label(self, number: int, where: str) -> int:
        if not 0 <= number < len(self._labels):
            first = int(self.convention.classes_from_one)
            raise DataError(
                f"{where}: class {number + first}, but {self.path.name} names {len(self._labels)} from {first}"
            )
        return self._labels[number]

    def _masks(self, rows: list[list[float]], size: tuple[int, int], scale: NDArray[np.float64], where: str) -> Any:
        """Draw outlines as masks [N, H, W]; an object with only a box is an error."""
        check_mask_memory(len(rows), size, where)
        drawn = []
        for number, values in enumerate(rows):
            if self.meaning.kind != "outlines" or len(values) == BOX:
                raise DataError(f"{where}: object {number} has a box but no outline; masks were requested")
            points = np.array(values[: len(values) // 2 * 2]).reshape(-1, 2) * scale
            drawn.append(decode_mask([points.reshape(-1).tolist()], size, f"{where}: object {number}"))
        return np.array(drawn, np.uint8).reshape(-1, *size)

    def _keypoints(self, rows: list[list[float]], labels: list[int], scale: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the objects' keypoints [N, P, 3]; of a row with a box alone, all are invisible."""
        points = np.zeros((len(rows), self._num_keypoints, 3), np.float32)
        for into, label, values in zip(points, labels, rows, strict=True):
            if self.meaning.keypoints is None or len(values) == BOX:
                continue
            given = np.array(values[BOX:]).reshape(self.meaning.keypoints)
            # A keypoint that is not in the picture is written as 0 0, with two numbers as with three.
            visible = given[:, 2] > 0 if given.shape[1] == 3 else (given > 0).max(1)
            into[self._places[label]] = np.column_stack([given[:, :2] * scale, visible])
        return points

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes and its name."""
        return read_file(self.images[index]), self.images[index].name


def _meaning(rows: LabelRows, files: Sequence[Path | None], layout: YoloLayout, split: str) -> RowMeaning:
    """Return what a split's rows mean; if that takes a conclusion, all splits' rows decide, for it to be the same."""
    meaning = row_meaning(rows, layout.keypoints, partial(place_of_row, rows, files))
    if not meaning.assumed:
        return meaning
    more = [*files]
    for other in (name for name in layout.splits if name != layout.split_called(split)):
        try:
            pictures, _ = list_pictures(layout, other, Notices(), allow_outside=True)
            more += find_label_files(pictures, Notices())
        except DataError:  # a split that is not there, or will be refused when it is opened
            continue
    rows = read_rows(more)
    return row_meaning(rows, layout.keypoints, partial(place_of_row, rows, more))


def _layout(data: Path, convention: YoloConvention | None) -> YoloLayout:
    path = find_yolo(data)
    if path is None and is_folder(data):
        path = data  # reading it says what is missing
    if path is None:
        raise DataError(f"{shown(data)}: no data.yaml")
    return read_layout(path, from_one=convention is not None and convention.classes_from_one)
