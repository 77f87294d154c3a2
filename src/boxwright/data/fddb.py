"""FDDB: lists of images and the ellipses around their faces, which are read as their bounding boxes.

A list has an image's name without suffix, a count, and a line `half_length half_width angle x y 1` for each face: the
half axes in pixels, the angle of the major one to the horizontal in radians, and the center.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, is_folder, open_regular, read_file, refuse_unfinished, shown
from boxwright.base.text import is_count, to_number
from boxwright.data.picture_dataset import LocatedPictures, PictureDataset
from boxwright.data.picture_files import PictureFiles
from boxwright.data.reading import Notices, checked_sample, finite_number, numbered_lines
from boxwright.data.wider_face import face_label
from boxwright.types import Categories, Category, Sample

_FACE = Categories((Category(0, 1, "face"),))
# FDDB's names, such as 2002/08/11/big/img_591, have no suffix; the files are .jpg.
_NAME = re.compile(r"\S*img_\d+$")
_ELLIPSE = 5
_FIRST_BYTES = 4096


@dataclass(frozen=True)
class _Image:
    """One image: its name, the list and line it comes from, and its ellipses."""

    name: str
    where: str
    ellipses: NDArray[np.float64]


def is_fddb(path: str | Path) -> bool:
    """Return whether a text file, or the first match of a pattern, starts like FDDB's lists."""
    first = next(iter(_lists(Path(path))), None)
    if first is None or first.suffix != ".txt":
        return False
    with open_regular(first) as file:
        text = file.read(_FIRST_BYTES).decode("utf-8-sig", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return len(lines) > 1 and _NAME.match(lines[0]) is not None and is_count(lines[1])


def ellipse_boxes(ellipses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the smallest upright boxes around ellipses, float64 [N, 4], xyxy.

    Args:
        ellipses: float64 [N, 5] as half length, half width, angle to the horizontal in radians, x and y of the center.
    """
    long, short, angle, x, y = ellipses.reshape(-1, _ELLIPSE).T
    # Along an axis, an ellipse extends √((a cos θ)² + (b sin θ)²) from its center.
    half_width = np.hypot(long * np.cos(angle), short * np.sin(angle))
    half_height = np.hypot(long * np.sin(angle), short * np.cos(angle))
    return np.stack([x - half_width, y - half_height, x + half_width, y + half_height], 1)


class FddbDataset(PictureDataset):
    """Samples from FDDB's lists of ellipses; a sample's id is the image's name in the list."""

    def __init__(
        self,
        annotations: str | Path,
        image_folder: str | Path | None = None,
        categories: Categories | None = None,
        *,
        ignore_exif: bool = False,
        allow_paths_outside: bool = False,
    ) -> None:
        """Read the lists, and find their images.

        Args:
            annotations: A list, or a pattern for several, such as `FDDB-folds/*ellipseList.txt`.
            image_folder: The folder that names are relative to; by default the list's.
            categories: The classes, one of which is named face, or which is the only one; by default just face.
            ignore_exif: Whether pixels stay as stored: for a tool that ignores EXIF.
            allow_paths_outside: Whether a name may point outside the folder.

        Raises:
            DataError: If a list is missing or malformed; with its line.
        """
        self.path, self.name = Path(annotations), str(annotations)
        self.ignore_exif, self.notices = ignore_exif, Notices()
        lists = _lists(self.path)
        if not lists:
            raise DataError(f"{shown(self.path)}: no such file")
        refuse_unfinished(lists[0].parent)
        self.images = [image for path in lists for image in _images(path)]
        self.folder = Path(image_folder) if image_folder else lists[0].parent
        self.categories = categories or _FACE
        self._label = face_label(self.categories, self.path)
        names = [(f"{image.name}.jpg", image.where) for image in self.images]
        files = PictureFiles(self.folder, allow_outside=allow_paths_outside)
        self._files = LocatedPictures(files, names, self.notices)

    def __len__(self) -> int:
        return len(self.images)

    def _where(self, index: int) -> str:
        return self.images[index].where

    def _path(self, index: int) -> Path:
        return self._files.path(index)

    def _sample(self, index: int, image: NDArray[np.uint8]) -> Sample:
        annotation = self.images[index]
        sample = Sample(
            image=image,
            boxes=ellipse_boxes(annotation.ellipses).astype(np.float32),
            labels=np.full(len(annotation.ellipses), self._label, np.int64),
            id=annotation.name,
            filename=f"{annotation.name}.jpg",
        )
        return checked_sample(sample, annotation.where)

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes and its name."""
        annotation = self.images[index]
        # The date's folders become part of the name: the last part alone need not be unique.
        return read_file(self._files.path(index)), f"{annotation.name.replace('/', '_')}.jpg"


def _lists(path: Path) -> list[Path]:
    """Return the lists that a path or a pattern matches, sorted."""
    if is_file(path):
        return [path]
    return sorted(path.parent.glob(path.name)) if is_folder(path.parent) and "*" in path.name else []


def _images(path: Path) -> Iterator[_Image]:
    lines = numbered_lines(path)
    if not lines:
        raise DataError(f"{shown(path)}: no images")
    place = 0
    while place < len(lines):
        number, name = lines[place]
        where = f"{shown(path)}: line {number}"
        if place + 1 >= len(lines) or not is_count(lines[place + 1][1]):
            raise DataError(f"{where}: expected an image's name, and a count of faces on the next line")
        count = int(lines[place + 1][1])
        rows = lines[place + 2 : place + 2 + count]
        if len(rows) < count:
            raise DataError(f"{where}: {count} faces announced, but the file ends after {len(rows)}")
        ellipses = [_ellipse(row, f"{shown(path)}: line {row_number}") for row_number, row in rows]
        yield _Image(name, where, np.array(ellipses, np.float64).reshape(-1, _ELLIPSE))
        place += 2 + count


def _ellipse(line: str, where: str) -> list[float]:
    texts = line.split()
    if len(texts) < _ELLIPSE:
        raise DataError(f"{where}: expected {_ELLIPSE} numbers of an ellipse, found {len(texts)}")
    try:
        values = [finite_number(to_number(text), where) for text in texts[:_ELLIPSE]]
    except ValueError:
        raise DataError(f"{where}: expected numbers, found {line[:60]!r}") from None
    if values[0] < 0 or values[1] < 0:
        raise DataError(f"{where}: half axes {values[0]:g} and {values[1]:g} may not be negative")
    return values
