"""Reading a whole configuration: the file, the preset that it names, and overrides.

A configuration is laid over its preset by protobuf's merge (scalars replace, messages merge, a member of a oneof
replaces the other), except that a list which is set replaces the preset's. A merge would append, and so nothing could
be taken out of a preset's list: a user who writes two steps of augmentation wants these two.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boxwright.base.errors import ConfigError
from boxwright.config.load import load_message
from boxwright.config.message import Message
from boxwright.config.preset import from_preset, preset_path, referred
from boxwright.config.tree import Location
from boxwright.pipeline.data_paths import find_data_beside, forget_placeholders
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.pipeline.overrides import apply_override
from boxwright.pipeline.run_length import fit_recipe, scale_rates, stretch_recipe
from boxwright.pipeline.tf_overrides import apply_tf_overrides

# Changes as `FIELD=VALUE` or pieces of text format, or by TensorFlow's names.
Overrides = Sequence[str] | Mapping[str, Any]


def lay_over(changes: Message, base: Message) -> None:
    """Change a message to what another says; what that leaves out stays.

    Args:
        changes: What is set; fields keep the places where they were.
        base: The message that changes, of the same class.
    """
    for name in base.fields:
        if not changes.has(name) and changes.location(name) is None:  # an empty list that was written counts as set
            continue
        value, current = getattr(changes, name), getattr(base, name)
        if isinstance(value, Message) and base.has(name):
            lay_over(value, current)
            base.set(name, current, changes.location(name))
        else:
            base.set(name, value, changes.location(name))


def set_classes(config: TrainEvalPipelineConfig) -> None:
    """Move the top-level `num_classes` into the model, whatever its family.

    Args:
        config: The whole configuration, which is changed.

    Raises:
        ConfigError: Where there is no model, or the same file gives it another number.
    """
    if not config.has("num_classes"):
        return
    number, place = config.num_classes, config.location("num_classes")
    family = config.model.which("model") if config.model is not None else None
    model: Any = getattr(config.model, family) if family else None
    if model is None or not hasattr(model, "num_classes"):
        raise config.refusal("num_classes", 'there is no model that has classes; name one, as in preset: "NAME"')
    own = model.location("num_classes")
    if own and place and own.file == place.file and model.num_classes != number:
        raise ConfigError(
            f"{place}: num_classes is {number}, but model.{family}.num_classes is {model.num_classes} at line "
            f"{own.line}; remove one of them"
        )
    model.set("num_classes", number, place)
    config.clear("num_classes")


def finish_loading(config: TrainEvalPipelineConfig) -> None:
    """Change a configuration, laid over its preset and with all overrides, to one that names no preset.

    Args:
        config: The whole configuration, which changes; what was decided is added to its notes.

    Raises:
        ConfigError: Where it sets what stands in presets only, or names a preset too late.
    """
    if config.has("preset"):
        raise config.refusal("preset", "it is named by the file itself, or as preset=NAME alone")
    set_classes(config)
    train = config.train_config
    if train is None:
        return
    if train.has("learning_rate_batch_size") and not from_preset(train.location("learning_rate_batch_size")):
        raise train.refusal(
            "learning_rate_batch_size", "stands in presets only; set a learning rate that suits batch_size"
        )
    for name, scale in (("learning_rate_batch_size", scale_rates), ("recipe_steps", stretch_recipe)):
        if train.has(name):
            config.notes.extend(note for note in [scale(train)] if note)
            train.clear(name)


def load_config(path: str | Path, overrides: Overrides = ()) -> TrainEvalPipelineConfig:
    """Read a pipeline configuration.

    Args:
        path: A file in text format, or in YAML or JSON where its name ends in .yaml, .yml or .json; or `preset:NAME`
            for one that comes with Boxwright. A file may name a preset itself, and is then laid over it.
        overrides: Changes, applied in order: `model.ssd.num_classes=3`, or a piece of text format
            that is merged by protobuf's rules, such as `train_config { batch_size: 8 }`; and `preset=NAME`, which
            is laid under the file in place of the one that it names. A dictionary has the names of the TF Object
            Detection API, such as {"learning_rate": 0.01, "train_input_path": "train.record"}.

    Returns:
        The whole configuration, which names no preset; every field remembers where it was set.

    Raises:
        ConfigError: Where the file cannot be read or understood, or an override does not fit.
    """
    by_tf_name: Mapping[str, Any] = {}
    if isinstance(overrides, Mapping):
        by_tf_name, overrides = overrides, ()
    presets = [match[1] for match in map(_PRESET.fullmatch, overrides) if match]
    name = referred(path)
    if name is not None:
        config = _read_preset(presets[-1] if presets else name, None)
    else:
        config = _over_its_preset(load_message(path, TrainEvalPipelineConfig), presets[-1] if presets else "")
    for override in overrides:
        if not _PRESET.fullmatch(override):
            apply_override(config, override)
    apply_tf_overrides(config, by_tf_name)
    finish_loading(config)
    forget_placeholders(config)
    find_data_beside(config)
    config.set_path()
    return config


def with_overrides(config: TrainEvalPipelineConfig, overrides: Sequence[str]) -> TrainEvalPipelineConfig:
    """Return a copy of a whole configuration with overrides applied in order; a ConfigError if one does not fit."""
    changed = copy.deepcopy(config)
    for override in overrides:
        apply_override(changed, override)
    finish_loading(changed)
    forget_placeholders(changed)
    return changed


_PRESET = re.compile(r"""\s*preset\s*=\s*["']?([^"'{}]*?)["']?\s*""")


def _read_preset(name: str, named_at: Location | None) -> TrainEvalPipelineConfig:
    config = _over_its_preset(load_message(preset_path(name, named_at), TrainEvalPipelineConfig))
    train = config.train_config
    if train is not None and train.num_steps:
        train.set("recipe_steps", train.num_steps, train.location("num_steps"))
    if train is not None and train.has("batch_size") and not train.has("learning_rate_batch_size"):
        train.set("learning_rate_batch_size", train.batch_size, train.location("batch_size"))
    return config


def _over_its_preset(config: TrainEvalPipelineConfig, instead: str = "") -> TrainEvalPipelineConfig:
    """Return a configuration laid over the preset that it names, or over another; its classes are the model's."""
    if instead or config.has("preset"):
        base = _read_preset(instead or config.preset, None if instead else config.location("preset"))
        config.clear("preset")
        if config.train_config is not None and base.train_config is not None:
            base.notes.extend(fit_recipe(base.train_config, config.train_config.recipe_steps))
        lay_over(config, base)
        base._start = config._start
        config = base
    set_classes(config)
    return config
