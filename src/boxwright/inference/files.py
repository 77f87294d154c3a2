"""Which files are images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from boxwright.errors import DataError
from boxwright.files import is_file, is_folder

__all__ = ["find_images"]

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}


def find_images(paths: Sequence[str | Path]) -> list[Path]:
    """List image files; a folder stands for the images in it.

    Args:
        paths: Files and folders.

    Returns:
        The files, in the order given, those of a folder by name.

    Raises:
        DataError: Where a path does not exist or a folder has no image.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if is_folder(path):
            found = sorted(file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES)
            if not found:
                raise DataError(f"{path}: no image in this folder")
            files += found
        elif is_file(path):
            files.append(path)
        else:
            raise DataError(f"{path}: no such file")
    return files
