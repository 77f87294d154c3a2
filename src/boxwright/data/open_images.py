"""Open Images' CSV files: boxes of all images in one, image-level labels and class names in others.

Boxes are in units of the image. A class is identified by a code such as /m/01g317, and displayed by its description.
"""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, is_folder, refuse_unfinished, shown
from boxwright.base.text import to_number
from boxwright.data.picture_dataset import PictureDataset
from boxwright.data.picture_files import pictures_in
from boxwright.data.reading import UNKNOWN_CLASS, Notices, checked_sample, inside, read_table, read_text, reading_csv
from boxwright.types import Categories, Category, Sample

_DESCRIPTIONS = ("class-descriptions-boxable.csv", "class-descriptions.csv", "oidv7-class-descriptions-boxable.csv")
_SIDES = ("XMin", "YMin", "XMax", "YMax")


class OpenImagesDataset(PictureDataset):
    """Samples from Open Images' annotations: the images that have a box or a verified label; ids are ImageIDs."""

    def __init__(
        self,
        annotations: str | Path,
        image_folder: str | Path | None = None,
        categories: Categories | None = None,
        *,
        descriptions: str | Path | None = None,
        image_labels: str | Path | None = None,
        ignore_exif: bool = False,
        allow_paths_outside: bool = False,
    ) -> None:
        """Read the tables.

        Args:
            annotations: The CSV of boxes (ImageID, LabelName, XMin, XMax, YMin, YMax, and optionally IsGroupOf).
            image_folder: The folder of `<ImageID>.jpg`; by default `images` beside the CSV, or the CSV's folder.
            categories: The classes, by code or description; by default all that occur; others are dropped.
            descriptions: The CSV of codes and descriptions; by default one of its usual names beside the annotations.
            image_labels: The CSV of verified image-level labels (ImageID, LabelName, and optionally Confidence, which
                is 0 for a class that was verified to be absent).
            ignore_exif: Whether pixels stay as stored where nothing shows that labels refer to the upright picture: for
                a tool that ignores EXIF.
            allow_paths_outside: Whether an ImageID may point outside the folder.

        Raises:
            DataError: If a file is missing or malformed.
        """
        self.path, self.name, self._allow_outside = Path(annotations), str(annotations), allow_paths_outside
        refuse_unfinished(self.path.parent)
        beside = self.path.parent / "images"
        self.folder = Path(image_folder) if image_folder else beside if is_folder(beside) else self.path.parent
        shown_names = _descriptions(self.path, descriptions)
        self._numbers: dict[str, int] = {}  # ImageID to index
        codes: dict[str, int] = {}
        # Typed arrays: the training set has 14.6 million boxes, too many for Python objects.
        image_of, code_of, group_of, sides = array("q"), array("q"), array("b"), array("d")
        for where, row in read_table(self.path, ("ImageID", "LabelName", *_SIDES)):
            image_of.append(self._numbers.setdefault(row["ImageID"], len(self._numbers)))
            code_of.append(codes.setdefault(row["LabelName"], len(codes)))
            group_of.append(row.get("IsGroupOf") == "1")
            sides.extend(_number(row[name], f"{where}: {name}") for name in _SIDES)
        labels = list(read_table(Path(image_labels), ("ImageID", "LabelName"))) if image_labels else []
        for _, row in labels:
            self._numbers.setdefault(row["ImageID"], len(self._numbers))
            codes.setdefault(row["LabelName"], len(codes))
        if not codes:
            raise DataError(f"{self.path}: no boxes")
        self.categories = categories or _all_categories(codes, shown_names)
        known = {item.title: item for item in self.categories}
        by_code = {code: self.categories.by_name(code) or known.get(shown_names.get(code, "")) for code in codes}
        label_of = np.array([-1 if category is None else category.label for category in by_code.values()], np.int64)
        self._verified, self._negative = _collect_image_labels(
            ((self._numbers[row["ImageID"]], int(label_of[codes[row["LabelName"]]]), row) for _, row in labels)
        )
        # Sorted by image, the boxes of image i are rows starts[i] to starts[i + 1]; stable, to keep the file's order.
        order = np.argsort(np.frombuffer(image_of, np.int64), kind="stable") if image_of else np.zeros(0, np.int64)
        self._starts = np.searchsorted(np.asarray(image_of, np.int64)[order], np.arange(len(self._numbers) + 1))
        self._labels = label_of[np.asarray(code_of, np.int64)[order]]
        self._groups = np.asarray(group_of, np.bool_)[order]
        self._boxes = np.asarray(sides, np.float64).reshape(-1, 4)[order]
        self.images = list(self._numbers)
        self.notices, self.ignore_exif = Notices(), ignore_exif
        self._pictures: dict[str, list[Path]] = {}
        for path in pictures_in(self.folder) if is_folder(self.folder) else ():
            self._pictures.setdefault(path.stem, []).append(path)
        dropped = int((self._labels < 0).sum())
        self.notices.boxes.add(UNKNOWN_CLASS, times=dropped)

    def __len__(self) -> int:
        return len(self.images)

    def _where(self, index: int) -> str:
        return f"{self.path}: image {self.images[index][:60]}"

    def _sample(self, index: int, image: NDArray[np.uint8]) -> Sample:
        rows = np.arange(self._starts[index], self._starts[index + 1])
        kept = rows[self._labels[rows] >= 0]
        scale = np.array([image.shape[1], image.shape[0]] * 2)
        with np.errstate(over="ignore"):  # overflow gives infinity, which is rejected below
            boxes = (self._boxes[kept] * scale).astype(np.float32)
        sample = Sample(
            image=image,
            boxes=boxes,
            labels=self._labels[kept],
            group_of=self._groups[kept],
            verified_labels=np.array(sorted(self._verified.get(index, ())), np.int64),
            negative_labels=np.array(sorted(self._negative.get(index, ())), np.int64),
            left_out=len(rows) - len(kept),
            id=self.images[index],
            filename=self._path(index).name,
        )
        return checked_sample(sample, self._where(index))

    def _path(self, index: int) -> Path:
        """Return the file of an ImageID, whatever its ending; a JPEG if there are several, as Open Images has."""
        name = self.images[index]
        named = self._pictures.get(name, [])
        if len(named) > 1:
            named = [path for path in named if path.suffix.lower() in (".jpg", ".jpeg")]
        if len(named) > 1:
            raise DataError(
                f"{self.path}: image {name[:60]} may be {shown(named[0])} or {shown(named[1])}; rename one of them"
            )
        path = inside(self.folder, f"{name}.jpg", f"{self.path}: ImageID", allow_outside=self._allow_outside)
        # An ImageID with a folder, or outside.
        if not named and not is_file(path):
            raise DataError(f"{self.path}: no image {shown(path)}")
        return named[0] if named else path


