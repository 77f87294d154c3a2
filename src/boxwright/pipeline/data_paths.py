"""Relative paths of data: from the current folder, as in TensorFlow, or else from the folder of the configuration."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from boxwright.base.errors import ConfigError
from boxwright.config.message import Message
from boxwright.config.preset import defining_folder
from boxwright.pipeline.messages import TrainEvalPipelineConfig

_FIELDS = frozenset(
    (
        *("label_map_path", "sample_list", "input_path", "annotations", "image_folder", "root", "data", "subsets"),
        *("class_descriptions", "image_labels", "keypoint_label_map_path"),
    )
)


# What the configurations of TensorFlow's model zoo say in place of each path.
_PLACEHOLDER = "PATH_TO_BE_CONFIGURED"


def is_placeholder(path: str) -> bool:
    """Return whether a path is one that the model zoo leaves to its user."""
    return path.startswith(_PLACEHOLDER)


def placeholder_of_data(reader: Message) -> str:
    """Return the first path of a reader's data that is left to its user; empty if there is none.

    A label map is none of the data: classes may be known without it.
    """
    named = ((name, getattr(message, name)) for message, name in _paths(reader) if name != "label_map_path")
    values = (path for _, value in named for path in (value if isinstance(value, list) else [value]))
    return next((path for path in values if is_placeholder(path)), "")


def require_data(reader: Message, path: str) -> None:
    """Raise a ConfigError if a reader's data are left to its user.

    Args:
        path: The reader's, in the configuration.
    """
    if left := placeholder_of_data(reader):
        given = 'coco_input_reader { annotations: "val.json" image_folder: "val" }'
        # The error names no file and line, as an archive's configuration was unpacked for a moment.
        raise ConfigError(
            f"{path}: {left} stands for your data; name them, as in --set '{path.partition('[')[0]} {{ {given} }}'"
        )


def forget_placeholders(config: TrainEvalPipelineConfig) -> None:
    """Remove evaluation readers of placeholders where others name their data: an override appends to the zoo's."""
    named = [reader for reader in config.eval_input_reader if not placeholder_of_data(reader)]
    if named and len(named) < len(config.eval_input_reader):
        config.set("eval_input_reader", named, config.location("eval_input_reader"))


def find_data_beside(config: TrainEvalPipelineConfig) -> None:
    """Replace relative paths that exist only beside the file that names them, and note each in `notes`."""
    parts: list[Message | None] = [config.train_input_reader, *config.eval_input_reader]
    parts.append(config.model and config.model.center_net)  # which names the file of its keypoints
    for message, name in (pair for part in parts if part is not None for pair in _paths(part)):
        where, value = message.location(name), getattr(message, name)
        folder = defining_folder(where)
        if where is None or folder is None:
            continue
        located = (
            [_resolve_beside(path, folder) for path in value]
            if isinstance(value, list)
            else _resolve_beside(value, folder)
        )
        if located != value:
            message.set(name, located, where)
            config.notes.append(f"{name}: relative to {where.file}, as the current folder does not have it")


def lost_path(reader: Message) -> str:
    """Return the first relative path of a reader whose file or folder is not in the current folder; empty if none."""
    named = (getattr(message, name) for message, name in _paths(reader))
    paths = [path for value in named for path in (value if isinstance(value, list) else [value])]
    first = ((path, Path(path).parts[:1]) for path in paths if path and not os.path.isabs(path) and ":" not in path)
    # Patterns of records, as train.record@10, may name files that are there.
    return next((path for path, (part,) in first if not os.path.exists(part) and not set(part) & set("*?[@")), "")


def _paths(reader: Message) -> Iterator[tuple[Message, str]]:
    for name, value in reader.present().items():
        if isinstance(value, Message):
            yield from _paths(value)
        elif name in _FIELDS:
            yield reader, name


def _resolve_beside(path: str, folder: Path) -> str:
    beside = os.path.join(folder, path)
    return beside if path and not os.path.isabs(path) and not _exists(path) and _exists(beside) else path


def _exists(path: str) -> bool:
    return os.path.exists(path) or bool(glob.glob(path))
