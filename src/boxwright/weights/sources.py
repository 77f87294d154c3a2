"""Sources of weights: our checkpoints, safetensors, TensorFlow's formats, `.pth` files, mappings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, nn

from boxwright.base.errors import CheckpointError
from boxwright.base.files import is_file, is_folder, read_file, shown
from boxwright.base.safetensors_file import read_safetensors
from boxwright.families.shared.source_weights import FileFacts, SourceWeights
from boxwright.families.table import families
from boxwright.nn.ops.boxes import BoxCoder
from boxwright.pipeline import messages as m
from boxwright.runtime.foreign_file import foreign_file
from boxwright.runtime.formats import CHECKPOINT_NAME, is_export
from boxwright.types import Categories
from boxwright.weights.export_weights import WEIGHTS, is_weights_folder
from boxwright.weights.initial_shares import debiased
from boxwright.weights.published import published_weights
from boxwright.weights.pytorch_names import from_pytorch, read_training_state
from boxwright.weights.store import find_checkpoint, is_sealed, read_config
from boxwright.weights.stored_anchors import anchors_beside, check_stored_anchors, has_ssd_anchors
from boxwright.weights.tensorflow.checkpoint import find_tensorflow, open_tensorflow
from boxwright.weights.tensorflow.variables import RestoredVariables, from_tensorflow
from boxwright.weights.zoo_archive import unpacked


def tensorflow_source(source: str | Path) -> Path | None:
    """Return the result of `find_tensorflow`; None for a folder with our checkpoints, which take precedence."""
    path = Path(source)
    ours = is_folder(path) and any(path.glob("ckpt-*.pt"))
    return None if ours else find_tensorflow(path)


def is_tensorflow(source: str | Path) -> bool:
    """Return whether a path is a TensorFlow checkpoint."""
    return tensorflow_source(source) is not None


def refuse_export(source: str | Path) -> None:
    """Raise a CheckpointError for an exported file, Boxwright's or another's, which has no weights to restore."""
    path = Path(source)
    if not is_export(path) or not is_file(path):
        return
    own = "is exported, for detection alone (boxwright predict): pass the run or checkpoint that it was exported from"
    raise CheckpointError(f"{shown(path)} {foreign_file(read_file(path, CheckpointError), path.suffix.lower()) or own}")


def read_source(
    network: nn.Module,
    source: str | Path | Mapping[str, NDArray[Any]],
    *,
    use_average: bool = False,
    coder: BoxCoder | None = None,
) -> SourceWeights:
    """Return a source's weights by our names.

    Args:
        source: As for `load_weights`.
        use_average: Whether to use moving averages of the weights.
        coder: Of the detector's boxes, for sources whose boxes are coded otherwise.

    Raises:
        CheckpointError: If the source cannot be read, or has no averages.
    """
    if isinstance(source, Mapping):
        return _theirs(from_tensorflow(network, source, use_average=use_average))
    refuse_export(source)
    with unpacked(source) as path:
        return _read(network, path, use_average=use_average, coder=coder)


def _read(network: nn.Module, path: Path, *, use_average: bool, coder: BoxCoder | None) -> SourceWeights:
    if (theirs := tensorflow_source(path)) is not None:
        # Here, as an archive is unpacked for a moment only.
        stored = anchors_beside(theirs) if has_ssd_anchors(network) else ()
        weights = _theirs(from_tensorflow(network, open_tensorflow(theirs), use_average=use_average))
        return replace(weights, check_anchors=lambda: check_stored_anchors(network, stored, theirs))
    if path.suffix.lower() == ".safetensors":
        if use_average:
            raise CheckpointError(f"{path}: moving averages were requested, but safetensors files have none")
        tensors = read_safetensors(path)
        # With a single name of ours it is meant to be ours; what it lacks is then said name by name.
        ours = not tensors.keys().isdisjoint(network.state_dict())
        return SourceWeights(tensors) if ours else from_pytorch(network, tensors, path, coder)
    if is_state_dict(path):
        if use_average:
            raise CheckpointError(f"{path}: moving averages were requested, but {path.suffix} files have none")
        tensors, facts = read_training_state(path)
        return _from_state_dict(network, tensors, path, coder, facts)
    if is_weights_folder(path):
        return _read(network, path / WEIGHTS, use_average=use_average, coder=coder)
    return _ours(path, use_average=use_average)


def is_state_dict(path: Path) -> bool:
    """Return whether a file is by its name one of tensors by names that torch.save wrote, not a run's checkpoint."""
    suffix = path.suffix.lower()
    return suffix == ".pth" or (suffix in (".pt", ".bin", ".ckpt") and is_file(path) and not _is_checkpoint(path))


