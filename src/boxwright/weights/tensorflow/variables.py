"""TensorFlow checkpoints as variables of a detector, with all their layouts.

In TF2, the same variable is below `model/…` in a training checkpoint, below `_model/…` in a SavedModel, and a
backbone's below `feature_extractor/…` in a checkpoint of a classifier, or of another detector on hourglasses. In TF1, a
backbone's is below `FeatureExtractor/` in a detection checkpoint, its halves' below two such scopes, and at the root in
TF-Slim's classifiers.

Each family has two tables, one for TF2's names and one for TF1's, of the functions that name a part's layers; by these
a network's tensors get their variables.
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
from boxwright.families.shared.family import Family
from boxwright.families.table import family_of_network
from boxwright.nn.backbones.cells import CellNetwork, JoinedCells
from boxwright.nn.network import Network, is_within
from boxwright.nn.tensorflow_names import tf1, tf2
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.nn.tensorflow_names.named_layers import Namers, TfVariable, UnnamedPartError
from boxwright.nn.tensorflow_names.tf2 import SHARED_LAYERS
from boxwright.weights.tensorflow.bundle import Bundle


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
    return _variables(network, "TF2", lambda family: family.tf2, tf2.layer_variables)


def tf1_variables(network: nn.Module) -> Variables:
    """Return the TF1 variables of a network's parameters and statistics."""
    return _variables(network, "TF1", lambda family: family.tf1, tf1.layer_variables)


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
    variables = Variables({}, {})
    for name in (*network.parts.backbone, *network.parts.necks, *network.parts.heads):
        try:
            for layer, path in _layers(network.get_submodule(name), network, table(family)):
                by_own_name = variables_of(layer, path)
                variables.named.update({f"{ours[id(layer)]}.{own}": variable for own, variable in by_own_name.items()})
        except UnnamedPartError as error:
            variables.unnamed[name] = f"no {version} names are known for {error}"
    return variables


def _layers(part: nn.Module, network: Network, namers: Namers) -> list[tuple[nn.Module, str]]:
    namer = next((namer for kind, namer in namers.items() if isinstance(part, kind)), None)
    if namer is None:
        raise UnnamedPartError(f"a {type(part).__name__}")
    return list(namer(part, network))


_ROOTS = ("model/", "_model/")
# Where a detector holds a model that has checkpoints of its own: an image classifier, in CenterNet the second; and the
# network of ExtremeNet, another detector on hourglasses, or MobileNetV2 with its upsampling.
_SUBMODELS = tuple(
    f"model/_feature_extractor/{part}/" for part in ("classification_backbone", "_base_model", "_network")
)
_SLOT = "/.OPTIMIZER_SLOT/optimizer/"
# A part of a TF1 detector's name → the same part in a classifier of TF-Slim's; the first that fits.
_TF1_IN_CLASSIFIER = (
    ("SecondStageFeatureExtractor/InceptionResnetV2/Repeat/", "InceptionResnetV2/Repeat_2/"),
    ("SecondStageFeatureExtractor/", ""),
    ("FirstStageFeatureExtractor/", ""),
    ("FeatureExtractor/", ""),
)
_TF1_AVERAGE = "ExponentialMovingAverage"
# A part of a key → why a detector does not use it.
_UNUSED_TF2 = (
    (".OPTIMIZER_SLOT", "state of the optimizer"),
    ("optimizer/", "state of the optimizer"),
    ("save_counter", "a counter"),
    ("step/", "a counter"),
    ("global_step", "a counter"),
    ("_feature_extractor/classification_backbone/", "of the image classifier, beyond what the detector computes"),
)
_UNUSED_TF1 = (
    (_TF1_AVERAGE, "a moving average, which was not requested"),
    ("/Momentum", "state of the optimizer"),
    ("/RMSProp", "state of the optimizer"),
    ("/Adam", "state of the optimizer"),
    ("beta1_power", "state of the optimizer"),
    ("beta2_power", "state of the optimizer"),
    ("global_step", "a counter"),
    ("vgg_16/fc8", "of the image classifier, beyond what the detector computes"),
    ("vgg_16/mean_rgb", "the preprocessor has its own"),
    ("Logits", "of the image classifier, beyond what the detector computes"),
)


@dataclass(frozen=True)
class _Source:
    """The view of a checkpoint for a network.

    Attributes:
        find: Maps a variable's key, and the name of one of its slots or "", to the checkpoint's own key; None if
            missing.
        unused: Parts of keys, and why a detector does not use them.
    """

    variables: Variables
    find: Callable[[str, str], str | None]
    average: str
    unused: tuple[tuple[str, str], ...]


