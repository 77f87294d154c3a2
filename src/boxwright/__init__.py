"""Boxwright: object detectors described by one pipeline.config, on PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from boxwright.api.evaluate import evaluate
    from boxwright.api.learner import Learner
    from boxwright.api.model import Model, load
    from boxwright.api.push_to_hub import push_to_hub
    from boxwright.api.result import FoundObject, Result
    from boxwright.api.run import Run
    from boxwright.api.train import train
    from boxwright.base.errors import (
        BoxwrightError,
        CheckpointError,
        ConfigError,
        DataError,
        ExportError,
        OutputError,
        TrainingError,
    )
    from boxwright.data.sample_data import sample_images
    from boxwright.exporters.export import export
    from boxwright.nn.detector import Detector
    from boxwright.nn.postprocessing.masks import instance_masks
    from boxwright.pipeline import Pipeline, load_config
    from boxwright.pipeline.detector import build_detector
    from boxwright.training.settings import RunSettings
    from boxwright.types import AnchorPredictions, Categories, Category, Detections, Sample, Targets
    from boxwright.weights.load_weights import LoadReport, load_weights
    from boxwright.weights.restore import restore_detector

__all__ = [
    "AnchorPredictions",
    "BoxwrightError",
    "Categories",
    "Category",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Detections",
    "Detector",
    "ExportError",
    "FoundObject",
    "Learner",
    "LoadReport",
    "Model",
    "OutputError",
    "Pipeline",
    "Result",
    "Run",
    "RunSettings",
    "Sample",
    "Targets",
    "TrainingError",
    "build_detector",
    "evaluate",
    "export",
    "instance_masks",
    "load",
    "load_config",
    "load_weights",
    "push_to_hub",
    "restore_detector",
    "sample_images",
    "train",
]

# The module of each name, which is imported on first use: torch and its libraries take seconds to import, and reading
# a configuration needs none of them.
_HOMES = {
    "boxwright.api.evaluate": ("evaluate",),
    "boxwright.api.learner": ("Learner",),
    "boxwright.api.model": ("Model", "load"),
    "boxwright.api.push_to_hub": ("push_to_hub",),
    "boxwright.api.result": ("FoundObject", "Result"),
    "boxwright.api.run": ("Run",),
    "boxwright.api.train": ("train",),
    "boxwright.pipeline.detector": ("build_detector",),
    "boxwright.weights.load_weights": ("LoadReport", "load_weights"),
    "boxwright.pipeline": ("Pipeline", "load_config"),
    "boxwright.base.errors": (
        "BoxwrightError",
        "CheckpointError",
        "ConfigError",
        "DataError",
        "ExportError",
        "OutputError",
        "TrainingError",
    ),
    "boxwright.weights.restore": ("restore_detector",),
    "boxwright.data.sample_data": ("sample_images",),
    "boxwright.exporters.export": ("export",),
    "boxwright.nn.detector": ("Detector",),
    "boxwright.nn.postprocessing.masks": ("instance_masks",),
    "boxwright.training.settings": ("RunSettings",),
    "boxwright.types": ("Categories", "Category", "Detections", "AnchorPredictions", "Sample", "Targets"),
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # slower to import than everything else here

        return version("boxwright")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'boxwright' has no attribute {name!r}")
