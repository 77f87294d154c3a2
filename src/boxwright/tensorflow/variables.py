"""A TF2 checkpoint seen as variables of a detector, wherever it keeps them.

The same variable is under `model/…` in a checkpoint of training, under `_model/…` in a SavedModel, and
a backbone's under `feature_extractor/…` in a checkpoint of classification.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from boxwright.errors import CheckpointError
from boxwright.models.network import Network, is_within
from boxwright.models.ssd import SSD
from boxwright.tensorflow.bundle import Bundle
from boxwright.tensorflow.object_graph import ATTRIBUTE
from boxwright.tensorflow.variable_names import SHARED_LAYERS, TfVariable, ssd_variables

__all__ = ["TfVariables", "from_tensorflow", "names_of", "network_variables", "to_tensorflow"]

_ROOTS = ("model/", "_model/")
_CLASSIFIER = "model/_feature_extractor/classification_backbone/"
_SLOT = "/.OPTIMIZER_SLOT/optimizer/"
# The start or a part of a key → why a detector has no use for it.
_UNUSED = (
    (".OPTIMIZER_SLOT", "state of the optimizer"),
    ("optimizer/", "state of the optimizer"),
    ("save_counter", "a counter"),
    ("step/", "a counter"),
    ("global_step", "a counter"),
    ("_feature_extractor/classification_backbone/", "of the image classifier, beyond what the detector computes"),
)


class TfVariables:
    """Arrays by TF2 checkpoint key, from a bundle or a mapping."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Wrap the arrays.

        Args:
            arrays: A bundle (whose graph of objects is followed), or any mapping by key.
        """
        self.arrays = arrays
        self._graph = arrays.graph() if isinstance(arrays, Bundle) else None

    def find(self, key: str, slot: str = "") -> str | None:
        """Find a variable, whatever root and path the source has it under.

        Args:
            key: The key as a checkpoint of training has it.
            slot: An optimizer's slot of that variable, such as "average"; empty for the variable itself.

        Returns:
            The source's own key; None where it has no such variable.
        """
        for path in _paths(key.removesuffix(ATTRIBUTE)):
            if self._graph is not None:
                found = self._graph.resolve(path, slot)
            else:
                found = f"{path}{_SLOT}{slot}{ATTRIBUTE}" if slot else f"{path}{ATTRIBUTE}"
            if found is not None and found in self.arrays:
                return found
        return None


def _paths(path: str) -> Iterator[str]:
    """List the paths under which a variable may be found, the likeliest first."""
    spellings = [path]
    spellings += [path.replace(own, other) for own, other in SHARED_LAYERS.items() if own in path]
    for spelling in spellings:
        for root in _ROOTS:
            yield root + spelling.removeprefix("model/")
        if spelling.startswith(_CLASSIFIER):
            yield "feature_extractor/" + spelling.removeprefix(_CLASSIFIER)


def network_variables(network: nn.Module) -> dict[str, TfVariable]:
    """List the TF2 variable of every parameter and statistic of a network.

    Args:
        network: The network.

    Returns:
        Our name to the variable.

    Raises:
        CheckpointError: Where TF has no such network.
    """
    if not isinstance(network, SSD):
        raise CheckpointError(f"no TF2 names are known for a {type(network).__name__}")
    return ssd_variables(network)


def names_of(network: Network) -> dict[str, tuple[str, ...]]:
    """List all names of every parameter, for patterns that users write.

    Args:
        network: The network.

    Returns:
        Our name to: our name; where TF2 has such a variable, its key in a checkpoint without the
        attribute's end; and our name below TF1's scope, `FeatureExtractor/` or `BoxPredictor/`.
    """
    try:
        variables = network_variables(network)
    except CheckpointError:  # a network, or a backbone, that TensorFlow never had
        variables = {}
    names: dict[str, tuple[str, ...]] = {}
    for name, _ in network.named_parameters():
        scope = "BoxPredictor" if is_within(name, network.parts.heads) else "FeatureExtractor"
        tf2 = [variables[name].key.split("/.ATTRIBUTES/")[0]] if name in variables else []
        names[name] = (name, *tf2, f"{scope}/{name.replace('.', '/')}")
    return names


def from_tensorflow(
    network: nn.Module, arrays: Mapping[str, NDArray[Any]], *, use_average: bool = False
) -> tuple[dict[str, Tensor], dict[str, str], dict[str, str]]:
    """Bring a TF2 checkpoint's variables to our names and layout.

    Args:
        network: The network that they are for.
        arrays: A bundle, or a mapping from keys.
        use_average: Whether to take moving averages of weights where the optimizer kept them.

    Returns:
        Our names to tensors, our names to keys, and the keys that no name has, each with the reason.

    Raises:
        CheckpointError: Where averages are wanted and a weight has none, or a weight is of whole numbers.
    """
    source = TfVariables(arrays)
    values: dict[str, Tensor] = {}
    keys: dict[str, str] = {}
    plain: list[str] = []
    learnt = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    for name, variable in network_variables(network).items():
        key = source.find(variable.key)
        if use_average and name in learnt:
            average = source.find(variable.key, "average")
            plain += [name] if average is None else []
            key = average or key
        if key is not None:
            array = np.asarray(arrays[key])
            if not np.issubdtype(array.dtype, np.floating):
                raise CheckpointError(f"{key}: weights are floating-point numbers, found {array.dtype}")
            if variable.axes and array.ndim == len(variable.axes):
                array = array.transpose(variable.axes)
            values[name], keys[name] = torch.from_numpy(np.array(array, order="C")), key
    if plain:
        raise CheckpointError(
            f"moving averages are asked for, but the checkpoint's optimizer kept none of {len(plain)} of {len(learnt)} "
            f"weights; the first is {plain[0]}"
        )
    taken = set(keys.values())
    return values, keys, {key: _reason(key) for key in arrays if key not in taken}


def _reason(key: str) -> str:
    return next((reason for part, reason in _UNUSED if part in key), "the network has no such variable")


def to_tensorflow(network: nn.Module) -> tuple[dict[str, NDArray[np.float32]], dict[str, str]]:
    """Return keys to arrays, and the second paths to some objects, as `write_bundle` takes them."""
    state = network.state_dict()
    arrays = {}
    for name, variable in network_variables(network).items():
        array = state[name].detach().cpu().float().numpy()
        if variable.axes:
            array = array.transpose(np.argsort(variable.axes))
        arrays[variable.key] = np.ascontiguousarray(array)
    aliases = {}
    for key in arrays:
        for own, other in SHARED_LAYERS.items():
            if own in key:
                layer = key.removesuffix(ATTRIBUTE).rpartition("/")[0]
                aliases[layer.replace(own, other)] = layer
    return arrays, aliases
