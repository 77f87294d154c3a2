"""A configuration for data from that of a run, whose network and weights it keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from boxwright.base.errors import ConfigError
from boxwright.base.files import is_file
from boxwright.base.text import counted
from boxwright.config.load import dump_message
from boxwright.config.preset import preset_names
from boxwright.pipeline import messages as m
from boxwright.pipeline.message import learns_masks
from boxwright.pipeline.overrides import apply_override
from boxwright.pipeline.run_length import stretch
from boxwright.training.autoconfig.choices import (
    NO_WEIGHTS,
    Choice,
    InitSettings,
    choose_fine_tuning,
    choose_fine_tuning_length,
)
from boxwright.training.autoconfig.data import load_masks
from boxwright.training.autoconfig.write import KEEPING_STATISTICS, family_name, fine_tuning_optimizer
from boxwright.training.length import epochs_text, steps_through
from boxwright.weights.restore import stored_config


def is_run(name: str) -> bool:
    """Return whether a model's name is a run's folder, or a checkpoint in one, and not a preset's."""
    path = Path(name)
    if not name or name in preset_names():
        return False
    return (is_file(path) and path.suffix == ".pt") or any(path.glob("ckpt-*.pt")) or is_file(path / "best.pt")


def adapt_configuration(
    settings: InitSettings, images: int, num_classes: int, train: m.InputReader, held_out: m.InputReader
) -> tuple[m.TrainEvalPipelineConfig, list[Choice]]:
    """Return a run's configuration for other data: its model, augmentation and optimizer, with a recipe to fine-tune.

    Args:
        settings: Their `model` is the run, from whose weights training starts unless they name others.
        images: The number of training images, which decides how long and how fast to train.
        num_classes: That of the data.
        train: Reads the data for training.
        held_out: Reads those for evaluation.

    Raises:
        CheckpointError: If the run has no configuration.
        ConfigError: If it cannot be trained, or a setting is for presets only.
    """
    if settings.minutes is not None:
        raise ConfigError(f"minutes: for presets only; with the configuration of {settings.model}, set epochs")
    config = stored_config(settings.model)
    family, recipe = family_name(config), config.train_config
    model: Any = getattr(config.model, family)
    if recipe is None or recipe.optimizer is None or not hasattr(model, "num_classes"):
        raise ConfigError(f"{settings.model}: its configuration cannot be trained: it has no optimizer or no classes")
    model.num_classes = num_classes
    if settings.imgsz:
        _set_input_size(model, settings)
    batch_size = settings.batch_size() or recipe.batch_size
    length = choose_fine_tuning_length(images, batch_size)
    if settings.epochs is not None:
        steps = steps_through(images, settings.epochs, batch_size)
        length = replace(length, steps=steps, epochs=settings.epochs)
    tuning = choose_fine_tuning(images, batch_size, length.steps)
    if recipe.num_steps:
        stretch(recipe, length.steps, recipe.num_steps)
    recipe.optimizer = fine_tuning_optimizer(recipe.optimizer, tuning.rate)
    recipe.batch_size, recipe.num_steps, recipe.recipe_steps = batch_size, length.steps, length.steps
    waits = m.FreezeStage(variables=["^backbone\\."], until_step=tuning.backbone_from)
    recipe.freeze_stage = [waits] if tuning.backbone_from else []
    if tuning.keep_statistics and family in KEEPING_STATISTICS:
        apply_override(config, f"model {{ {family} {{ {KEEPING_STATISTICS[family]} }} }}")
    weights = _start_from(recipe, settings)
    config.train_input_reader, config.eval_input_reader = train, [held_out]
    if learns_masks(config):
        load_masks(train, held_out)
    config.clear("pedigree")
    return config, [
        Choice("model", f"that of {settings.model}", "its own configuration, with these data's classes"),
        Choice("weights", weights or "fresh", "they fit the network; predictors of new classes start fresh"),
        Choice("batch", counted(batch_size, "image"), "as requested" if settings.batch_size() else "as that run"),
        Choice("length", counted(length.steps, "step"), epochs_text(length.epochs)),
    ]


def _start_from(recipe: m.TrainConfig, settings: InitSettings) -> str:
    """Let a recipe start from the weights that the settings name, the run's by default; return them."""
    for name in ("from_detection_checkpoint", "fine_tune_checkpoint_version", "fine_tune_checkpoint_channels"):
        recipe.clear(name)
    weights = settings.weights or settings.model
    if weights == NO_WEIGHTS:
        recipe.clear("fine_tune_checkpoint")
        return ""
    recipe.fine_tune_checkpoint, recipe.fine_tune_checkpoint_type = weights, "transfer"
    return weights


def _set_input_size(model: Any, settings: InitSettings) -> None:
    resizer = model.image_resizer.fixed_shape_resizer if model.image_resizer is not None else None
    size = settings.image_size()
    if resizer is None or size is None:
        raise ConfigError(f"imgsz {settings.imgsz}: the run's image_resizer has no fixed shape; edit the configuration")
    resizer.height, resizer.width = size


def config_text(config: m.TrainEvalPipelineConfig, header: str) -> str:
    """Return such a configuration as text format, with the line by which the same command knows it."""
    return f"# {header}\n# Edit it freely; it is the whole configuration.\n{dump_message(config)}"
