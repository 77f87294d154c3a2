"""A caller's own data and detector, in place of those that a configuration describes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

from boxwright.base.errors import ConfigError
from boxwright.base.files import as_here
from boxwright.data.dataset import Dataset
from boxwright.data.label_map import load_label_map
from boxwright.data.own_dataset import Collection, as_dataset
from boxwright.nn.detector import Detector
from boxwright.pipeline.load import Overrides, load_config, with_overrides
from boxwright.pipeline.messages import (
    DetectionModel,
    ExperimentalModel,
    ExternalInputReader,
    InputReader,
    TrainEvalPipelineConfig,
)
from boxwright.pipeline.tf_overrides import apply_tf_overrides

Config = str | Path | TrainEvalPipelineConfig


def copied_config(config: Config, overrides: Overrides = ()) -> TrainEvalPipelineConfig:
    """Return a configuration with overrides, a copy that may be changed."""
    if not isinstance(config, TrainEvalPipelineConfig):
        return load_config(config, overrides)
    if not isinstance(overrides, Mapping):
        return with_overrides(config, overrides)
    # TensorFlow's overrides change a configuration in place.
    changed = copy.deepcopy(config)
    apply_tf_overrides(changed, overrides)
    return changed


def use_own_data(config: TrainEvalPipelineConfig, dataset: Dataset | Collection) -> Dataset:
    """Return the caller's data; the configuration's reader becomes `external_input_reader`."""
    reader = config.train_input_reader or InputReader()
    known = load_label_map(as_here(reader.label_map_path)) if reader.label_map_path else None
    reader.set("external_input_reader", ExternalInputReader(), None)
    config.set("train_input_reader", reader, None)
    # New messages do not know yet where they are, which refusals name.
    config.set_path()
    own = as_dataset(dataset, known, reader.white_level)
    own.load_masks = reader.load_instance_masks
    return own


def use_own_detector(config: TrainEvalPipelineConfig, detector: Detector) -> None:
    """Replace the configuration's model by `experimental_model`; anything but a `Detector` is a ConfigError."""
    if not isinstance(detector, Detector):
        raise ConfigError(
            f"detector: expected a boxwright.Detector, found {type(detector).__name__}; "
            "boxwright.Detector(preprocessor, network, criterion, postprocessor, num_classes=...) assembles one"
        )
    replaced = config.model.which("model") if config.model is not None else None
    if replaced not in (None, "experimental_model"):
        config.notes.append(f"model.{replaced} is replaced by the detector that was passed to train")
    model, named = DetectionModel(), ExperimentalModel()
    named.set("name", type(detector.network).__name__, None)
    model.set("experimental_model", named, None)
    config.set("model", model, None)
    config.set_path()
