"""Where weights to start from are on disk: an address on the hub is fetched, a path of another machine is searched.

Locating a checkpoint that a configuration from another machine names.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from boxwright.base.errors import CheckpointError
from boxwright.base.files import is_file, shown
from boxwright.weights.hub import fetch, hub_address


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


def find_weights(named: str, folder: str = "") -> tuple[str, str]:
    """Return the path of weights, and a message if it differs from what was named.

    Args:
        named: A path, or hf://USER/NAME.
        folder: The folder of the configuration that names it; empty if none does.

    Raises:
        CheckpointError: If nothing is there, or it can neither be reached nor found in the hub's cache.
    """
    address = hub_address(named)
    if address is not None:
        path = str(fetch(address))
        return path, f"{address} is {path}"
    path, note = find_source(named, folder)
    if not exists(path):
        raise CheckpointError(f"{shown(named)}: no such checkpoint")
    return path, note