def _source(network: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> _Source:
    of_averages = isinstance(getattr(network, "backbone", None), CellNetwork | JoinedCells)
    graph = arrays.graph() if isinstance(arrays, Bundle) and arrays.is_object_based else None

    def find_in_tf2(key: str, slot: str) -> str | None:
        for path in _paths(key.removesuffix(ATTRIBUTE)):
            if graph is not None:
                stored_key = graph.resolve(path, slot)
            else:
                stored_key = f"{path}{_SLOT}{slot}{ATTRIBUTE}" if slot else f"{path}{ATTRIBUTE}"
            if stored_key is not None and stored_key in arrays:
                return stored_key
        return None

    def find_in_tf1(key: str, slot: str) -> str | None:
        bare = next((slim + key.removeprefix(ours) for ours, slim in _TF1_IN_CLASSIFIER if key.startswith(ours)), key)
        averaged = f"{bare}/{_TF1_AVERAGE}"
        if slot:
            names = [f"{key}/{slot}", f"{bare}/{slot}"]
        elif of_averages:  # as TF restores NASNet's and PNASNet's classifiers
            names = [key, averaged, bare]
        else:  # some classifiers only have averages
            names = [key, bare, averaged]
        return next((name for name in names if name in arrays), None)

    if written_by(arrays) == 2:
        return _Source(tf2_variables(network), find_in_tf2, "average", _UNUSED_TF2)
    return _Source(tf1_variables(network), find_in_tf1, _TF1_AVERAGE, _UNUSED_TF1)


def written_by(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the TensorFlow version, 1 or 2, of a checkpoint's keys; 2 if it is empty."""
    if isinstance(arrays, Bundle) and arrays.is_object_based:
        return 2
    return 2 if not arrays or any(key.endswith(ATTRIBUTE) for key in arrays) else 1


def _paths(path: str) -> Iterator[str]:
    """Yield the possible paths of a variable, likeliest first."""
    spellings = [path]
    spellings += [path.replace(own, other) for own, other in SHARED_LAYERS.items() if own in path]
    for spelling in spellings:
        for root in _ROOTS:
            yield root + spelling.removeprefix("model/")
        for model in _SUBMODELS:
            if spelling.startswith(model):
                yield "feature_extractor/" + spelling.removeprefix(model)


def parameter_names(network: Network) -> dict[str, tuple[str, ...]]:
    """Return all names of every parameter, for patterns that users write.

    Returns:
        Our name to: our name; the TF2 key without the attribute's suffix, if any; the TF1 name, if any; and our name
        below TF1's scope, `FeatureExtractor/` or `BoxPredictor/`.
    """
    tables = [tf2_variables(network).named, tf1_variables(network).named]
    names: dict[str, tuple[str, ...]] = {}
    for name, _ in network.named_parameters():
        scope = "BoxPredictor" if is_within(name, network.parts.heads) else "FeatureExtractor"
        theirs = [table[name].key.removesuffix(ATTRIBUTE) for table in tables if name in table]
        names[name] = (name, *theirs, f"{scope}/{name.replace('.', '/')}")
    return names


@dataclass(frozen=True)
class RestoredVariables:
    """A checkpoint's tensors for a network.

    Attributes:
        unnamed: Parts of the network that the checkpoint's TensorFlow version does not have, each with the reason.
    """

    values: dict[str, Tensor]
    keys: dict[str, str]
    unused: dict[str, str]
    unnamed: dict[str, str]


def from_tensorflow(
    network: nn.Module, arrays: Mapping[str, NDArray[Any]], *, use_average: bool = False
) -> RestoredVariables:
    """Return a checkpoint's variables with our names and layout.

    Args:
        arrays: A bundle, or a mapping with TF2's keys or TF1's names.
        use_average: Whether to use moving averages of weights.

    Raises:
        CheckpointError: If TensorFlow has no such network, a requested average is missing, or weights are integers.
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
            # Quantized weights have scales in other variables, without which they mean nothing.
            if not np.issubdtype(array.dtype, np.floating):
                raise CheckpointError(f"{key}: weights are floating-point numbers, found {array.dtype}")
            values[name], keys[name] = _tensor(variable, array), key
    if plain:
        raise CheckpointError(
            f"moving averages were requested, but the checkpoint has none of {len(plain)} of {len(learned)} weights; "
            f"the first is {plain[0]}"
        )
    taken = set(keys.values())
    unused = {
        key: next((reason for part, reason in source.unused if part in key), "the network has no such variable")
        for key in arrays
        if key not in taken
    }
    return RestoredVariables(values, keys, unused, source.variables.unnamed)


def _tensor(variable: TfVariable, array: NDArray[Any]) -> Tensor:
    # A copy in C order: `to_ours` may return a transposed view of the checkpoint's bytes.
    return torch.from_numpy(np.array(variable.to_ours(array), order="C"))


def read_slots(network: nn.Module, arrays: Mapping[str, NDArray[Any]], slot: str) -> dict[str, Tensor]:
    """Return an optimizer's slots of a network's variables with our names and layout.

    Args:
        arrays: As for `from_tensorflow`.
        slot: TensorFlow's name of the slot, such as "momentum"; "average" for moving averages.
    """
    source = _source(network, arrays)
    slot = source.average if slot == "average" else slot
    keys = {name: source.find(variable.key, slot) for name, variable in source.variables.named.items()}
    named = source.variables.named
    return {name: _tensor(named[name], np.asarray(arrays[key])) for name, key in keys.items() if key is not None}


def count_updates(arrays: Mapping[str, NDArray[Any]], step: int) -> int:
    """Return the number of updates that a Keras optimizer counted; the step if unknown."""
    key = f"optimizer/iter{ATTRIBUTE}"
    return int(arrays[key]) if key in arrays else step


def to_tensorflow(network: nn.Module) -> tuple[dict[str, NDArray[np.float32]], dict[str, str] | None]:
    """Return keys to arrays, and aliases of some objects, as for `write_bundle`.

    If only TF1 has the network, the keys are TF1's names, and the aliases None.
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
        arrays[variable.key] = np.asarray(variable.to_theirs(array), order="C")  # a scalar stays one
    return arrays


def _aliases(keys: Iterable[str]) -> dict[str, str]:
    aliases = {}
    for key in keys:
        for own, other in SHARED_LAYERS.items():
            if own in key:
                layer = key.removesuffix(ATTRIBUTE).rpartition("/")[0]
                aliases[layer.replace(own, other)] = layer
    return aliases
