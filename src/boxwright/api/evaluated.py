"""The model of an evaluation: in PyTorch, or in the runtime that the settings name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.data import EvaluationData, open_evaluation_data
from boxwright.evaluation.evaluate import open_for_evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.runtime.devices import opening_device
from boxwright.runtime.formats import EXPORTS, RUNTIMES, TORCH
from boxwright.weights.open_model import OpenModel, open_model


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """A model that is evaluated, and the data that it is evaluated on.

    Attributes:
        model: The detector, optimized by the settings, or an export.
        data: As the settings choose them.
        path: What a worker opens: the model's path, or that of its cached export.
        runtime: What detects, such as "torch" or "onnxruntime".
    """

    model: OpenModel
    data: EvaluationData
    path: Path
    runtime: str


def open_evaluated(path: Path, config: TrainEvalPipelineConfig, settings: EvaluationSettings) -> EvaluatedModel:
    """Return a run, checkpoint or exported file, opened in the runtime that the settings name, and its data.

    Args:
        path: A run's folder, a checkpoint or an exported file.
        config: The configuration of the model and of the data that it is evaluated on.
        settings: Options of the evaluation, such as runtime and device.

    Returns:
        The model, its data, and what opens it again.

    Raises:
        BoxwrightError: If there is no detector, it does not fit the data, or a runtime other than "auto" is named that
            cannot be used.
    """
    device = opening_device(path, settings.device, settings.runtime)
    if path.suffix in EXPORTS or settings.runtime == TORCH:
        return _as_it_is(path, config, settings)
    from boxwright.exporters.pictures import varied
    from boxwright.exporters.runtime_choice import Pictures, RuntimeRequest, choose_export

    opened = open_model(path, device=device, tf32=settings.tf32, config=config)
    data = open_evaluation_data(config, settings, opened.categories, opened.opened.num_classes)

    def sample() -> tuple[Sequence[NDArray[np.uint8]], str]:
        return varied(lambda number: data.dataset[number].image, len(data.dataset)), data.dataset.name

    count = len(range(0, len(data.dataset), data.plan.every_nth))
    request = RuntimeRequest(settings.runtime, settings.device, unsupported=_unsupported(opened, settings, data))
    export = choose_export(opened, request, Pictures(sample, count))
    if export is None:
        return EvaluatedModel(opened.optimized(settings.precision, compile=settings.compile), data, path, TORCH)
    return EvaluatedModel(replace(opened, opened=export.detector), data, export.path, export.runtime)


def _as_it_is(path: Path, config: TrainEvalPipelineConfig, settings: EvaluationSettings) -> EvaluatedModel:
    """Return a model in PyTorch, or an exported file in the runtime of its format."""
    opened = open_for_evaluation(path, config, settings)
    if opened.is_exported and settings.runtime != TORCH:
        from boxwright.exporters.runtime_choice import RuntimeRequest, choose_export

        choose_export(opened, RuntimeRequest(settings.runtime))  # raises if it is of another runtime
    data = open_evaluation_data(config, settings, opened.categories, opened.opened.num_classes)
    return EvaluatedModel(opened, data, path, RUNTIMES.get(path.suffix, TORCH))


def _unsupported(model: OpenModel, settings: EvaluationSettings, data: EvaluationData) -> str:
    """Return what of an evaluation only PyTorch supports; empty for nothing."""
    from boxwright.exporters.runtime_choice import only_torch

    others = {
        "--engine ray": settings.engine == "ray",  # the other machines have no such file
        "eval_config.force_no_resize": data.plan.own_size,
        "context_config": model.detector.network.attention is not None,
    }
    return only_torch(settings, others)
