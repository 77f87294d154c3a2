"""Folders in the cache that are filled once from files, such as an archive, and kept while those are unchanged."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from boxwright.base.errors import DataError, OutputError
from boxwright.base.files import cache_folder, cause, is_folder, make_folder, shown

_FOLDER = "data"


def kept_folder(sources: Sequence[Path]) -> Path:
    """Return where in the cache the folder of some files is, by their paths, sizes and times; it may not exist yet.

    Raises:
        DataError: If one of the files is not there.
    """
    digest = hashlib.sha256()
    for source in sources:
        try:
            state = source.stat()
        except (OSError, ValueError) as error:
            raise DataError(f"{shown(source)}: {cause(error)}") from None
        digest.update(f"{os.path.abspath(source)}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    # The name is part of it, as a split may show in it alone.
    return cache_folder() / _FOLDER / digest.hexdigest()[:32] / sources[0].name.split(".")[0]


def filled_folder(sources: Sequence[Path], fill: Callable[[Path], None]) -> Path:
    """Return the folder of some files in the cache, after filling it if it is new.

    It appears under its name only when it is whole. Of two processes that fill it at once, one does so in vain.

    Args:
        sources: The files that it is made of.
        fill: Writes into an empty folder.

    Raises:
        DataError: If one of the files is not there.
        OutputError: If the cache cannot be written: a full disk, a read-only folder.
    """
    folder = kept_folder(sources)
    if is_folder(folder):
        return folder
    make_folder(folder.parent)
    try:
        partial = Path(tempfile.mkdtemp(prefix=".", suffix=".partial", dir=folder.parent))
    except OSError as error:
        raise OutputError(f"{shown(folder.parent)}: could not be written: {cause(error)}") from None
    try:
        fill(partial)
        # A new folder of mkdtemp is its owner's alone; a cache may be shared.
        partial.chmod(0o755)
        partial.rename(folder)
    except OSError as error:
        if not is_folder(folder):
            raise OutputError(f"{shown(folder)}: could not be written: {cause(error)}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
