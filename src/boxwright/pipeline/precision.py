"""The precision in which a run trains: what is asked for, what a run began with, and what a GPU does by default."""

from __future__ import annotations

import copy
from typing import Literal

import torch

from boxwright.base.device import has_bfloat16
from boxwright.config.build import require
from boxwright.config.preset import from_preset
from boxwright.families.table import ExperimentalModel, find_family
from boxwright.pipeline import messages as m

Precision = Literal["float32", "bfloat16", "float16"]
_FIELDS = ("use_bfloat16", "use_float16")


def precision_of(train: m.TrainConfig) -> Precision:
    """Return the precision that a configuration trains in."""
    return "bfloat16" if train.use_bfloat16 else "float16" if train.use_float16 else "float32"


def precision_overrides(precision: str) -> list[str]:
    """Return a precision as overrides of a configuration; none for an empty text."""
    return [f"train_config.{name}={str(value).lower()}" for name, value in _values(precision).items()]


def with_precision(config: m.TrainEvalPipelineConfig, precision: str) -> m.TrainEvalPipelineConfig:
    """Return a configuration that says in which precision it trains; for an empty text as it is."""
    changed = copy.deepcopy(config)
    train = require(changed.train_config, changed, "train_config")
    for name, value in _values(precision).items():
        setattr(train, name, value)
    return changed


def _values(precision: str) -> dict[str, bool]:
    """Return the fields of `train_config` that say a precision."""
    return {name: name == f"use_{precision}" for name in _FIELDS} if precision else {}


def keep_precision(config: m.TrainEvalPipelineConfig, begun: m.TrainEvalPipelineConfig) -> m.TrainEvalPipelineConfig:
    """Return a configuration with the precision that a run began with, unless the user asks for one."""
    if config.train_config is None or begun.train_config is None or _is_asked_for(config.train_config):
        return config
    kept = precision_of(begun.train_config)
    return config if precision_of(config.train_config) == kept else with_precision(config, kept)


def choose_precision(config: m.TrainEvalPipelineConfig, device: torch.device) -> tuple[m.TrainEvalPipelineConfig, str]:
    """Return the configuration of a new run, and a line for the user; empty where there is nothing to say.

    On a GPU that has bfloat16, presets train in it, if their family was measured to learn the same
    (`benchmarks/precision.py`) or its authors trained so. On a CPU presets train in float32, which most processors
    compute faster. The configuration then says it, and so does the run. Where the user names a precision, nothing
    changes.
    """
    train = config.train_config
    if train is None:
        return config, ""
    if device.type == "cpu" and train.use_bfloat16:
        if _is_asked_for(train):
            return config, "training in bfloat16, which most processors compute more slowly (--precision float32)"
        return with_precision(config, "float32"), "training in float32, as most processors compute bfloat16 more slowly"
    if device.type != "cuda" or _is_asked_for(train):
        return config, ""
    faster = " (--precision bfloat16 is faster)" if has_bfloat16(device) else ""
    if not _is_preset(config):
        return config, f"training in {precision_of(train)}, as the configuration has it{faster}"
    if precision_of(train) == "float32" and not _learns_in_bfloat16(config):
        return config, f"training in float32: for this family bfloat16 was not shown to learn the same{faster}"
    if not has_bfloat16(device):
        return with_precision(config, "float32"), "training in float32: this GPU has no bfloat16 (--precision float16)"
    line = "training in bfloat16, with weights and losses in float32 (--precision float32 computes all in float32)"
    return with_precision(config, "bfloat16"), line


def _learns_in_bfloat16(config: m.TrainEvalPipelineConfig) -> bool:
    return config.model is not None and find_family(config.model).learns_in_bfloat16


def _is_asked_for(train: m.TrainConfig) -> bool:
    """Tell whether a file of the user's, the command line or a program set a precision."""
    return any(train.has(name) and not from_preset(train.location(name)) for name in _FIELDS)


def _is_preset(config: m.TrainEvalPipelineConfig) -> bool:
    """Tell whether the detector is a preset's, which a file may change."""
    model = config.model.chosen("model") if config.model is not None else None
    return model is not None and not isinstance(model, ExperimentalModel) and from_preset(model.begins_at)
