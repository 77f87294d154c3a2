"""Another project's tensors, or a checkpoint's, by the names of a network.

Most are not converted; of some the box coordinates are reordered. Public ports of VGG-16 have a list of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from boxwright.base.errors import CheckpointError, pass_shortage
from boxwright.config.message import Message
from boxwright.nn.network import Network
from boxwright.types import Categories


def unchanged(value: Tensor) -> Tensor:
    """Return the tensor unchanged."""
    return value


def vertical_first(value: Tensor) -> Tensor:
    """Reorder the outputs of a box predictor from x y w h for each anchor to y x h w."""
    return value.reshape(-1, 4, *value.shape[1:])[:, [1, 0, 3, 2]].reshape(value.shape)


@dataclass(frozen=True)
class FileFacts:
    """What is known of a file of another project's weights beside its tensors.

    Attributes:
        published: The message of the published weights of this file's exact name; None if there are none.
        class_names: Names of classes that a training state holds; empty for none.
    """

    published: Message | None = None
    class_names: tuple[str, ...] = ()


# Our name of a tensor, the source's, and how its value changes.
Names = Iterator[tuple[str, str, Callable[[Tensor], Tensor]]]


@dataclass(frozen=True)
class SourceWeights:
    """A source's tensors for a network.

    Attributes:
        values: By our names.
        names: Our names to the source's; without those that are the same.
        unused: The source's names of unused tensors, each with the reason.
        categories: The classes that it was trained on; None if unknown.
        missing: Modules that this kind of source never has, each with the reason.
        is_classifier: Whether it is an image classifier, and so has nothing but the backbone.
        check_anchors: Raises a CheckpointError if a TensorFlow graph stores other anchors than the network's.
    """

    values: dict[str, Tensor]
    names: dict[str, str] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    categories: Categories | None = None
    missing: dict[str, str] = field(default_factory=dict)
    is_classifier: bool = False
    check_anchors: Callable[[], None] = lambda: None


def norm_names(ours: str, theirs: str) -> Names:
    """Yield the names of a batch normalization's tensors."""
    for kind in ("weight", "bias", "running_mean", "running_var"):
        yield f"{ours}.{kind}", f"{theirs}.{kind}", unchanged


def conv_norm_names(ours: str, conv: str, norm: str) -> Names:
    """Yield the names of a convolution without bias, and of its normalization, which are numbered in ours."""
    yield f"{ours}.0.weight", f"{conv}.weight", unchanged
    yield from norm_names(f"{ours}.1", norm)


def map_names(
    network: object, names: Names, state: Mapping[str, Tensor], path: Path, categories: Categories | None = None
) -> SourceWeights:
    """Return a file's tensors by our names; those that the file lacks are left out.

    Args:
        names: Of every tensor of the layout.
        state: The file's tensors.
        path: The file, for errors.

    Raises:
        CheckpointError: If a tensor's shape does not allow its change.
    """
    table = {ours: (theirs, change) for ours, theirs, change in names}
    present = {ours: entry for ours, entry in table.items() if entry[0] in state}
    values = {ours: _changed(change, state[theirs], theirs, path) for ours, (theirs, change) in present.items()}
    sources = {ours: theirs for ours, (theirs, _) in present.items()}
    used = set(sources.values())
    unused = {name: "no part of the network has it" for name in state if name not in used}
    in_classifier = isinstance(network, Network) and all(network.parts.in_classifier(name) for name in table)
    return SourceWeights(values, sources, unused, categories, is_classifier=in_classifier)


def _changed(change: Callable[[Tensor], Tensor], value: Tensor, name: str, path: Path) -> Tensor:
    try:
        return change(value)
    except (IndexError, RuntimeError) as error:
        pass_shortage(error, str(path))
        raise CheckpointError(f"{path}: {name} has shape {list(value.shape)}: {error}") from None


# Indices of the convolutions in torchvision's VGG-16, and in the ports' lists of layers.
_VGG_LAYERS = ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))
_REDUCED = (31, 33)


def both(ours: str, theirs: str, change: Callable[[Tensor], Tensor] = unchanged) -> Names:
    """Yield the names of a layer's kernel and bias."""
    for kind in ("weight", "bias"):
        yield f"{ours}.{kind}", f"{theirs}.{kind}", change


def stages(prefix: str) -> Names:
    """Yield the names of the convolutions below the classifier."""
    for stage, layers in enumerate(_VGG_LAYERS):
        for number, layer in enumerate(layers):
            yield from both(f"backbone.stages.{stage}.{2 * number}", f"{prefix}{layer}")


def reduced_vgg(prefix: str) -> Names:
    """Yield the names of a VGG-16 whose classifier was converted to convolutions."""
    yield from stages(prefix)
    for place, layer in enumerate(_REDUCED):
        yield from both(f"backbone.converted.{2 * place}", f"{prefix}{layer}")
