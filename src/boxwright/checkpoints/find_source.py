"""Where a checkpoint is that a configuration names, which was written on another machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

from boxwright.base.files import is_file


def find_source(named: str, folder: str) -> tuple[str, str]:
    """Find a checkpoint as it is named, else by the last parts of its path below the configuration's folder.

    Args:
        named: As the configuration has it; backslashes separate, too.
        folder: Where the configuration lies; empty where it lies nowhere.

    Returns:
        Where it is, or, where nothing is found, the name itself; and what to say where it is not where it is named.
    """
    if _exists(named):
        return named, ""
    parts = [part for part in re.split(r"[\\/]+", named) if part not in ("", ".", "..")]
    for kept in range(len(parts), 0, -1):
        # Below the working directory only with all its parts: a name alone may be of anything there.
        for root in [*([Path(folder)] if folder else []), *([Path()] if kept == len(parts) else [])]:
            candidate = root.joinpath(*parts[-kept:])
            if _exists(candidate):
                return str(candidate), f"{named} does not exist; {candidate} is taken for it"
    return named, ""


def _exists(path: str | Path) -> bool:
    return os.path.exists(path) or is_file(f"{path}.index")
