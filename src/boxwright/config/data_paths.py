"""Relative paths of data: from the current folder, as in TensorFlow, or else from the folder of the configuration."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from boxwright.config.message import Message
from boxwright.config.messages import TrainEvalPipelineConfig
from boxwright.config.preset import folder_of

_FIELDS = frozenset(
    (
        *("label_map_path", "sample_list", "input_path", "annotations", "image_folder", "root", "data", "subsets"),
        *("class_descriptions", "image_labels", "keypoint_label_map_path"),
    )
)


def find_data_beside(config: TrainEvalPipelineConfig) -> None:
    """Replace relative paths that exist only beside the file that names them, and note each in `notes`."""
    parts: list[Message | None] = [config.train_input_reader, *config.eval_input_reader]
    parts.append(config.model and config.model.center_net)  # which names the file of its keypoints
    for message, name in (found for part in parts if part is not None for found in _paths(part)):
        where, value = message.location(name), getattr(message, name)
        folder = folder_of(where)
        if where is None or folder is None:
            continue
        found = [_beside(path, folder) for path in value] if isinstance(value, list) else _beside(value, folder)
        if found != value:
            message.set(name, found, where)
            config.notes.append(f"{name}: relative to {where.file}, as the current folder does not have it")


def _paths(reader: Message) -> Iterator[tuple[Message, str]]:
    for name, value in reader.present().items():
        if isinstance(value, Message):
            yield from _paths(value)
        elif name in _FIELDS:
            yield reader, name


def _beside(path: str, folder: Path) -> str:
    beside = os.path.join(folder, path)
    return beside if path and not os.path.isabs(path) and not _exists(path) and _exists(beside) else path


def _exists(path: str) -> bool:
    return os.path.exists(path) or bool(glob.glob(path))
