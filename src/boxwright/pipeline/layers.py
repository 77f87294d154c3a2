"""A configuration over a preset: how the two become one, and what they say together.

Laying over follows protobuf's merge (scalars replace, messages merge, a member of a oneof replaces the other), except
that a list which is set replaces the preset's. A merge would append, and so nothing could be taken out of a preset's
list: a user who writes two steps of augmentation wants these two.
"""

from __future__ import annotations

from typing import Any

from boxwright.base.errors import ConfigError
from boxwright.config.message import Message
from boxwright.config.preset import from_preset
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.pipeline.rates import scale_rates
from boxwright.pipeline.run_length import stretch_preset


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
    for name, scale, instead in (
        ("learning_rate_batch_size", scale_rates, "set a learning rate that suits batch_size"),
        ("recipe_steps", stretch_preset, "set schedules that suit num_steps"),
    ):
        if not train.has(name):
            continue
        if not from_preset(train.location(name)):
            raise train.refusal(name, f"stands in presets only; {instead}")
        if note := scale(train):
            config.notes.append(note)
        train.clear(name)
