"""`boxwright.evaluate`: the metrics of a detector of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxwright.api.metrics import metrics_of
from boxwright.api.model import Model
from boxwright.base.errors import ConfigError
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.weights.open_model import OpenModel

if TYPE_CHECKING:
    from boxwright.nn.detector import Detector


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
    if isinstance(model, Model):
        if model_dir is not None:
            raise ConfigError("evaluate(model): a Model has its own path; remove model_dir")
        return model.evaluate(config=config, overrides=overrides, **settings)
    if not isinstance(model, str | Path | TrainEvalPipelineConfig):
        return _detector_metrics(model, config, overrides, settings)
    if isinstance(model, TrainEvalPipelineConfig) or model_dir is not None:
        if model_dir is None:
            raise ConfigError("evaluate(config, model_dir): the run's folder is missing")
        config, model = model, model_dir
    return metrics_of(Path(model), config, overrides, **settings)


def _detector_metrics(
    detector: Detector,
    config: str | Path | TrainEvalPipelineConfig | None,
    overrides: Sequence[str],
    settings: dict[str, Any],
) -> dict[str, float]:
    """Return the metrics of a detector on its device."""
    # Only here, as paths of exported files need no PyTorch.
    from boxwright.nn.detector import Detector

    if not isinstance(detector, Detector):
        raise ConfigError(f"evaluate: expected a path, a Model or a Detector, found {type(detector).__name__}")
    if config is None:
        raise ConfigError("evaluate(detector): pass config=..., with eval_config and eval_input_reader")
    # The path only names the model in messages.
    return metrics_of(OpenModel(Path("detector"), detector, 0), config, overrides, **settings)
