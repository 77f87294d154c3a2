"""OIDv4 ToolKit's downloads of Open Images: `CLASS/Label/ID.txt` below `CLASS/ID.jpg`, corners in pixels.

https://github.com/EscVM/OIDv4_ToolKit
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import is_folder, size_of
from boxwright.data.layouts.content import Content
from boxwright.data.layouts.places import beginning_of, files_in, folders_in, picture_of
from boxwright.data.layouts.text_numbers import is_number, parse_numbers
from boxwright.data.picture_files import PictureFiles
from boxwright.data.reading import numbered_lines

_LABELS = "Label"
_TRIED = 20


def is_oid_toolkit(path: Path) -> bool:
    """Return whether a folder has folders of classes, or is one, with OIDv4 ToolKit's labels."""
    for folder in _class_folders(path)[:_TRIED]:
        for file in files_in(folder / _LABELS, ".txt")[:_TRIED]:
            words = beginning_of(file).split("\n", 1)[0].rsplit(maxsplit=4)
            if words:
                return len(words) == 5 and not is_number(words[0]) and all(map(is_number, words[1:]))
    return False


def _class_folders(path: Path) -> list[Path]:
    return [folder for folder in (path, *folders_in(path)) if is_folder(folder / _LABELS)]


def read_oid_toolkit(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return OIDv4 ToolKit's labels as the content of a COCO file.

    A picture of two classes lies in both their folders, each time with the labels of one. It is read once with both:
    otherwise the objects of the one class would be background of the other.

    Raises:
        DataError: If a line is not a class and four numbers.
    """
    base = image_folder or path
    content = Content(path)
    first: dict[tuple[str, int], str] = {}
    for folder in _class_folders(path):
        inside = folder.relative_to(path)
        pictures = PictureFiles(base / inside)
        for file in files_in(folder / _LABELS, ".txt"):
            name = (inside / picture_of(pictures, file.stem, ".jpg")).as_posix()
            image = content.add_image(first.setdefault((file.stem, size_of(base / name)), name))
            for number, line in numbered_lines(file):
                where = f"{file}: line {number}"
                # Names of classes have spaces.
                words = line.rsplit(maxsplit=4)
                if len(words) != 5:
                    raise DataError(f"{where}: expected a class and four numbers, found {line[:60]!r}")
                x_min, y_min, x_max, y_max = parse_numbers(words[1:], where)
                content.add(image, words[0], (x_min, y_min, x_max, y_max), where)
    return content.as_coco()
