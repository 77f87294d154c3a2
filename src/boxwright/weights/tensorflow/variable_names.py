"""The TensorFlow variables of a network's tensors.

Each family has two tables, one for TF2's names and one for TF1's, of the functions that name a part's layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from boxwright.families.shared.family import Family
from boxwright.families.table import family_of_network
from boxwright.nn.network import Network
from boxwright.nn.tensorflow_names import tf1, tf2
from boxwright.nn.tensorflow_names.named_layers import Namers, TfVariable, UnnamedPartError


@dataclass(frozen=True)
class Variables:
    """The variables of a network in a version of TensorFlow.

    Attributes:
        named: Our name (as in `network.state_dict()`) to the variable.
        unnamed: Parts of the network without an equivalent, each with the reason.
    """

    named: dict[str, TfVariable]
    unnamed: dict[str, str]


def tf2_variables(network: nn.Module) -> Variables:
    """Return the TF2 variables of a network's parameters and statistics."""
    return _variables(network, "TF2", lambda family: family.tf2, tf2.variables_of)


def tf1_variables(network: nn.Module) -> Variables:
    """Return the TF1 variables of a network's parameters and statistics."""
    return _variables(network, "TF1", lambda family: family.tf1, tf1.variables_of)


def _variables(
    network: nn.Module,
    version: str,
    table: Callable[[Family], Namers],
    variables_of: Callable[[nn.Module, str], dict[str, TfVariable]],
) -> Variables:
    family = family_of_network(network)
    if family is None or not isinstance(network, Network):
        return Variables({}, {"": f"no {version} names are known for a {type(network).__name__}"})
    # By identity: namers yield modules, and equal ones occur several times in a network.
    ours = {id(module): name for name, module in network.named_modules()}
    found = Variables({}, {})
    for name in (*network.parts.backbone, *network.parts.necks, *network.parts.heads):
        try:
            for layer, path in _layers(network.get_submodule(name), network, table(family)):
                variables = variables_of(layer, path)
                found.named.update({f"{ours[id(layer)]}.{own}": variable for own, variable in variables.items()})
        except UnnamedPartError as error:
            found.unnamed[name] = f"no {version} names are known for {error}"
    return found


def _layers(part: nn.Module, network: Network, namers: Namers) -> list[tuple[nn.Module, str]]:
    namer = next((namer for kind, namer in namers.items() if isinstance(part, kind)), None)
    if namer is None:
        raise UnnamedPartError(f"a {type(part).__name__}")
    return list(namer(part, network))
