"""Evaluation by several workers, each with a share of the images; the result is that of one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from boxwright.base.worker_pools import engine_of
from boxwright.config.load import dump_message, parse_message
from boxwright.evaluation.data import EvaluationData, counted_categories
from boxwright.evaluation.evaluate import evaluate_share, open_for_evaluation
from boxwright.evaluation.image_results import Keep, keep_nothing
from boxwright.evaluation.images import EvaluatedImage
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.evaluation.summary import in_order, summarize
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.runtime.exported import ExportedDetector


def evaluate_by_workers(
    model: Path,
    config: TrainEvalPipelineConfig,
    settings: EvaluationSettings,
    data: EvaluationData,
    keep: Keep = keep_nothing,
) -> Evaluation:
    """Return an evaluation computed by as many workers as there are shares, each of which opens the model.

    All detections are in memory at once, as arrays: workers answer in any order.

    Args:
        data: Opened here too, for the plan and the classes; no image is read.
        keep: Gets each evaluated image, in the data's order.

    Raises:
        BoxwrightError: As for `evaluate_on_reader`, and for an unknown engine.
    """
    make = partial(_worker, model, dump_message(config), settings)
    shares = [(number, settings.shares) for number in range(settings.shares)]
    done = engine_of(settings.engine, settings.device)(make, shares, settings.shares)
    images = in_order(image for share in done for image in share)
    return summarize(images, data.plan, counted_categories(data), keep)


def _worker(model: Path, text: str, settings: EvaluationSettings) -> partial[list[EvaluatedImage]]:
    """Open the model in a worker's process, and return what evaluates a share there."""
    config = parse_message(text, TrainEvalPipelineConfig)
    detector = open_for_evaluation(model, config, settings).opened
    if not isinstance(detector, ExportedDetector):
        from boxwright.base.device import set_tf32

        set_tf32(allowed=settings.tf32)
        keep_freed_memory()
    return partial(evaluate_share, config, detector, settings)
