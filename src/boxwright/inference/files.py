"""Listing image and video files."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, is_folder, read_file

_LOG = logging.getLogger("boxwright")
IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm"}
VIDEOS = {".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".ts", ".wmv", ".flv", ".3gp"}


def find_images(paths: Sequence[str | Path]) -> list[Path]:
    """Return image files; see `find_files`."""
    return find_files(paths, IMAGES, "image")


def find_files(
    paths: Sequence[str | Path], suffixes: set[str] | None = None, what: str = "image or video"
) -> list[Path]:
    """Return files in the given order, with folders, patterns and lists expanded.

    Args:
        paths: Files, folders (their files by name; a warning names those of subfolders, which are left out), patterns
            such as `shots/**/*.jpg`, and lists as `@list.txt`.
        suffixes: The suffixes taken from folders; None for images and videos.

    Raises:
        DataError: If a path does not exist, or a folder or a pattern matches nothing.
    """
    taken = IMAGES | VIDEOS if suffixes is None else suffixes
    files: list[Path] = []
    for path in map(Path, paths):
        if is_folder(path):
            matching = sorted(file for file in path.iterdir() if file.suffix.lower() in taken)
            below = _in_subfolder(path, taken)
            ways = f"; name those of its subfolders by a pattern: '{path}/**/*{below.suffix}'" if below else ""
            if not matching:
                raise DataError(f"{path}: no {what} in this folder{ways}")
            if below:
                _LOG.warning("%s: only what is in the folder itself is taken%s", path, ways)
            files += matching
        elif is_file(path):
            files.append(path)
        elif str(path).startswith("@"):
            # A file of a list that is missing is one that cannot be read, not a mistake on the command line.
            for line in _lines(Path(str(path)[1:])):
                is_missing = line.suffix.lower() in taken and not _may_exist(line)
                files += [line] if is_missing else find_files([line], suffixes, what)
        else:
            files += _matching(str(path))
    return files


def _in_subfolder(folder: Path, suffixes: set[str]) -> Path | None:
    """Return a file with one of the suffixes in a subfolder that can be read; None if there is none."""
    with os.scandir(folder) as entries:  # which knows folders without a look at each of a million files
        subfolders = sorted(entry.path for entry in entries if entry.is_dir())
    for subfolder in subfolders:
        with suppress(PermissionError):
            for file in Path(subfolder).iterdir():
                if file.suffix.lower() in suffixes:
                    return file
    return None


def _lines(path: Path) -> list[Path]:
    """Return a list's paths, one per line, relative to the list's folder."""
    lines = read_file(path).decode("utf-8", "replace").splitlines()
    return [path.parent / line.strip() for line in lines if line.strip()]


def _may_exist(path: Path) -> bool:
    """Return whether a path exists, or is a pattern."""
    return is_file(path) or is_folder(path) or any(character in str(path) for character in "*?[")


def _matching(pattern: str) -> list[Path]:
    matches = [Path(name) for name in sorted(glob.glob(pattern, recursive=True)) if is_file(name)]
    if not matches:
        raise DataError(f"{pattern}: no such file")
    return matches
