"""What readers of layouts share: a folder's files, and the content of a COCO file, gathered object by object.

Files that a Mac adds (`._name`) are never among a folder's.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import cause, is_file, is_folder, open_regular, shown
from boxwright.data.picture_files import PictureFiles, is_left_over
from boxwright.data.rotated import Box

# Enough for the first objects of any layout.
_BEGINNING = 1 << 16


def read_beginning(path: Path, most: int = _BEGINNING) -> str:
    """Return the text of the first bytes of a file, in UTF-8 or UTF-16; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            data = file.read(most)
    except (OSError, ValueError):  # reading the whole file says why
        return ""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return data.decode(encoding, "replace")


def containing_folder(path: Path) -> Path:
    """Return a folder itself, or the folder of a file."""
    return path if is_folder(path) else path.parent


def files_in(folder: Path, *endings: str) -> list[Path]:
    """Return a folder's files with one of some endings, of any case, in order of their names.

    Raises:
        DataError: If the folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            names = sorted(item.name for item in entries if not is_left_over(item.name) and item.is_file())
    except OSError as error:
        raise DataError(f"{shown(folder)}: {cause(error)}") from None
    return [folder / name for name in names if not endings or name.lower().endswith(endings)]


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, in order of their names; none if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(item.name for item in entries if not is_left_over(item.name) and item.is_dir())
    except OSError:
        return []
    return [folder / name for name in names]


def only_file(path: Path, recognizes: Callable[[Path], bool], *endings: str) -> Path | None:
    """Return the file of a layout: the path itself, or the only such file in the folder.

    Several files in one folder are parts of a data set, of which each is asked for by its own path.
    """
    if is_file(path):
        return path if path.name.lower().endswith(endings) and recognizes(path) else None
    if not is_folder(path):
        return None
    files = [file for file in files_in(path, *endings) if recognizes(file)]
    return files[0] if len(files) == 1 else None


def file_in(path: Path, name: str) -> Path | None:
    """Return a file of a fixed name: the path itself, or the file in the folder; None if there is none."""
    file = path if path.name == name else path / name
    return file if is_file(file) else None


def find_picture(pictures: PictureFiles, stem: str, ending: str) -> str:
    """Return the picture that a file of labels describes, by its name without ending, relative to the folder.

    Args:
        ending: What the returned name ends in where there is no such picture, so that reading it raises.

    Raises:
        DataError: If several pictures have the name.
    """
    paths = pictures.with_stem(stem)
    if len(paths) > 1:
        names = " or ".join(path.relative_to(pictures.folder).as_posix() for path in paths[:2])
        raise DataError(f"{shown(pictures.folder)}: the picture of {stem!r} may be {names}; rename one of them")
    return paths[0].relative_to(pictures.folder).as_posix() if paths else f"{stem}{ending}"


_LOG = logging.getLogger("boxwright")
# Messages name no more than these, as a data set may have thousands of classes.
_MOST_NAMES = 20


class Content:
    """What a layout holds: pictures, objects, regions to ignore, classes, and what was left out.

    A region to ignore is neither an object nor an error to detect. COCO has crowds for that, but each belongs to a
    class; so a region becomes a crowd of every class. It is marked difficult, too, as PASCAL's metrics know no crowds.
    In training, `hide_ignored_regions` of the reader, which `init` sets, covers them.
    """

    def __init__(self, path: Path, names: Iterable[str] | None = None) -> None:
        """Start with nothing.

        Args:
            path: Of the data, for messages.
            names: The classes in their order; by default those of the objects, in alphabetical order.
        """
        self.path = path
        self._declared = None if names is None else list(dict.fromkeys(names))
        self._images: dict[str, dict[str, Any]] = {}
        self._objects: list[tuple[str, dict[str, Any]]] = []
        self._regions: list[dict[str, Any]] = []
        self._left_out: Counter[str] = Counter()

    def add_image(self, name: str, size: tuple[int, int] | None = None) -> int:
        """Add a picture, unless its file is known already, and return its id.

        Args:
            size: (height, width) as the annotations state it.
        """
        row = self._images.setdefault(name, {"id": len(self._images) + 1, "file_name": name})
        if size is not None and all(size):
            row["height"], row["width"] = size
        return int(row["id"])

    def add(self, image: int, name: str, box: Box, where: str, outlines: Sequence[list[float]] = ()) -> None:
        """Add an object of a class.

        Args:
            outlines: Polygons x, y, x, y and so on, of at least three points.

        Raises:
            DataError: If the classes are known, and this is none of them.
        """
        if self._declared is not None and name not in self._declared:
            known = ", ".join(self._declared[:_MOST_NAMES])
            raise DataError(f"{where}: class {name[:60]!r} is not among the classes ({known})")
        row = {"image_id": image, "bbox": _sides(box), "iscrowd": 0}
        self._objects.append((name, row | ({"segmentation": [*outlines]} if outlines else {})))

    def ignore(self, image: int, box: Box) -> None:
        """Add a region to ignore."""
        self._regions.append({"image_id": image, "bbox": _sides(box), "iscrowd": 1, "difficult": 1})

    def leave_out(self, kind: str) -> None:
        """Count something that is not read."""
        self._left_out[kind] += 1

    def as_coco(self) -> dict[str, Any]:
        """Return the content of a COCO file; a line of the log counts what was left out.

        Raises:
            DataError: If there is no picture, or no class.
        """
        if self._left_out:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._left_out.items()))
            _LOG.warning("%s: left out: %s", self.path, kinds)
        if not self._images:
            raise DataError(f"{shown(self.path)}: no images")
        names = self._declared or sorted({name for name, _ in self._objects})
        if not names:
            raise DataError(f"{shown(self.path)}: no object with a class in {len(self._images)} images")
        numbers = {name: number for number, name in enumerate(names, start=1)}
        rows = [{**row, "category_id": numbers[name]} for name, row in self._objects]
        rows += [{**row, "category_id": number} for row in self._regions for number in numbers.values()]
        return {
            "images": [*self._images.values()],
            "annotations": [{"id": number, **row} for number, row in enumerate(rows, start=1)],
            "categories": [{"id": number, "name": name} for name, number in numbers.items()],
        }


def _sides(box: Box) -> list[float]:
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]
