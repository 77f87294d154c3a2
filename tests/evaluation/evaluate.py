"""Evaluating a detector that is in memory."""

from __future__ import annotations

from pathlib import Path

from boxwright.data.dataset import Dataset
from boxwright.evaluation.build import EvaluationPlan
from boxwright.evaluation.data import EvaluationData
from boxwright.evaluation.evaluate import OpenEvaluation, evaluate, open_evaluation
from boxwright.evaluation.images import Keep, keep_nothing
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.nn.detector import Detector
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.weights.open_model import OpenModel

_HERE = EvaluationSettings(workers=0)


def evaluate_detector(
    config: TrainEvalPipelineConfig,
    detector: Detector,
    settings: EvaluationSettings = _HERE,
    keep: Keep = keep_nothing,
) -> Evaluation:
    """Return the evaluation of a detector, as it is, on the configuration's data."""
    return evaluate(open_evaluation(OpenModel(Path("detector"), detector, 0), config, settings), keep=keep)


def evaluate_on_dataset(detector: Detector, dataset: Dataset, plan: EvaluationPlan) -> Evaluation:
    """Return the evaluation of a detector, as it is, on a data set."""
    return evaluate(OpenEvaluation(OpenModel(Path("detector"), detector, 0), EvaluationData("", dataset, plan), _HERE))
