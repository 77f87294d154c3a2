"""`boxwright.evaluate`: the metrics of a detector of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxwright.api.model import Model
from boxwright.base.errors import ConfigError
from boxwright.base.settings import with_options
from boxwright.evaluation.evaluate import evaluate as evaluate_open
from boxwright.evaluation.evaluate import open_evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.pipeline.load import load_config, with_overrides
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.weights.open_model import OpenModel, load_configuration

if TYPE_CHECKING:
    from boxwright.nn.detector import Detector

# A process that reads images pays off in long evaluations only.
_DEFAULTS = EvaluationSettings(workers=0)
_OF_COMMANDS, _OF_OPENING = (
    ("engine", "shares"),
    (
        *("device", "runtime", "tf32"),
        *("precision", "compile", "cuda_graphs"),
    ),
)


def evaluate(
    model: str | Path | Model | Detector | TrainEvalPipelineConfig,
    model_dir: str | Path | None = None,
    *,
    config: str | Path | TrainEvalPipelineConfig | None = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> dict[str, float]:
    """Evaluate a model on the data of an eval_input_reader.

    `evaluate("model")` takes a run's folder, a checkpoint or an exported file; `evaluate(config, "model")` works too.

    Args:
        model: A run's folder, a checkpoint, an exported file, an opened `Model`, or a `Detector`, which needs `config`;
            or a configuration.
        model_dir: The run's folder, if `model` is a configuration.
        config: The configuration with eval_config and eval_input_reader; by default the pipeline.config beside the
            checkpoint, or else the checkpoint's own.
        overrides: Changes of the configuration, such as "eval_config.metrics_set=pascal_voc_detection_metrics".
        **settings: Fields of `EvaluationSettings`, such as device, eval_on_train_data, sample_1_of_n_eval_examples.

    Returns:
        TF's metric names to values.

    Raises:
        BoxwrightError: If model, configuration or data cannot be used.
    """
    if isinstance(model, Model) and model_dir is not None:
        raise ConfigError("evaluate(model): a Model has its own path; remove model_dir")
    if isinstance(model, TrainEvalPipelineConfig) or (isinstance(model, str | Path) and model_dir is not None):
        if model_dir is None:
            raise ConfigError("evaluate(config, model_dir): the run's folder is missing")
        config, model = model, model_dir
    chosen = _settings(settings, is_open=not isinstance(model, str | Path))
    if not isinstance(model, str | Path):
        opened, plan = _open_model(model, config)
        return evaluate_open(open_evaluation(opened, with_overrides(plan, overrides), chosen)).metrics
    if isinstance(config, TrainEvalPipelineConfig):
        plan = with_overrides(config, overrides)
    else:
        plan = load_configuration(Path(model), config, overrides, allow_edited=chosen.allow_edited).message
    with ExitStack() as rounding:
        if chosen.tf32:
            from boxwright.base.device import tf32_allowed  # exported files need no PyTorch

            rounding.enter_context(tf32_allowed())
        return evaluate_open(open_evaluation(Path(model), plan, chosen)).metrics


def _settings(given: dict[str, Any], *, is_open: bool) -> EvaluationSettings:
    """Return the settings that are given; those without an effect on a model, which may be open, are a ConfigError."""
    chosen = with_options(_DEFAULTS, given, "evaluate")
    for name in given:
        if name in _OF_COMMANDS:
            raise ConfigError(
                f"evaluate: {name} has no effect here: boxwright evaluate spreads work over processes; remove it"
            )
        if name in _OF_OPENING and is_open:
            raise ConfigError(f"evaluate: {name} has no effect on a Model that is already open; remove it")
    return chosen


def _open_model(
    model: Model | Detector, config: str | Path | TrainEvalPipelineConfig | None
) -> tuple[OpenModel, TrainEvalPipelineConfig]:
    """Return a detector, as it is, and the configuration that is given or a Model's own."""
    # Only here, as paths of exported files need no PyTorch.
    from boxwright.nn.detector import Detector

    if not isinstance(model, Model | Detector):
        raise ConfigError(f"evaluate: expected a path, a Model or a Detector, found {type(model).__name__}")
    if config is None:
        if isinstance(model, Detector):
            raise ConfigError("evaluate(detector): pass config=..., with eval_config and eval_input_reader")
        config = model.config
    # A detector has no path: this one would only name it in messages.
    path, detector = (Path("detector"), model) if isinstance(model, Detector) else (model.path, model.opened)
    return OpenModel(path, detector, 0), load_config(config) if isinstance(config, str | Path) else config
