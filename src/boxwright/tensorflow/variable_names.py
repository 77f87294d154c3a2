"""Which variable of TensorFlow is which of a network's tensors.

Each family of networks has two tables, from the type of a part (a backbone, a neck, a head) to the function
that names its layers: one for TF2's names, one for TF1's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from boxwright.errors import CheckpointError
from boxwright.models.network import Network
from boxwright.models.ssd import SSD
from boxwright.tensorflow import tf1_names, tf2_names
from boxwright.tensorflow.named_layers import Named, TfVariable

__all__ = ["tf1_variables", "tf2_variables"]

Namers = Mapping[type[nn.Module], Callable[[Any, Any], Named]]


@dataclass(frozen=True)
class _Family:
    """How the parts of a family are named; a part that a version of TensorFlow never had is not in its table."""

    tf1: Namers
    tf2: Namers


_FAMILIES: dict[type[Network], _Family] = {SSD: _Family(tf1_names.SSD_PARTS, tf2_names.SSD_PARTS)}


def tf2_variables(network: nn.Module) -> dict[str, TfVariable]:
    """List the TF2 variable of every parameter and statistic of a network.

    Args:
        network: The network.

    Returns:
        Our name (as in `network.state_dict()`) to the variable.

    Raises:
        CheckpointError: Where TF2 has no such network, or not one of its parts.
    """
    return _variables(network, "TF2", lambda family: family.tf2, tf2_names.variables_of)


def tf1_variables(network: nn.Module) -> dict[str, TfVariable]:
    """List the TF1 variable of every parameter and statistic of a network.

    Args:
        network: The network.

    Returns:
        Our name to the variable.

    Raises:
        CheckpointError: Where TF1 has no such network, or not one of its parts.
    """
    return _variables(network, "TF1", lambda family: family.tf1, tf1_names.variables_of)


def _variables(
    network: nn.Module,
    version: str,
    table: Callable[[_Family], Namers],
    variables_of: Callable[[nn.Module, str], dict[str, TfVariable]],
) -> dict[str, TfVariable]:
    family = next((family for kind, family in _FAMILIES.items() if isinstance(network, kind)), None)
    if family is None or not isinstance(network, Network):
        raise CheckpointError(f"no {version} names are known for a {type(network).__name__}")
    ours = {id(module): name for name, module in network.named_modules()}
    found: dict[str, TfVariable] = {}
    for layer, path in _layers(network, version, table(family)):
        found |= {f"{ours[id(layer)]}.{name}": variable for name, variable in variables_of(layer, path).items()}
    return found


def _layers(network: Network, version: str, namers: Namers) -> Iterator[tuple[nn.Module, str]]:
    for name in (network.parts.backbone, *network.parts.necks, *network.parts.heads):
        part = network.get_submodule(name)
        namer = next((namer for kind, namer in namers.items() if isinstance(part, kind)), None)
        if namer is None:
            raise CheckpointError(f"no {version} names are known for a {type(part).__name__}")
        yield from namer(part, network)
