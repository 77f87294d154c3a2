"""Writing a detector's weights: a TF2 checkpoint, safetensors, transformers' folder, or the one that the hub keeps.

The hub's folder has weights, configuration and classes as separate files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from boxwright.base.errors import CheckpointError
from boxwright.base.files import is_file, is_folder, make_folder, read_file, shown, write_whole
from boxwright.base.safetensors_file import pack_safetensors
from boxwright.config.load import dump_message, parse_message
from boxwright.config.message import find_fields
from boxwright.config.preset import packaged
from boxwright.data.label_map import label_map_text, write_label_map
from boxwright.families.table import find_family
from boxwright.nn.detector import Detector
from boxwright.nn.network import evaluation_mode
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.pipeline import messages as m
from boxwright.pipeline.load import load_config
from boxwright.types import Categories
from boxwright.weights.tensorflow.bundle import write_bundle
from boxwright.weights.tensorflow.variables import to_tensorflow


def weights_sha256(detector: Detector) -> str:
    """Return the SHA-256 of a detector's weights, by name, shape and value."""
    digest = hashlib.sha256()
    for name, value in sorted(detector.network.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        # As bytes, since NumPy has no bfloat16.
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


WEIGHTS, CONFIG, LABELS, KEYPOINTS, ABOUT = (
    *("model.safetensors", "pipeline.config", "label_map.pbtxt"),
    *("keypoint_label_map.pbtxt", "config.json"),
)
FILES = (WEIGHTS, CONFIG, LABELS, KEYPOINTS, ABOUT)
# Paths and addresses of the machine that trained, which mean nothing elsewhere and are nobody's business.
_LOCAL = (
    *("fine_tune_checkpoint", "teacher_checkpoint", "dense_pose_symmetry"),
    *("visualization_export_dir", "export_path", "eval_master"),
)


def pack_weights_folder(detector: Detector, config: m.TrainEvalPipelineConfig, step: int) -> dict[str, bytes]:
    """Return the files that a model consists of, name to content.

    The configuration is without readers of data and without paths.

    Raises:
        CheckpointError: If the file that names the keypoints is missing.
    """
    config, keypoints = published_config(config)
    about = {
        "library_name": "boxwright",
        "boxwright_version": version("boxwright"),
        "architecture": config.model.which("model") if config.model else None,
        "step": step,
    }
    texts = {CONFIG: dump_message(config), ABOUT: json.dumps(about, indent=2) + "\n", **keypoints}
    if detector.categories is not None:
        texts[LABELS] = label_map_text(detector.categories)
    return {WEIGHTS: serialize_safetensors(detector), **{name: text.encode() for name, text in texts.items()}}


def published_config(
    config: m.TrainEvalPipelineConfig,
) -> tuple[m.TrainEvalPipelineConfig, dict[str, str]]:
    """Return a copy of a configuration without what only its machine has, and the files that it needs beside it."""
    copy = parse_message(dump_message(config), m.TrainEvalPipelineConfig)
    copy.clear("train_input_reader")
    copy.clear("eval_input_reader")
    for message, name in list(find_fields(copy, _LOCAL)):
        message.clear(name)
    center_net = copy.model.center_net if copy.model else None
    if center_net is None or not center_net.keypoint_label_map_path:
        return copy, {}
    text = read_file(packaged(center_net.keypoint_label_map_path), CheckpointError).decode("utf-8", "replace")
    center_net.keypoint_label_map_path = KEYPOINTS
    return copy, {KEYPOINTS: text}


def is_weights_folder(path: Path) -> bool:
    """Return whether a path is such a folder, not that of a run."""
    return is_folder(path) and is_file(path / WEIGHTS) and not any(path.glob("ckpt-*.pt"))


def step_in(folder: Path) -> int:
    """Return the number of training steps of a model in such a folder; 0 if it is not said.

    Raises:
        CheckpointError: If the file that says it is not readable.
    """
    path = folder / ABOUT
    if not is_file(path):
        return 0
    try:
        about: Any = json.loads(read_file(path, CheckpointError))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{shown(path)}: not readable as JSON: {str(error)[:200]}") from None
    step = about.get("step", 0) if isinstance(about, Mapping) else None
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 1 << 63:
        raise CheckpointError(f"{shown(path)}: expected an object whose step is a whole number, if it has one")
    return step


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


def refuse_other_models_folder(folder: Path, config: m.TrainEvalPipelineConfig) -> None:
    """Raise if a folder has checkpoints of another model, whose list of checkpoints the next one would replace.

    Raises:
        CheckpointError: If its `pipeline.config` describes another model, or it has checkpoints and none is there.
    """
    if not is_file(folder / "checkpoint"):
        return
    beside = folder / CONFIG
    own = load_config(beside).model if is_file(beside) else None
    if own != config.model:
        raise CheckpointError(f"{shown(folder)}: has checkpoints of another model; name another folder")


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
    return write_whole(path, serialize_safetensors(detector))


def serialize_safetensors(detector: Detector) -> bytes:
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
    family = find_family(model) if model is not None and model.experimental_model is None else None
    if model is None or family is None or family.write_transformers is None:
        raise CheckpointError("--format transformers: only D-FINE has a layout of transformers'; use safetensors")
    return family.write_transformers(detector, model.chosen("model"), folder)
