"""Which files of a folder a layout is about; files that a Mac adds (`._name`) are never among them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from boxwright.base.errors import DataError
from boxwright.base.files import cause, is_file, is_folder, shown
from boxwright.data.picture_files import PictureFiles, is_left_over

# Enough for the first objects of any layout.
_BEGINNING = 1 << 16


def beginning_of(path: Path, most: int = _BEGINNING) -> str:
    """Return the text of the first bytes of a file, in UTF-8 or UTF-16; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(most)
    except (OSError, ValueError):  # reading the whole file says why
        return ""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return data.decode(encoding, "replace")


def folder_of(path: Path) -> Path:
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


def picture_of(pictures: PictureFiles, stem: str, ending: str) -> str:
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
