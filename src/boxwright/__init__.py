"""Boxwright: object detectors described by one pipeline.config, on PyTorch."""

from boxwright.builders.detector import build_detector
from boxwright.checkpoints.load_weights import LoadReport, load_weights
from boxwright.config import Pipeline, load_config
from boxwright.errors import BoxwrightError, CheckpointError, ConfigError, DataError, TrainingError
from boxwright.evaluation.evaluate import evaluate, restore_detector
from boxwright.models.detector import Detector
from boxwright.training.train import RunSettings, train
from boxwright.types import Categories, Category, Detections, Predictions, Sample, Targets

__all__ = [
    "BoxwrightError",
    "Categories",
    "Category",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Detections",
    "Detector",
    "LoadReport",
    "Pipeline",
    "Predictions",
    "RunSettings",
    "Sample",
    "Targets",
    "TrainingError",
    "build_detector",
    "evaluate",
    "load_config",
    "load_weights",
    "restore_detector",
    "train",
]
