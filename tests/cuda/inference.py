"""Detection on a fake GPU: from images to detections and the losses of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from boxwright.config.load import parse_message
from boxwright.data.shapes import ShapesDataset
from boxwright.evaluation.build import EvaluationPlan, build_evaluation
from boxwright.evaluation.network import detect_with_losses
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.types import Detections
from tests.cuda.fake import fake_cuda, to_fake
from tests.cuda.families import FakeRun
from tests.cuda.ledger import OperationRecorder


def _plan() -> EvaluationPlan:
    reader = parse_message('tf_record_input_reader { input_path: "none" }', m.InputReader)
    return build_evaluation(parse_message("eval_config { }", m.TrainEvalPipelineConfig), reader)


def look(run: FakeRun) -> list[Detections[Tensor]]:
    """Evaluate two pictures as `boxwright evaluate` does; it is cut where detections become arrays on the CPU."""
    dataset = ShapesDataset(2, seed=0, size=(96, 128))
    run.detector.eval()
    with mock.patch.object(Detections, "arrays", lambda found: found), torch.no_grad():
        return [one for one, _ in detect_with_losses(run.detector, _plan(), [dataset[0], dataset[1]], 0)]


def optimize_for_gpu(detector: Detector, dtype: torch.dtype = torch.float32) -> Detector:
    """Optimize a detector as on a GPU, before it is put on a fake one: folding compares values, which that lacks."""
    with mock.patch("boxwright.nn.detector.replace_by_winograd"):  # which is for CPUs
        return detector.optimize(dtype=dtype)


@contextmanager
def detecting_on_fake_gpu(detector: Detector) -> Iterator[OperationRecorder]:
    """Put an optimized detector on a fake GPU."""
    with fake_cuda() as recorder:
        to_fake(detector, recorder.mode)
        recorder.clear()
        yield recorder