def _is_checkpoint(path: Path) -> bool:
    return CHECKPOINT_NAME.fullmatch(path.name) is not None or (path.suffix.lower() == ".pt" and is_sealed(path))


def _from_state_dict(
    network: nn.Module, tensors: Mapping[str, Tensor], path: Path, coder: BoxCoder | None, facts: FileFacts
) -> SourceWeights:
    """Return the weights of a network like this one, whatever was put before their names, or of a known layout."""
    shapes = {name: value.shape for name, value in network.state_dict().items() if value.ndim}
    own = _without_prefix(tensors, shapes)
    if all(name in own and own[name].shape == shape for name, shape in shapes.items()):
        return SourceWeights(own)
    try:
        return from_pytorch(network, tensors, path, coder, facts)
    except CheckpointError:
        # With some names of ours it is meant to be ours; what it lacks is then said name by name.
        if not own:
            raise
        return SourceWeights(own)


def _without_prefix(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return tensors by our names, which may follow those of modules around the network; empty without any."""
    for own in names:
        for name in tensors:
            if name == own or name.endswith(f".{own}"):
                prefix = name.removesuffix(own)
                within = {other: value for other, value in tensors.items() if other.startswith(prefix)}
                # A counter that no layer reads.
                return {
                    other.removeprefix(prefix): value
                    for other, value in within.items()
                    if not other.endswith("num_batches_tracked")
                }
    return {}


def _theirs(variables: RestoredVariables) -> SourceWeights:
    return SourceWeights(variables.values, variables.keys, variables.unused, missing=variables.unnamed)


def _ours(path: Path, *, use_average: bool) -> SourceWeights:
    path, content = find_checkpoint(path)
    if use_average and not content["average"]:
        raise CheckpointError(f"{path}: moving averages were requested, but the run kept none")
    values = {name: value for name, value in content["network"].items() if "num_batches_tracked" not in name}
    values |= content["average"] if use_average else {}
    config = read_config(content, path)
    if config.train_config is None or config.train_config.debias_batch_norm:
        values |= debiased(content, config, path, use_average=use_average)
    categories = Categories.from_list(content["categories"]) if content["categories"] else None
    return SourceWeights(values, categories=categories)


def describe_weights(path: Path) -> tuple[m.TrainEvalPipelineConfig, Categories | None]:
    """Return the configuration that a file of another project's weights tells, and its classes where they are known.

    Args:
        path: A `.safetensors` file, or one that torch.save wrote.

    Raises:
        CheckpointError: If the names of its tensors are of no family's layout, or do not tell the rest.
    """
    tensors, facts = read_training_state(path) if is_state_dict(path) else (read_safetensors(path), FileFacts())
    published = next(
        (entry for entry in published_weights() if entry.file == path.name and entry.opens and entry.presets), None
    )
    model = published.configuration().model if published is not None else None
    facts = replace(facts, published=model.chosen("model") if model is not None else None)
    members = {field.type: name for name, field in m.DetectionModel.fields.items()}
    for family in families():
        if (described := family.describe_weights(tensors, path, facts)) is not None:
            message, categories = described
            model = m.DetectionModel(**{members[type(message)]: message})
            config = m.TrainEvalPipelineConfig(model=model)
            config.set_path()
            return config, categories
    raise CheckpointError(f"{shown(path)}: weights of a network that their names do not tell; pass the configuration")
