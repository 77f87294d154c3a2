"""Restoring whole detectors: configuration, classes and weights."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from boxwright.base.device import usual_modes
from boxwright.base.errors import CheckpointError
from boxwright.base.files import as_here, is_file, shown
from boxwright.data.label_map import load_label_map
from boxwright.nn.detector import Detector
from boxwright.nn.network import is_within
from boxwright.pipeline import messages as m
from boxwright.pipeline.data_paths import is_placeholder
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config, with_overrides
from boxwright.pipeline.message import white_level
from boxwright.pipeline.tensorflow_version import keep_version, tensorflow_version
from boxwright.runtime.formats import EXPORTS
from boxwright.types import Categories
from boxwright.types.categories import coco_classes_by_id
from boxwright.weights.export_weights import CONFIG, WEIGHTS, is_weights_folder, step_in
from boxwright.weights.fetch import identify_published
from boxwright.weights.initial_shares import debiased
from boxwright.weights.known_answers import check_known_answers
from boxwright.weights.load_weights import check_finite, load_weights
from boxwright.weights.sources import describe_weights, is_state_dict, is_tensorflow, refuse_export, tensorflow_source
from boxwright.weights.store import find_checkpoint, nearby, read_config
from boxwright.weights.stored_anchors import with_stored_anchors
from boxwright.weights.tensorflow.checkpoint import open_tensorflow, read_step
from boxwright.weights.zoo_archive import is_archive, unpacked

_COCO_IDS = 90
# Suffixes of files that nothing tells the meaning of an extractor, or that are no source of weights.
_WITHOUT_CONFIG = (".safetensors", *EXPORTS)


@usual_modes()
def restore_detector(
    checkpoint: str | Path,
    *,
    config: m.TrainEvalPipelineConfig | None = None,
    use_average: bool | None = None,
    categories: Categories | None = None,
) -> tuple[Detector, m.TrainEvalPipelineConfig, int]:
    """Rebuild a detector from a checkpoint.

    Ours have configuration, classes and weights. A TF2 checkpoint has only weights: its configuration is the argument,
    or `pipeline.config` in its folder or up to two above, where TF exports it; its classes are those of the label map
    in the configuration, if that file exists.

    Args:
        checkpoint: One of our checkpoints, a run's folder (of which the newest is used), a TF2 checkpoint (prefix or
            folder), a SavedModel's folder, or a folder with `model.safetensors` and its `pipeline.config`.
        config: A configuration whose model replaces the checkpoint's own, to change post-processing, for example; its
            network must be the same.
        use_average: Whether to use the moving average of the weights; None for the configuration's
            `eval_config.use_moving_averages`.
        categories: Replaces the classes of the checkpoint or its configuration's label map.

    Returns:
        The detector in evaluation mode, its configuration, and the number of training steps.

    Raises:
        CheckpointError: If there is no checkpoint, or no average in it.
    """
    refuse_export(checkpoint)
    file = Path(checkpoint) / WEIGHTS if is_weights_folder(Path(checkpoint)) else Path(checkpoint)
    published, digest = identify_published(file)
    as_published = config is None or config.model is None
    if published is not None:
        # An archive is opened with the configuration in it.
        if as_published and not is_archive(file):
            config = published.configuration()
        categories = categories or published.categories
    # Fresh weights are drawn before those of the checkpoint replace them; the caller's random numbers go on as before.
    with unpacked(checkpoint) as path, torch.random.fork_rng(devices=[]):
        detector, config, step = _restore(path, config, use_average=use_average, categories=categories)
    if published is not None:
        if as_published:  # with another configuration, other answers may be right
            check_known_answers(detector, published.name, digest)
        config = copy.deepcopy(config)
        config.pedigree = [published.origin(digest)]
    return detector, config, step


def _restore(
    path: Path,
    config: m.TrainEvalPipelineConfig | None,
    *,
    use_average: bool | None,
    categories: Categories | None,
) -> tuple[Detector, m.TrainEvalPipelineConfig, int]:
    if (theirs := tensorflow_source(path)) is not None:
        return _restore_tensorflow(theirs, config, use_average=use_average, categories=categories)
    if not os.path.exists(path):
        raise CheckpointError(f"{shown(path)}: no such folder or checkpoint{nearby(path)}")
    if (path.suffix.lower() == ".safetensors" and is_file(path)) or is_state_dict(path):
        return _restore_weights(path, config, categories)
    if is_weights_folder(path):
        return _restore_folder(path, config, categories)
    path, content = find_checkpoint(path)
    own = read_config(content, path)
    config = _replaced(own, config)
    own_classes = Categories.from_list(content["categories"]) if content["categories"] else None
    detector = build_detector(config, categories or own_classes)
    dropped = detector.network.drop_training_parts()
    detector.white_level = white_level(config) or white_level(own)
    tensors = dict(content["network"])
    use_average = _wants_average(config, asked=use_average)
    if use_average:
        if not content["average"]:
            raise CheckpointError(f"{path}: eval_config.use_moving_averages is set, but the run kept no average")
        # Statistics of normalization stay those of training, unless they are among the averages.
        tensors |= content["average"]
    train = config.train_config or own.train_config
    if train is None or train.debias_batch_norm:
        tensors |= debiased(content, own, path, use_average=use_average)
    tensors = {name: value for name, value in tensors.items() if not is_within(name, dropped)}
    check_finite(tensors, str(path))
    try:
        detector.network.load_state_dict(tensors)
    except RuntimeError:
        raise CheckpointError(f"{path}: its network is not the one that the configuration describes") from None
    return detector.eval(), config, int(content["step"])


def _replaced(own: m.TrainEvalPipelineConfig, config: m.TrainEvalPipelineConfig | None) -> m.TrainEvalPipelineConfig:
    """Return the configuration that replaces a model's own, with the version and the pedigree of its weights."""
    if config is None or config.model is None:
        return own
    config = copy.deepcopy(keep_version(config, own))
    config.pedigree = own.pedigree
    return config


