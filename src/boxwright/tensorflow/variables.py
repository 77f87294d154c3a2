"""A checkpoint of TensorFlow seen as variables of a detector, wherever it keeps them.

In TF2's, the same variable is under `model/…` in a checkpoint of training, under `_model/…` in a SavedModel, and
a backbone's under `feature_extractor/…` in a checkpoint of classification. In TF1's, a backbone's lies below
`FeatureExtractor/` in a checkpoint of detection, and at the root in one of TF-Slim's classifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from boxwright.base.errors import CheckpointError
from boxwright.models.backbones.pnasnet import PnasNet
from boxwright.models.network import Network, is_within
from boxwright.models.ssd import SSD
from boxwright.tensorflow.bundle import Bundle
from boxwright.tensorflow.named_layers import TfVariable
from boxwright.tensorflow.object_graph import ATTRIBUTE
from boxwright.tensorflow.tf2_names import SHARED_LAYERS
from boxwright.tensorflow.variable_names import Variables, tf1_variables, tf2_variables

_ROOTS = ("model/", "_model/")
_CLASSIFIER = "model/_feature_extractor/classification_backbone/"
_SLOT = "/.OPTIMIZER_SLOT/optimizer/"
_TF1_SCOPE = "FeatureExtractor/"
_TF1_AVERAGE = "ExponentialMovingAverage"
# A part of a key → why a detector has no use for it.
_UNUSED_TF2 = (
    (".OPTIMIZER_SLOT", "state of the optimizer"),
    ("optimizer/", "state of the optimizer"),
    ("save_counter", "a counter"),
    ("step/", "a counter"),
    ("global_step", "a counter"),
    ("_feature_extractor/classification_backbone/", "of the image classifier, beyond what the detector computes"),
)
_UNUSED_TF1 = (
    (_TF1_AVERAGE, "a moving average, which is not asked for"),
    ("/Momentum", "state of the optimizer"),
    ("/RMSProp", "state of the optimizer"),
    ("/Adam", "state of the optimizer"),
    ("beta1_power", "state of the optimizer"),
    ("beta2_power", "state of the optimizer"),
    ("global_step", "a counter"),
    ("Logits", "of the image classifier, beyond what the detector computes"),
)


@dataclass(frozen=True)
class _Source:
    """What a checkpoint has for a network.

    Attributes:
        variables: What TensorFlow calls the network's tensors.
        find: From a variable's key, and the name of a slot of it or nothing, to the source's own key; None where it
            has none.
        average: The slot of moving averages.
        unused: A part of a key, and why a detector has no use for it.
    """

    variables: Variables
    find: Callable[[str, str], str | None]
    average: str
    unused: tuple[tuple[str, str], ...]


def _source(network: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> _Source:
    of_averages = isinstance(network, SSD) and isinstance(network.backbone, PnasNet)
    graph = arrays.graph() if isinstance(arrays, Bundle) and arrays.is_object_based else None

    def find_in_tf2(key: str, slot: str) -> str | None:
        for path in _paths(key.removesuffix(ATTRIBUTE)):
            if graph is not None:
                found = graph.resolve(path, slot)
            else:
                found = f"{path}{_SLOT}{slot}{ATTRIBUTE}" if slot else f"{path}{ATTRIBUTE}"
            if found is not None and found in arrays:
                return found
        return None

    def find_in_tf1(key: str, slot: str) -> str | None:
        bare = key.removeprefix(_TF1_SCOPE)
        averaged = f"{bare}/{_TF1_AVERAGE}"
        if slot:
            names = [f"{key}/{slot}", f"{bare}/{slot}"]
        elif of_averages:  # as TF takes PNASNet's classifier
            names = [key, averaged, bare]
        else:  # of some classifiers there are averages alone
            names = [key, bare, averaged]
        return next((name for name in names if name in arrays), None)

    if written_by(arrays) == 2:
        return _Source(tf2_variables(network), find_in_tf2, "average", _UNUSED_TF2)
    return _Source(tf1_variables(network), find_in_tf1, _TF1_AVERAGE, _UNUSED_TF1)


def written_by(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return which TensorFlow's keys a checkpoint has, 1 or 2; nothing counts as 2."""
    if isinstance(arrays, Bundle) and arrays.is_object_based:
        return 2
    return 2 if not arrays or any(key.endswith(ATTRIBUTE) for key in arrays) else 1


def _paths(path: str) -> Iterator[str]:
    """List the paths under which a variable may be found, the likeliest first."""
    spellings = [path]
    spellings += [path.replace(own, other) for own, other in SHARED_LAYERS.items() if own in path]
    for spelling in spellings:
        for root in _ROOTS:
            yield root + spelling.removeprefix("model/")
        if spelling.startswith(_CLASSIFIER):
            yield "feature_extractor/" + spelling.removeprefix(_CLASSIFIER)


