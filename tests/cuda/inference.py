"""Looking at pictures on a fake GPU: from images to detections and the losses of an evaluation."""

from __future__ import annotations

from unittest import mock

import torch
from torch import Tensor

from boxwright.config.load import parse_message
from boxwright.data.shapes import ShapesDataset
from boxwright.evaluation.build import EvaluationPlan, build_evaluation
from boxwright.evaluation.network import detect_with_losses
from boxwright.pipeline import messages as m
from boxwright.types import Detections
from tests.cuda.families import FakeRun


def _plan() -> EvaluationPlan:
    reader = parse_message('tf_record_input_reader { input_path: "none" }', m.InputReader)
    return build_evaluation(parse_message("eval_config { }", m.TrainEvalPipelineConfig), reader)


def look(run: FakeRun) -> list[Detections[Tensor]]:
    """Evaluate two pictures as `boxwright evaluate` does; it is cut where detections become arrays on the CPU."""
    dataset = ShapesDataset(2, seed=0, size=(96, 128))
    run.detector.eval()
    with mock.patch.object(Detections, "arrays", lambda found: found), torch.no_grad():
        return [one for one, _ in detect_with_losses(run.detector, _plan(), [dataset[0], dataset[1]], 0)]