def _collect_image_labels(
    rows: Iterable[tuple[int, int, dict[str, str]]],
) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Return each image's verified labels, and those that were verified to be absent.

    Args:
        rows: An image's index, a label, or -1 for a class that is not in the label map, and the row of the table.
    """
    verified: dict[int, set[int]] = {}
    negative: dict[int, set[int]] = {}
    for image, label, row in rows:
        if label >= 0:
            verified.setdefault(image, set()).add(label)
        if label >= 0 and row.get("Confidence") == "0":
            negative.setdefault(image, set()).add(label)
    return verified, negative


def _number(text: str, where: str) -> float:
    try:
        return to_number(text)
    except ValueError:
        raise DataError(f"{where}: expected a number, found {text[:60]!r}") from None


def _descriptions(annotations: Path, named: str | Path | None) -> dict[str, str]:
    """Return codes and their descriptions; the file may have a header."""
    paths = [Path(named)] if named else [annotations.parent / name for name in _DESCRIPTIONS]
    path = next((path for path in paths if is_file(path)), None)
    if path is None:
        if named:
            raise DataError(f"{shown(named)}: no such file")
        return {}
    with reading_csv(path):
        rows = list(csv.reader(io.StringIO(read_text(path))))
    return {row[0]: row[1] for row in rows if len(row) >= 2 and row[0] != "LabelName"}


def _all_categories(codes: dict[str, int], shown_names: dict[str, str]) -> Categories:
    return Categories(
        tuple(Category(label, label + 1, code, shown_names.get(code, "")) for label, code in enumerate(sorted(codes)))
    )
