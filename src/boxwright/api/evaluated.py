"""The model of an evaluation, and its data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from boxwright.evaluation.data import EvaluationData, open_evaluation_data
from boxwright.evaluation.evaluate import open_for_evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.runtime.devices import require_runtime
from boxwright.runtime.formats import RUNTIMES, TORCH
from boxwright.weights.open_model import OpenModel


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """A model that is evaluated, and the data that it is evaluated on.

    Attributes:
        model: The detector, optimized by the settings, or an export.
        data: As the settings choose them.
        runtime: What detects, such as "torch" or "onnxruntime".
    """

    model: OpenModel
    data: EvaluationData
    runtime: str


def open_evaluated(path: Path, config: TrainEvalPipelineConfig, settings: EvaluationSettings) -> EvaluatedModel:
    """Return a run, checkpoint or exported file, opened by the settings, and its data.

    Args:
        path: A run's folder, a checkpoint or an exported file.
        config: The configuration of the model and of the data that it is evaluated on.
        settings: Options of the evaluation, such as runtime and device.

    Returns:
        The model, its data, and its runtime.

    Raises:
        BoxwrightError: If there is no detector, it does not fit the data, or runs in another runtime than is named.
    """
    require_runtime(path, settings.runtime, settings.device)
    opened = open_for_evaluation(path, config, settings)
    data = open_evaluation_data(config, settings, opened.categories, opened.opened.num_classes)
    return EvaluatedModel(opened, data, RUNTIMES.get(path.suffix, TORCH))
