"""The fields that a configuration lacks for training, with what to write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from boxwright.base.errors import ConfigError
from boxwright.config.message import Message
from boxwright.pipeline import messages as m
from boxwright.pipeline.tensorflow_version import tensorflow_version


@dataclass(frozen=True)
class MissingField:
    """A missing field.

    Attributes:
        text: One line with its place and what to write.
    """

    path: str
    text: str

    def __str__(self) -> str:
        return self.text


def missing_for_training(config: m.TrainEvalPipelineConfig) -> list[MissingField]:
    """Return the missing fields in the order of a file; empty if training can start."""
    return [*_missing_from_model(config), *_missing_from_training(config), *_missing_from_reader(config)]


def _lacks(message: Message, field: str, what: str) -> MissingField:
    return MissingField(message.field_path(field), str(message.refusal(field, what)))


def require_for_training(config: m.TrainEvalPipelineConfig) -> None:
    """Raise a ConfigError that names all fields missing for training."""
    if config.has("preset"):
        raise config.refusal("preset", "presets are applied when a configuration is read from a file, by load_config")
    if lines := missing_for_training(config):
        raise ConfigError("\n".join(["training cannot start, as this is missing:", *(f"  {line}" for line in lines)]))


def _missing_from_model(config: m.TrainEvalPipelineConfig) -> Iterator[MissingField]:
    family = config.model.which("model") if config.model is not None else None
    if family is None:
        yield _lacks(
            config,
            "model",
            'the detector; write preset: "ssd_mobilenet_v2_fpnlite_320" (see `boxwright models`), or model { … }',
        )
        return
    chosen: Any = getattr(config.model, family)
    if getattr(chosen, "num_classes", 1) < 1:
        yield _lacks(chosen, "num_classes", "how many classes the label map has; write num_classes: 3 at the top")


def _missing_from_training(config: m.TrainEvalPipelineConfig) -> Iterator[MissingField]:
    train = config.train_config or m.TrainConfig()
    if config.train_config is None:
        yield _lacks(
            config, "train_config.batch_size", "images a step, 32 by default; write train_config { batch_size: 16 }"
        )
    if train.num_steps < 1 and not can_be_endless(config):
        what = "how long to train; write train_config { num_steps: 20000 }"
        if _schedule(train) == "cosine_decay_learning_rate":
            what += " (a cosine ends at its total_steps; a constant, exponential or manual rate needs no limit)"
        yield _lacks(config, "train_config.num_steps", what)
    optimizer = train.optimizer
    member = optimizer.which("optimizer") if optimizer is not None else None
    rate = "learning_rate { cosine_decay_learning_rate { learning_rate_base: 0.001 total_steps: 20000 } }"
    if optimizer is None or member is None:
        what = f"how weights learn; write train_config {{ optimizer {{ adam_optimizer {{ {rate} }} }} }}"
        yield _lacks(config, "train_config.optimizer", what)
    elif getattr(optimizer, member).learning_rate is None:
        yield _lacks(getattr(optimizer, member), "learning_rate", f"how fast weights learn; write {rate}")


def can_be_endless(config: m.TrainEvalPipelineConfig) -> bool:
    """Return whether a run needs no number of steps: in TF1, or if its learning rate has no end."""
    if config.train_config is None:
        return False
    rates = ("constant_learning_rate", "exponential_decay_learning_rate", "manual_step_learning_rate")
    return tensorflow_version(config.model) == 1 or _schedule(config.train_config) in rates


def _schedule(train: m.TrainConfig) -> str | None:
    """Return the kind of the learning rate; None if there is none."""
    member = None if train.optimizer is None else train.optimizer.which("optimizer")
    rate = None if member is None else getattr(train.optimizer, member).learning_rate
    return None if rate is None else rate.which("learning_rate")


def _missing_from_reader(config: m.TrainEvalPipelineConfig) -> Iterator[MissingField]:
    reader = config.train_input_reader
    if reader is None or reader.which("input_reader") is None:
        yield _lacks(
            config,
            "train_input_reader",
            'the training data; write train_input_reader { label_map_path: "map.pbtxt" '
            'tf_record_input_reader { input_path: "train.record" } }, or in it coco_input_reader { annotations: '
            '"train.json" }, voc_input_reader { root: "folder" } or yolo_input_reader { data: "data.yaml" }',
        )
        return
    records = reader.tf_record_input_reader
    if records is not None and not reader.label_map_path:
        yield _lacks(
            reader,
            "label_map_path",
            'records name classes by number, and the label map says what they are; write label_map_path: "map.pbtxt"',
        )
    if records is not None and not any(records.input_path):
        yield _lacks(records, "input_path", 'the files; write input_path: "train.record-?????-of-00010"')
