"""What a path may be: no address of a server or an object store, not empty, and not the source of what is written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from boxwright.base.errors import BoxwrightError, ConfigError, OutputError, shortened

# Two letters or more, as Windows' drives have one; one slash, as `Path` makes one of two.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def require_path(path: str | os.PathLike[str], what: str = "", error: type[BoxwrightError] = ConfigError) -> Path:
    """Return a path that was typed, as it was typed.

    Args:
        what: The option, for the message.

    Raises:
        BoxwrightError: An `error`, if it is empty or an address such as s3://BUCKET/FOLDER.
    """
    text = os.fspath(path)
    start = f"{what}: " if what else ""
    if not text:
        raise error(f"{start}expected a path, found an empty text; the current folder is .")
    if _ADDRESS.match(text):
        raise error(
            f"{start}expected a path, found the address {shortened(text, 400)}; mount it or copy it, "
            "and name the local path"
        )
    return Path(path)


def refuse_source(target: str | os.PathLike[str], sources: Iterable[str | os.PathLike[str]]) -> None:
    """Raise an OutputError if a file or folder that is to be written is one of those that are read.

    They are compared as the system knows them, whatever their names: links, other spellings and mounts count.
    """
    try:
        state = os.stat(target)
    except (OSError, ValueError):  # there is none yet
        return
    for source in sources:
        try:
            same = os.path.samestat(state, os.stat(source))
        except (OSError, ValueError):
            continue
        if same:
            raise OutputError(
                f"{shortened(os.fspath(target), 400)}: this is the source {shortened(os.fspath(source), 400)} itself, "
                "which would be replaced; write to another path"
            )


_PAGE = "index.html"
# The end of the title of every page of ours.
_PAGE_MARK = " – Boxwright</title>".encode()
_PAGE_HEAD_BYTES = 4096


def refuse_foreign_page(folder: str | os.PathLike[str]) -> None:
    """Raise an OutputError if a folder has an index.html that is no page of ours."""
    page = Path(folder) / _PAGE
    try:
        with page.open("rb") as file:
            own = _PAGE_MARK in file.read(_PAGE_HEAD_BYTES)
    except (OSError, ValueError):  # there is none, or writing it says what is wrong
        return
    if not own:
        raise OutputError(f"{page}: this page is not from Boxwright, and would be replaced; write to another folder")
