"""A folder with a model's weights, configuration and classes as separate files: what the hub keeps of a model.

The digest by which a detector's weights are known again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from boxwright.base.errors import CheckpointError
from boxwright.base.files import is_file, is_folder, read_file, shown
from boxwright.config.load import dump_message, parse_message
from boxwright.config.message import find_fields
from boxwright.config.preset import packaged
from boxwright.data.label_map import label_map_text
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.weights.export_weights import safetensors_of


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
_LOCAL = ("fine_tune_checkpoint", "dense_pose_symmetry", "visualization_export_dir", "export_path", "eval_master")


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
    return {WEIGHTS: safetensors_of(detector), **{name: text.encode() for name, text in texts.items()}}


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
