"""Locating a checkpoint that a configuration from another machine names."""

from __future__ import annotations

import os
import re
from pathlib import Path

from boxwright.base.files import is_file


def find_source(named: str, folder: str) -> tuple[str, str]:
    """Find a checkpoint at its path, or else by the last parts of the path below the configuration's folder.

    Args:
        named: The path in the configuration; backslashes separate, too.
        folder: The configuration's folder; empty if it has none.

    Returns:
        The path, unchanged if nothing exists; and a message if it differs from `named`.
    """
    if exists(named):
        return named, ""
    parts = [part for part in re.split(r"[\\/]+", named) if part not in ("", ".", "..")]
    # The longest ending first: the more of the path agrees, the likelier it is the right file.
    for kept in range(len(parts), 0, -1):
        # Below the working directory only with all parts: a bare name could match anything there.
        for root in [*([Path(folder)] if folder else []), *([Path()] if kept == len(parts) else [])]:
            candidate = root.joinpath(*parts[-kept:])
            if exists(candidate):
                return str(candidate), f"{named} does not exist; using {candidate}"
    return named, ""


def exists(path: str | Path) -> bool:
    """Return whether a file, a folder or TensorFlow's checkpoint of that prefix is there."""
    return os.path.exists(path) or is_file(f"{path}.index")
