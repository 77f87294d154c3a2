"""The TensorFlow variables of a network's tensors.

Each family of networks has two tables, one for TF2's names and one for TF1's, from the type of a part (a backbone, a
neck, a head) to the function that names its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from boxwright.families.center_net import tensorflow_names as center_net_names
from boxwright.families.center_net.network import CenterNet
from boxwright.families.refinedet.network import RefineDet
from boxwright.families.two_stage import tf1_names as tf1_two_stage_names
from boxwright.families.two_stage import tf2_names as tf2_two_stage_names
from boxwright.families.two_stage.network import FasterRCNN
from boxwright.nn.network import Network
from boxwright.nn.ssd import SSD
from boxwright.nn.tensorflow_names import tf1 as tf1_names
from boxwright.nn.tensorflow_names import tf2 as tf2_names
from boxwright.nn.tensorflow_names.named_layers import Named, TfVariable, UnnamedPartError

Namers = Mapping[type[nn.Module], Callable[[Any, Any], Named]]


@dataclass(frozen=True)
class _Family:
    """The tables of a family; parts that a version of TensorFlow never had are missing."""

    tf1: Namers
    tf2: Namers


_FAMILIES: dict[type[Network], _Family] = {
    SSD: _Family(tf1_names.SSD_PARTS, tf2_names.SSD_PARTS),
    RefineDet: _Family(tf1_names.REFINEDET_PARTS, {}),
    FasterRCNN: _Family(tf1_two_stage_names.FASTER_RCNN_PARTS, tf2_two_stage_names.FASTER_RCNN_PARTS),
    CenterNet: _Family({}, center_net_names.CENTER_NET_PARTS),
}


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
    return _variables(network, "TF2", lambda family: family.tf2, tf2_names.variables_of)


def tf1_variables(network: nn.Module) -> Variables:
    """Return the TF1 variables of a network's parameters and statistics."""
    return _variables(network, "TF1", lambda family: family.tf1, tf1_names.variables_of)


def _variables(
    network: nn.Module,
    version: str,
    table: Callable[[_Family], Namers],
    variables_of: Callable[[nn.Module, str], dict[str, TfVariable]],
) -> Variables:
    family = next((family for kind, family in _FAMILIES.items() if isinstance(network, kind)), None)
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
