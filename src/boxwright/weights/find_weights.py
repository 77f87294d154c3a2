"""Where weights to start from are on disk: an address on the hub is fetched, a path of another machine is searched."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from boxwright.base.errors import CheckpointError, first_line
from boxwright.base.files import is_file, shown
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.weights.hub import fetch, hub_address

Weights = Mapping[str, Tensor]


def load_pretrained(network: nn.Module, from_leader: Callable[[Callable[[], Weights]], Weights]) -> str:
    """Load timm's weights into the backbones of a network.

    Args:
        network: Has at least one `TimmBackbone`.
        from_leader: Lets one of several processes download, and broadcasts the result.

    Returns:
        A line that describes what was loaded.

    Raises:
        CheckpointError: If there are none, or they can neither be found in the cache nor downloaded.
    """
    backbones = [module for module in network.modules() if isinstance(module, TimmBackbone)]
    for backbone in backbones:
        name = backbone.name
        backbone.body.load_state_dict(from_leader(partial(_fetch, name)))
    return f"weights of {', '.join(f'timm/{backbone.name}' for backbone in backbones)} from Hugging Face's hub"


def _fetch(name: str) -> Weights:
    import timm

    try:
        # With features_only, as the backbone is made: the names are then its own.
        return timm.create_model(name, pretrained=True, features_only=True).state_dict()
    except Exception as error:  # three libraries are involved, each with its own exceptions
        cache = os.environ.get("HF_HOME", "~/.cache/huggingface")
        raise CheckpointError(
            f"feature_extractor.pretrained: the weights of timm/{name} could not be fetched ({type(error).__name__}: "
            f"{first_line(error)}); connect to huggingface.co once, or copy the cache of a machine that has them to "
            f"{cache} (or where HF_HOME says), or remove pretrained"
        ) from error


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