def _restore_weights(
    path: Path, config: m.TrainEvalPipelineConfig | None, categories: Categories | None
) -> tuple[Detector, m.TrainEvalPipelineConfig, int]:
    """Return the detector of a file of weights alone, whose configuration is given, or follows from the weights."""
    own = None
    if config is None or config.model is None:
        config, own = describe_weights(path)
    detector = build_detector(config, categories or own)
    detector.network.drop_training_parts()
    load_weights(detector, path)
    return detector.eval(), config, 0


def _restore_folder(
    path: Path, config: m.TrainEvalPipelineConfig | None, categories: Categories | None
) -> tuple[Detector, m.TrainEvalPipelineConfig, int]:
    """Return the detector of a folder of weights, whose configuration is given, beside them or follows from them."""
    if not is_file(path / CONFIG):
        return _restore_weights(path / WEIGHTS, config, categories)
    own = load_config(path / CONFIG)
    config = _replaced(own, config)
    detector, config, _ = _restore_weights(path / WEIGHTS, config, categories or _label_map(own, path))
    detector.white_level = white_level(config) or white_level(own)
    return detector, config, step_in(path)


def _wants_average(config: m.TrainEvalPipelineConfig, *, asked: bool | None) -> bool:
    if asked is not None:
        return asked
    return bool(config.eval_config and config.eval_config.use_moving_averages)


def _restore_tensorflow(
    path: Path,
    config: m.TrainEvalPipelineConfig | None,
    *,
    use_average: bool | None,
    categories: Categories | None,
) -> tuple[Detector, m.TrainEvalPipelineConfig, int]:
    if config is None or config.model is None:
        config = load_config(find_config(path))
    config = with_stored_anchors(config, path)
    detector = build_detector(config, categories or _label_map(config, path.parent))
    load_weights(detector, path, use_average=_wants_average(config, asked=use_average))
    return detector.eval(), config, read_step(open_tensorflow(path))


