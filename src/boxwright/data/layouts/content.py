"""The content of a COCO file, gathered picture by picture and object by object."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import shown
from boxwright.data.rotated import Box

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
