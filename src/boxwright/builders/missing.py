"""What a configuration lacks before it can be trained: all of it at once, and what to write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from boxwright.builders.tensorflow_version import tensorflow_version
from boxwright.config import messages as m
from boxwright.errors import ConfigError

__all__ = ["missing_for_training", "require_for_training"]


def missing_for_training(config: m.TrainEvalPipelineConfig) -> list[str]:
    """Return what a configuration lacks, a line each: the path of a field, and what to write.

    Args:
        config: The whole configuration.

    Returns:
        The lines, in the order in which fields stand in a file; none where training can start.
    """
    return [*_of_model(config.model), *_of_training(config), *_of_reader(config.train_input_reader)]


def require_for_training(config: m.TrainEvalPipelineConfig) -> None:
    """Raise where a configuration lacks anything that training needs.

    Args:
        config: The whole configuration.

    Raises:
        ConfigError: Naming all that is missing.
    """
    if config.has("preset"):
        raise ConfigError("preset: it is laid under a configuration as that is read from a file, by load_config")
    if lines := missing_for_training(config):
        raise ConfigError("\n".join(["training cannot start, as this is missing:", *(f"  {line}" for line in lines)]))


def _of_model(model: m.DetectionModel | None) -> Iterator[str]:
    family = model.which("model") if model is not None else None
    if family is None:
        yield (
            'model: the detector; write preset: "ssd_mobilenet_v2_fpnlite_320" (`boxwright models` lists all), '
            "or model { … }"
        )
        return
    chosen: Any = getattr(model, family)
    if getattr(chosen, "num_classes", 1) < 1:
        yield f"model.{family}.num_classes: how many classes the label map has; write num_classes: 3 at the top"


def _of_training(config: m.TrainEvalPipelineConfig) -> Iterator[str]:
    train = config.train_config or m.TrainConfig()
    if config.train_config is None:
        yield "train_config.batch_size: images a step, 32 where it is left out; write train_config { batch_size: 16 }"
    if train.num_steps < 1 and (config.train_config is None or tensorflow_version(config.model) == 2):
        yield "train_config.num_steps: how long to train; write train_config { num_steps: 20000 }"
    optimizer = train.optimizer
    member = optimizer.which("optimizer") if optimizer is not None else None
    rate = "learning_rate { cosine_decay_learning_rate { learning_rate_base: 0.001 total_steps: 20000 } }"
    if optimizer is None or member is None:
        yield (
            "train_config.optimizer: how weights learn; "
            f"write train_config {{ optimizer {{ adam_optimizer {{ {rate} }} }} }}"
        )
    elif getattr(optimizer, member).learning_rate is None:
        yield f"train_config.optimizer.{member}.learning_rate: how fast weights learn; write {rate}"


def _of_reader(reader: m.InputReader | None) -> Iterator[str]:
    if reader is None or reader.which("input_reader") is None:
        yield (
            'train_input_reader: the training data; write train_input_reader { label_map_path: "map.pbtxt" '
            'tf_record_input_reader { input_path: "train.record" } }, or in it coco_input_reader { annotations: '
            '"train.json" }, voc_input_reader { root: "folder" } or yolo_input_reader { data: "data.yaml" }'
        )
        return
    records = reader.tf_record_input_reader
    if records is not None and not reader.label_map_path:
        yield (
            "train_input_reader.label_map_path: records name classes by number, and the label map says what they are; "
            'write label_map_path: "map.pbtxt"'
        )
    if records is not None and not any(records.input_path):
        yield (
            "train_input_reader.tf_record_input_reader.input_path: the files; "
            'write input_path: "train.record-?????-of-00010"'
        )
