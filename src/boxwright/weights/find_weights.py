"""Where weights are on disk: a path of another machine is searched, published weights and the hub's are fetched."""

from __future__ import annotations

import os
import re
from pathlib import Path

from boxwright.base.errors import CheckpointError
from boxwright.base.files import is_file
from boxwright.weights.demo_model import demo_model
from boxwright.weights.fetch import fetch_published
from boxwright.weights.hub import fetch_model, hub_address
from boxwright.weights.published import explain_unknown, find_published
from boxwright.weights.remote_model import fetch_remote_model, model_address


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


def local_path(source: str | Path) -> Path:
    """Return the path of a model that a user names: a path that exists, else the file of a name, fetched if need be.

    Args:
        source: A path, "demo", the name of published weights, hf://USER/NAME[@REVISION], or an address of a run or of
            another model at s3:// or gs://.

    Raises:
        CheckpointError: If it can neither be reached nor found in a cache, or is no detector that can be opened, for
            which nothing is fetched.
    """
    if (shipped := demo_model(source)) is not None:
        return shipped
    if (elsewhere := model_address(source)) is not None:
        return fetch_remote_model(elsewhere)
    address = hub_address(source)
    if address is not None:
        return fetch_model(address)
    weights = None if exists(source) else find_published(str(source))
    if weights is None:
        return Path(source)
    weights.require_detector()
    return fetch_published(weights)


def unknown(source: str | Path) -> CheckpointError:
    """Return the error for a source that is neither a path that exists nor a name."""
    return CheckpointError(explain_unknown(source, "no such run, checkpoint or exported file"))


def find_weights(named: str, folder: str = "") -> tuple[str, str]:
    """Return the path of weights, and a message if it differs from what was named.

    Args:
        named: A path, "demo", the name of published weights, hf://USER/NAME, or an address at s3:// or gs://.
        folder: The folder of the configuration that names it; empty if none does.

    Raises:
        CheckpointError: If nothing is there, or it can neither be reached nor found in a cache.
    """
    if demo_model(named) is not None or model_address(named) is not None or hub_address(named) is not None:
        fetched = str(local_path(named))
        return fetched, f"{named} is {fetched}"
    path, note = find_source(named, folder)
    if exists(path):
        also = " (there are published weights of that name, too)" if find_published(named) else ""
        return path, note or (f"{named} is the path{also}" if also else "")
    weights = find_published(named)
    if weights is None:
        raise CheckpointError(explain_unknown(named, "no such checkpoint"))
    if weights.holds == "detector":
        weights.require_detector()
    fetched = str(fetch_published(weights))
    return fetched, f"{named} is {fetched}"
