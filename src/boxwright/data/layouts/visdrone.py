"""VisDrone's detection labels: `annotations/NAME.txt` beside `images`, eight numbers with commas a line.

`x,y,width,height,score,category,truncation,occlusion`; https://github.com/VisDrone/VisDrone2018-DET-toolkit
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import is_folder
from boxwright.data.layouts.content import Content
from boxwright.data.layouts.places import beginning_of, files_in, picture_of
from boxwright.data.layouts.text_numbers import is_number, parse_numbers
from boxwright.data.picture_files import PictureFiles
from boxwright.data.reading import numbered_lines, whole_number

# Numbers count them from 1, in this order; 0 are regions to ignore.
_CLASSES = (
    "pedestrian",
    "people",
    "bicycle",
    "car",
    "van",
    "truck",
    "tricycle",
    "awning-tricycle",
    "bus",
    "motor",
    "others",
)
_COLUMNS = 8
_TRIED = 20


def is_visdrone(path: Path) -> bool:
    """Return whether a folder has VisDrone's labels in `annotations`, beside `images`."""
    if not is_folder(path / "annotations") or not is_folder(path / "images"):
        return False
    lines = (beginning_of(file).split("\n", 1)[0] for file in files_in(path / "annotations", ".txt")[:_TRIED])
    first = next((_words(line) for line in lines if line.strip()), [])
    return len(first) == _COLUMNS and all(map(is_number, first))


def _words(line: str) -> list[str]:
    # Some lines end in a comma.
    return line.strip().rstrip(",").split(",")


def read_visdrone(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return VisDrone's labels as the content of a COCO file.

    Category 0 and objects of score 0 are regions to ignore, as in VisDrone's own evaluation.

    Raises:
        DataError: If a line is not VisDrone's.
    """
    pictures = PictureFiles(image_folder or path / "images")
    prefix = "" if image_folder else "images/"
    content = Content(path, _CLASSES)
    for file in files_in(path / "annotations", ".txt"):
        image = content.add_image(prefix + picture_of(pictures, file.stem, ".jpg"))
        for number, line in numbered_lines(file):
            where = f"{file}: line {number}"
            if len(_words(line)) != _COLUMNS:
                raise DataError(f"{where}: expected {_COLUMNS} numbers, found {line[:60]!r}")
            x, y, width, height, score, category, *_ = parse_numbers(_words(line), where)
            box = (x, y, x + width, y + height)
            label = whole_number(category, f"{where}: category")
            if not 0 <= label <= len(_CLASSES):
                raise DataError(f"{where}: category: expected 0 to {len(_CLASSES)}, found {label}")
            if label and score:
                content.add(image, _CLASSES[label - 1], box, where)
            else:
                content.ignore(image, box)
    return content.as_coco()
