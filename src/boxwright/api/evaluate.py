"""`boxwright.evaluate`: the metrics of whatever detects."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boxwright.api.configuration import configuration_of
from boxwright.api.model import Model
from boxwright.base.errors import ConfigError
from boxwright.base.settings import with_options
from boxwright.config.load import load_config
from boxwright.config.messages import TrainEvalPipelineConfig
from boxwright.config.overrides import apply_override
from boxwright.evaluation.run import run_evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.inference.evaluate_shares import open_for_evaluation

# A process that reads images is worth its start for long evaluations alone.
_DEFAULTS = EvaluationSettings(workers=0)
_OF_COMMANDS, _OF_OPENING = ("engine", "shares"), ("device", "tf32", "precision", "compile")


def evaluate(
    model: str | Path | Model | TrainEvalPipelineConfig,
    model_dir: str | Path | None = None,
    *,
    config: str | Path | TrainEvalPipelineConfig | None = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> dict[str, float]:
    """Evaluate a model on the data of an eval_input_reader.

    `evaluate("model")` takes a run's folder, a checkpoint or an exported file; `evaluate(config, "model")`, the
    configuration first, is understood as well.

    Args:
        model: A run's folder, a checkpoint, an exported file, or an opened `Model`; or a configuration.
        model_dir: With a configuration first, the run's folder.
        config: Whose eval_config and eval_input_reader are taken; without, the pipeline.config beside the checkpoint,
            else what the checkpoint carries.
        overrides: Changes of the configuration, such as "eval_config.metrics_set=pascal_voc_detection_metrics".
        **settings: Of `EvaluationSettings`, such as device, eval_on_train_data, sample_1_of_n_eval_examples.

    Returns:
        TF's metric names to values.

    Raises:
        BoxwrightError: Where model, configuration or data cannot be used.
    """
    chosen = with_options(_DEFAULTS, settings, "evaluate")
    for name in settings:
        if name in _OF_COMMANDS:
            raise ConfigError(
                f"evaluate: {name} has no effect here: boxwright evaluate spreads work over processes; leave it out"
            )
        if name in _OF_OPENING and isinstance(model, Model):
            raise ConfigError(f"evaluate: {name} has no effect on a Model that is open already; leave it out")
    if isinstance(model, TrainEvalPipelineConfig) or model_dir is not None:
        if model_dir is None:
            raise ConfigError("evaluate(config, model_dir): the run's folder is missing")
        if isinstance(model, Model):
            raise ConfigError("evaluate(model): a Model knows where it came from; leave model_dir out")
        config, model = model, model_dir
    if isinstance(model, Model):
        own = model.config if config is None else config
        plan = _with_overrides(load_config(own) if isinstance(own, str | Path) else own, overrides)
        return run_evaluation(plan, model.opened, chosen).metrics
    path = Path(model)
    if isinstance(config, TrainEvalPipelineConfig):
        plan = _with_overrides(config, overrides)
    else:
        plan = configuration_of(path, config, overrides, allow_edited=chosen.allow_edited).message
    return run_evaluation(plan, open_for_evaluation(path, plan, chosen).detector, chosen).metrics


def _with_overrides(config: TrainEvalPipelineConfig, overrides: Sequence[str]) -> TrainEvalPipelineConfig:
    """Return a configuration with changes; the one that is given stays as it is."""
    if not overrides:
        return config
    changed = copy.deepcopy(config)
    for override in overrides:
        apply_override(changed, override)
    return changed
