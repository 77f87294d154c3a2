"""Evaluating with several workers: each looks at a share of the images; the sum is that of one process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from boxwright.checkpoints.restore import restore_detector
from boxwright.config.load import dump_message, parse_message
from boxwright.config.messages import TrainEvalPipelineConfig
from boxwright.device import open_device
from boxwright.evaluation.optimized import optimized
from boxwright.evaluation.parts import Part
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.run import evaluate_share, sum_shares
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.inference.engines import engine_of
from boxwright.inference.exports import open_export
from boxwright.models.detector import Detector
from boxwright.runtime.exported import ExportedDetector
from boxwright.runtime.formats import EXPORTS
from boxwright.types import Categories


@dataclass(frozen=True, eq=False)
class Opened:
    """A detector that can be evaluated.

    Attributes:
        detector: The detector on its device, or an exported one.
        step: Steps that it was trained.
    """

    detector: Detector | ExportedDetector
    step: int


def open_for_evaluation(model: Path, config: TrainEvalPipelineConfig, settings: EvaluationSettings) -> Opened:
    """Return what a run, a checkpoint or an exported file holds.

    Args:
        config: The configuration; an exported file has its own network.

    Raises:
        BoxwrightError: Where there is none.
    """
    if model.suffix in EXPORTS:
        exported = open_export(model, allow_edited=settings.allow_edited)
        return Opened(exported, exported.metadata.step)
    detector, _, step = restore_detector(model, config=config)
    detector.to(open_device(settings.device, tf32=settings.tf32))
    return Opened(optimized(detector, settings.precision, compile=settings.compile), step)


def evaluate_in_shares(
    model: Path, config: TrainEvalPipelineConfig, settings: EvaluationSettings, trained: Categories | None
) -> Evaluation:
    """Evaluate by as many workers as there are shares.

    Args:
        model: Where the detector is; each worker opens it.
        settings: What is evaluated, by which engine, in how many shares.

    Returns:
        Metrics, detections and pictures: those of one process.

    Raises:
        BoxwrightError: As `run_evaluation`, and for an engine that there is not.
    """
    make = partial(_worker, model, dump_message(config), settings)
    shares = [(number, settings.shares) for number in range(settings.shares)]
    found = engine_of(settings.engine, settings.device)(make, shares, settings.shares)
    return sum_shares(config, settings, trained, [part for parts in found for part in parts])


def _worker(model: Path, text: str, settings: EvaluationSettings) -> partial[list[Part]]:
    config = parse_message(text, TrainEvalPipelineConfig)
    detector = open_for_evaluation(model, config, settings).detector
    return partial(evaluate_share, config, detector, settings)