def names_of(network: Network) -> dict[str, tuple[str, ...]]:
    """List all names of every parameter, for patterns that users write.

    Returns:
        Our name to: our name; where TF2 has such a variable, its key in a checkpoint without the attribute's end;
        where TF1 has, its name; and our name below TF1's scope, `FeatureExtractor/` or `BoxPredictor/`.
    """
    tables = [tf2_variables(network).named, tf1_variables(network).named]
    names: dict[str, tuple[str, ...]] = {}
    for name, _ in network.named_parameters():
        scope = "BoxPredictor" if is_within(name, network.parts.heads) else "FeatureExtractor"
        theirs = [table[name].key.removesuffix(ATTRIBUTE) for table in tables if name in table]
        names[name] = (name, *theirs, f"{scope}/{name.replace('.', '/')}")
    return names


@dataclass(frozen=True)
class FoundVariables:
    """What a checkpoint has for a network.

    Attributes:
        values: Tensors by our names.
        keys: Our names to the checkpoint's keys.
        unused: Keys that no name has, each with the reason.
        unnamed: Parts of the network that the checkpoint's TensorFlow does not have, each with the reason.
    """

    values: dict[str, Tensor]
    keys: dict[str, str]
    unused: dict[str, str]
    unnamed: dict[str, str]


def from_tensorflow(
    network: nn.Module, arrays: Mapping[str, NDArray[Any]], *, use_average: bool = False
) -> FoundVariables:
    """Bring a checkpoint's variables to our names and layout.

    Args:
        arrays: A bundle, or a mapping from keys; with TF2's keys, which end alike, or TF1's names.
        use_average: Whether to take moving averages of weights.

    Raises:
        CheckpointError: Where TensorFlow has no such network, averages are wanted and a weight has none, or a
            weight is of whole numbers.
    """
    source = _source(network, arrays)
    if not source.variables.named:
        raise CheckpointError(next(iter(source.variables.unnamed.values())))
    values: dict[str, Tensor] = {}
    keys: dict[str, str] = {}
    plain: list[str] = []
    learned = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    for name, variable in source.variables.named.items():
        key = source.find(variable.key, "")
        if use_average and name in learned:
            average = source.find(variable.key, source.average)
            plain += [name] if average is None else []
            key = average or key
        if key is not None:
            array = np.asarray(arrays[key])
            if not np.issubdtype(array.dtype, np.floating):
                raise CheckpointError(f"{key}: weights are floating-point numbers, found {array.dtype}")
            values[name], keys[name] = _tensor(variable, array), key
    if plain:
        raise CheckpointError(
            f"moving averages are asked for, but the checkpoint has none of {len(plain)} of {len(learned)} weights; "
            f"the first is {plain[0]}"
        )
    taken = set(keys.values())
    unused = {key: _reason(key, source.unused) for key in arrays if key not in taken}
    return FoundVariables(values, keys, unused, source.variables.unnamed)


def _tensor(variable: TfVariable, array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.array(variable.to_ours(array), order="C"))


def slots_of(network: nn.Module, arrays: Mapping[str, NDArray[Any]], slot: str) -> dict[str, Tensor]:
    """Bring what an optimizer kept of a network's variables to our names and layout.

    Args:
        arrays: As `from_tensorflow` takes them.
        slot: TensorFlow's name of what is kept, such as "momentum"; "average" for moving averages.

    Returns:
        Our names to tensors, of the variables that have the slot.
    """
    source = _source(network, arrays)
    slot = source.average if slot == "average" else slot
    keys = {name: source.find(variable.key, slot) for name, variable in source.variables.named.items()}
    named = source.variables.named
    return {name: _tensor(named[name], np.asarray(arrays[key])) for name, key in keys.items() if key is not None}


def updates_of(arrays: Mapping[str, NDArray[Any]], step: int) -> int:
    """Return how many updates an optimizer of Keras's counted; the step where none did."""
    key = f"optimizer/iter{ATTRIBUTE}"
    return int(arrays[key]) if key in arrays else step


def _reason(key: str, unused: tuple[tuple[str, str], ...]) -> str:
    return next((reason for part, reason in unused if part in key), "the network has no such variable")


def to_tensorflow(network: nn.Module) -> tuple[dict[str, NDArray[np.float32]], dict[str, str] | None]:
    """Return keys to arrays, and the second paths to some objects, as `write_bundle` takes them.

    Returns:
        TF2's keys and paths; where only TF1 has the network, TF1's names and None.
    """
    variables = tf2_variables(network)
    if variables.unnamed:
        reason = next(iter(variables.unnamed.values()))
        variables = tf1_variables(network)
        if variables.unnamed:
            raise CheckpointError(reason)
        return _arrays(network, variables), None
    arrays = _arrays(network, variables)
    return arrays, _aliases(arrays)


def _arrays(network: nn.Module, variables: Variables) -> dict[str, NDArray[np.float32]]:
    state = network.state_dict()
    arrays = {}
    for name, variable in variables.named.items():
        array = state[name].detach().cpu().float().numpy()
        arrays[variable.key] = np.ascontiguousarray(variable.to_theirs(array))
    return arrays


def _aliases(keys: Iterable[str]) -> dict[str, str]:
    aliases = {}
    for key in keys:
        for own, other in SHARED_LAYERS.items():
            if own in key:
                layer = key.removesuffix(ATTRIBUTE).rpartition("/")[0]
                aliases[layer.replace(own, other)] = layer
    return aliases
