"""Exporting a detector's weights: a TF2 checkpoint, or safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from boxwright.base.errors import CheckpointError
from boxwright.base.files import make_folder, write_whole
from boxwright.base.safetensors_file import pack_safetensors
from boxwright.config.load import dump_message
from boxwright.data.label_map import write_label_map
from boxwright.families.table import family_of
from boxwright.nn.detector import Detector
from boxwright.nn.network import evaluation_mode
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.pipeline import messages as m
from boxwright.types import Categories
from boxwright.weights.tensorflow.bundle import write_bundle
from boxwright.weights.tensorflow.variables import to_tensorflow


def write_tensorflow_checkpoint(detector: Detector, prefix: str | Path, *, step: int = 0) -> Path:
    """Write a checkpoint like TF2's `tf.train.Checkpoint(model=…, step=…)`, or TF1's saver for a network of TF1's.

    TensorFlow can restore it, as can `load_weights`; it has no optimizer state.

    Args:
        prefix: Such as `folder/ckpt-1`.

    Raises:
        CheckpointError: If TF has no such network, or the disk is full.
    """
    with evaluation_mode(detector):  # which takes the start out of statistics in training
        arrays, aliases = to_tensorflow(detector.network)
        if aliases is None:
            return write_bundle(prefix, {**arrays, "global_step": np.array(step, np.int64)}, None)
        # `tf.train.Checkpoint` counts its saves in a variable of its own, and misses it otherwise.
        counters = {"step": step, "save_counter": 1}
        numbers = {f"{name}{ATTRIBUTE}": np.array(value, np.int64) for name, value in counters.items()}
        return write_bundle(prefix, {**arrays, **numbers}, aliases)


def write_description(folder: str | Path, config: m.TrainEvalPipelineConfig, categories: Categories | None) -> None:
    """Write `pipeline.config` and `label_map.pbtxt` beside a TF2 checkpoint, unless they exist."""
    path = Path(folder) / "pipeline.config"
    if not path.exists():
        write_whole(path, dump_message(config))
    labels = Path(folder) / "label_map.pbtxt"
    if categories is not None and not labels.exists():
        write_label_map(categories, labels)


def write_safetensors(detector: Detector, path: str | Path) -> Path:
    """Write the weights with our names.

    Raises:
        OutputError: If the file cannot be written.
    """
    path = Path(path)
    make_folder(path.parent)
    return write_whole(path, safetensors_of(detector))


def safetensors_of(detector: Detector) -> bytes:
    """Return the bytes of a file of the weights with our names."""
    with evaluation_mode(detector):  # which takes the start out of statistics in training
        state = detector.network.state_dict()
        # Nothing reads PyTorch's counts of batches, and TF's checkpoints have none.
        return pack_safetensors({n: v for n, v in state.items() if not n.endswith("num_batches_tracked")})


def write_transformers(detector: Detector, config: m.TrainEvalPipelineConfig, folder: Path) -> Path:
    """Write a detector's weights as a folder that the transformers library opens; return the file of weights.

    Args:
        detector: Of `config`.
        folder: Is made; files in it are replaced.

    Raises:
        CheckpointError: If transformers has no such network.
        OutputError: If a file cannot be written.
    """
    model = config.model
    family = family_of(model) if model is not None and model.experimental_model is None else None
    if model is None or family is None or family.write_transformers is None:
        raise CheckpointError("--format transformers: only D-FINE has a layout of transformers'; use safetensors")
    return family.write_transformers(detector, model.chosen("model"), folder)
