"""The metrics of a model, which is opened if necessary."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from boxwright.api.evaluated import open_evaluated
from boxwright.base.errors import ConfigError
from boxwright.base.settings import with_options
from boxwright.evaluation.evaluate import evaluate_on_data, evaluate_on_reader
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.pipeline.load import load_config
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.pipeline.overrides import with_overrides
from boxwright.weights.open_model import OpenModel, configuration_of

# A process that reads images pays off in long evaluations only.
_DEFAULTS = EvaluationSettings(workers=0)
_OF_COMMANDS, _OF_OPENING = ("engine", "shares"), ("device", "runtime", "tf32", "precision", "compile")


def metrics_of(
    model: OpenModel | Path,
    config: str | Path | TrainEvalPipelineConfig | None = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> dict[str, float]:
    """Evaluate a model.

    Args:
        model: An open model, or the path of a run, a checkpoint or an exported file.
        config: The configuration with eval_config and eval_input_reader; None for the model's own.
        overrides: Changes of the configuration.
        **settings: Fields of `EvaluationSettings`.

    Returns:
        TF's metric names to values.

    Raises:
        BoxwrightError: If model, configuration or data cannot be used.
    """
    chosen = with_options(_DEFAULTS, settings, "evaluate")
    for name in settings:
        if name in _OF_COMMANDS:
            raise ConfigError(
                f"evaluate: {name} has no effect here: boxwright evaluate spreads work over processes; remove it"
            )
        if name in _OF_OPENING and isinstance(model, OpenModel):
            raise ConfigError(f"evaluate: {name} has no effect on a Model that is already open; remove it")
    if isinstance(model, OpenModel):
        given = model.config if config is None else config
        plan = with_overrides(load_config(given) if isinstance(given, str | Path) else given, overrides)
        return evaluate_on_reader(plan, model.opened, chosen).metrics
    if isinstance(config, TrainEvalPipelineConfig):
        plan = with_overrides(config, overrides)
    else:
        plan = configuration_of(model, config, overrides, allow_edited=chosen.allow_edited).message
    with _rounding(chosen):
        evaluated = open_evaluated(model, plan, chosen)
        return evaluate_on_data(evaluated.data, evaluated.model.opened, chosen).metrics


def _rounding(settings: EvaluationSettings) -> AbstractContextManager[None]:
    """Return the context in which float32 products are rounded as the settings ask."""
    if not settings.tf32:
        return nullcontext()
    from boxwright.base.device import tf32_allowed  # exported files need no PyTorch

    return tf32_allowed()
