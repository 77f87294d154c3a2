"""A trial build of everything that a configuration describes."""

from __future__ import annotations

import torch

from boxwright.evaluation.build import build_evaluation
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.input_reader import check_reader
from boxwright.pipeline.training import build_training


def build_plans(config: m.TrainEvalPipelineConfig) -> None:
    """Build the model without weights, and the plans of training and evaluation.

    Args:
        config: The whole configuration; without `train_config`, no training is planned.

    Raises:
        ConfigError: For the first thing that cannot be built.
    """
    with torch.device("meta"):
        build_detector(config)
    if config.train_config is not None:
        build_training(config)
        check_reader(config.train_input_reader, "train_input_reader")
    build_evaluation(config)
