"""Running a detector over a data set: metrics, losses, detections, pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from boxwright.builders.evaluation import EvaluationPlan
from boxwright.config import messages as m
from boxwright.criteria.terms import REGULARIZATION, TOTAL, LossTerm
from boxwright.data.batch import learnable, stack_targets
from boxwright.data.dataset import Dataset
from boxwright.data.loader import samples_in_order
from boxwright.device import random_devices
from boxwright.distributed import ALONE, Processes
from boxwright.evaluation.exported import evaluate_exported, look_of_export, samples_by_threads
from boxwright.evaluation.parts import (
    EvaluationSet,
    Look,
    Part,
    Progress,
    Read,
    categories_of,
    look_at,
    open_evaluation,
    silent,
    sum_up,
)
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.models.detector import Detector
from boxwright.models.multi_scale import MultiScaleDetector, at_scales
from boxwright.runtime.exported import ExportedDetector
from boxwright.types import Categories, FoundObjects, Sample

_DEFAULTS = EvaluationSettings(workers=0)


def evaluate_detector(
    detector: Detector | MultiScaleDetector,
    dataset: Dataset,
    plan: EvaluationPlan,
    progress: Progress = silent,
    processes: Processes = ALONE,
    workers: int = 0,
) -> Evaluation:
    """Run a detector over a data set, which the processes share.

    Args:
        detector: The detector; in each process the same.
        progress: Wraps the indices and takes a title, to show how far it is.
        processes: Those that evaluate; each image is seen by one of them.

    Returns:
        Metrics, detections and pictures, the same in every process, whatever their number. Pictures are
        of images spread evenly over the data.
    """
    data = EvaluationSet("", dataset, plan)
    return sum_up(find_parts(detector, data, progress, processes, workers), plan, categories_of(data))


def find_parts(
    detector: Detector | MultiScaleDetector,
    data: EvaluationSet,
    progress: Progress = silent,
    processes: Processes = ALONE,
    workers: int = 0,
    run: Path | None = None,
) -> list[Part]:
    """Return what a detector finds in the images of a data set, which the processes share.

    Args:
        detector: The detector; in each process the same.
        progress: Wraps the indices and takes a title, to show how far it is.
        processes: Those that evaluate; each image is seen by one of them.
        run: The folder of the run that this is part of, which has the workers' sockets.

    Returns:
        A part an image, the same in every process; `sum_up` makes an evaluation of them.
    """
    training = detector.training
    detector.eval()
    try:
        look, read = partial(_looked_at, detector, data.plan), partial(samples_in_order, workers=workers, run=run)
        parts = look_at(look, data, read, progress, processes.share)
    finally:
        detector.train(training)
    return [part for some in processes.gather(parts) for part in some]


def evaluate_share(
    config: m.TrainEvalPipelineConfig,
    detector: Detector | ExportedDetector,
    settings: EvaluationSettings,
    share: tuple[int, int],
) -> list[Part]:
    """Look at a share of the data that the settings choose; `sum_shares` makes an evaluation of all shares.

    Args:
        detector: The detector, in evaluation mode, or an exported one.
        share: Which, from 0, of how many.

    Returns:
        What was found in each image.

    Raises:
        ConfigError: As `run_evaluation`.
    """
    data = open_evaluation(config, settings, detector.categories)
    look: Look
    read: Read
    if isinstance(detector, ExportedDetector):
        look, read = look_of_export(detector, settings), partial(samples_by_threads, workers=settings.workers)
    else:
        seeing = at_scales(detector, settings.multi_scale)
        look, read = partial(_looked_at, seeing, data.plan), partial(samples_in_order, workers=settings.workers)
    number, count = share
    return look_at(look, data, read, share=lambda batches: batches[number::count])


def sum_shares(
    config: m.TrainEvalPipelineConfig, settings: EvaluationSettings, trained: Categories | None, parts: list[Part]
) -> Evaluation:
    """Return the evaluation of what was found in all shares, the same as that of one process.

    Args:
        parts: Of all shares, in any order.

    Raises:
        ConfigError: As `run_evaluation`.
    """
    data = open_evaluation(config, settings, trained)
    return sum_up(parts, data.plan, categories_of(data))


def _looked_at(
    detector: Detector | MultiScaleDetector, plan: EvaluationPlan, samples: list[Sample], seed: int
) -> Iterator[tuple[FoundObjects, dict[str, float]]]:
    """Yield what a detector finds in each sample, and the losses of its run."""

    def losses(predictions: Any, sizes: Tensor, start: int) -> dict[str, Tensor]:
        return _losses(detector, predictions, samples[start : start + len(sizes)], sizes, plan, seed=seed + start)

    for found, values in detector.detect_runs([one.image for one in samples], losses if plan.losses else None):
        total = {TOTAL: sum(values.values())} if values else {}
        for one in found:
            yield one.arrays(), values | total


def _losses(
    detector: Detector | MultiScaleDetector,
    predictions: Any,
    samples: list[Sample],
    sizes: Tensor,
    plan: EvaluationPlan,
    *,
    seed: int,
) -> dict[str, Tensor]:
    """Compute TF's loss terms of images that were detected in together; the seed is for sampled anchors."""
    if not detector.network.learns_masks:
        samples = [replace(sample, masks=None) for sample in samples]
    objects = [learnable(sample, (h, w)) for sample, (h, w) in zip(samples, sizes.tolist(), strict=True)]
    targets, device = stack_targets(objects, tuple(sizes.amax(0).tolist())), next(detector.network.parameters()).device
    with torch.no_grad(), torch.random.fork_rng(random_devices(device)):
        torch.manual_seed(seed)
        there = targets.pin_memory().to(device) if device.type == "cuda" else targets
        losses = LossTerm.values(detector.criterion(predictions, there))
        if plan.regularize:
            losses[REGULARIZATION] = detector.regularization()
    return losses


def run_evaluation(
    config: m.TrainEvalPipelineConfig,
    detector: Detector | ExportedDetector,
    settings: EvaluationSettings = _DEFAULTS,
    progress: Progress = silent,
) -> Evaluation:
    """Return what a detector, on its device, or an exported one finds in the data that the settings choose.

    A missing reader, other classes than the detector's, and several scales of an export are a ConfigError.
    """
    if isinstance(detector, ExportedDetector):
        return evaluate_exported(config, detector, settings, progress)
    data = open_evaluation(config, settings, detector.categories)
    seeing = at_scales(detector, settings.multi_scale)
    return evaluate_detector(seeing, data.dataset, data.plan, progress, workers=settings.workers)