def stored_config(checkpoint: str | Path) -> m.TrainEvalPipelineConfig:
    """Return the configuration in, or next to, a checkpoint.

    Args:
        checkpoint: As for `restore_detector`.

    Returns:
        The configuration.

    Raises:
        CheckpointError: If there is no checkpoint, or no configuration.
    """
    refuse_export(checkpoint)
    with unpacked(checkpoint) as path:
        if (theirs := tensorflow_source(path)) is not None:
            return load_config(find_config(theirs))
        if is_weights_folder(path) and is_file(path / CONFIG):
            return load_config(path / CONFIG)
        newest, content = find_checkpoint(path)
        return read_config(content, newest)


def replacing_config(
    checkpoint: str | Path, config_path: str | Path | None, changes: Sequence[str]
) -> m.TrainEvalPipelineConfig | None:
    """Return the configuration that replaces a checkpoint's own: a file's, or its own changed; None for neither.

    Args:
        checkpoint: As for `restore_detector`.
        config_path: The file, or `preset:NAME`.
        changes: Overrides, such as `model.ssd.num_classes=3`.

    Returns:
        The configuration.
    """
    config = load_config(config_path) if config_path else None
    return with_overrides(config or stored_config(checkpoint), changes) if changes else config


def other_meaning(source: str | Path, config: m.TrainEvalPipelineConfig) -> str:
    """Return a warning if one of our checkpoints uses the other TensorFlow's meaning of its extractor; else empty."""
    path = Path(source)
    if is_tensorflow(path) or is_archive(path) or is_state_dict(path) or not os.path.exists(path):
        return ""
    if path.suffix.lower() in _WITHOUT_CONFIG:
        return ""
    if is_weights_folder(path) and not is_file(path / CONFIG):  # such as transformers'
        return ""
    theirs, ours = tensorflow_version(stored_config(path).model), tensorflow_version(config.model)
    if theirs == ours:
        return ""
    return (
        f"{source} was trained with TensorFlow {theirs}'s meaning of its extractor, and this run has {ours}'s; "
        f"feature_extractor {{ tensorflow_version: {theirs} }} keeps it, where the type has one"
    )


def find_config(checkpoint: str | Path) -> Path:
    """Return the configuration next to a TF2 checkpoint.

    Args:
        checkpoint: The checkpoint's prefix.

    Returns:
        `pipeline.config` beside the checkpoint, or up to two folders above.

    Raises:
        CheckpointError: If there is none.
    """
    path = Path(checkpoint)
    # TF2 exports NAME/pipeline.config, NAME/checkpoint/ckpt-0 and NAME/saved_model/variables/variables.
    folders = [path.parent, path.parent.parent, path.parent.parent.parent]
    config_path = next((folder / "pipeline.config" for folder in folders if is_file(folder / "pipeline.config")), None)
    if config_path is None:
        raise CheckpointError(f"{path}: there is no pipeline.config beside or above it; pass the configuration")
    return config_path


def _label_map(config: m.TrainEvalPipelineConfig, folder: Path) -> Categories | None:
    """Return the classes, which are optional, as they only provide names."""
    readers = [*config.eval_input_reader, *([config.train_input_reader] if config.train_input_reader else [])]
    named = [reader.label_map_path for reader in readers if reader.label_map_path]
    paths = [*(Path(as_here(path)) for path in named), folder / "label_map.pbtxt"]
    label_map_path = next((path for path in paths if is_file(path)), None)
    if label_map_path is not None:
        return load_label_map(label_map_path)
    # Those of the zoo's detectors that have 90 classes are COCO's; only they leave the label map to their user.
    of_the_zoo = any(map(is_placeholder, named))
    num_classes = getattr(config.model.chosen("model"), "num_classes", 0) if config.model is not None else 0
    return coco_classes_by_id() if of_the_zoo and num_classes == _COCO_IDS else None
