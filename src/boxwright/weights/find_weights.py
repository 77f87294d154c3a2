"""Where weights to start from are on disk: an address on the hub is fetched, a path of another machine is searched."""

from __future__ import annotations

from boxwright.base.errors import CheckpointError
from boxwright.base.files import shown
from boxwright.weights.find_source import exists, find_source
from boxwright.weights.hub import fetch, hub_address


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
