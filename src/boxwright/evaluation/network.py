"""Evaluating a network on data: its detections in each image, with TF's losses."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from boxwright.base.device import random_devices
from boxwright.base.distributed import Processes
from boxwright.base.errors import ConfigError
from boxwright.data.batch import learnable, stack_context, stack_targets
from boxwright.data.dataset import Dataset
from boxwright.data.loader import samples_in_order
from boxwright.evaluation.build import EvaluationPlan
from boxwright.evaluation.data import EvaluationData, counted_categories
from boxwright.evaluation.image_results import Keep, keep_nothing
from boxwright.evaluation.images import EvaluatedImage, Progress, Share, all_batches, evaluate_images, silent
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.summary import summarize
from boxwright.nn.criteria.criterion import REGULARIZATION, TOTAL, LossTerm
from boxwright.nn.detector import Detector, EvaluationLosses
from boxwright.nn.multi_scale import MultiScaleDetector
from boxwright.nn.network import evaluation_mode
from boxwright.nn.preprocessing.image_resizer import IdentityResizer
from boxwright.types import FoundObjects, Sample, Targets


def evaluate_on_dataset(
    detector: Detector | MultiScaleDetector,
    dataset: Dataset,
    plan: EvaluationPlan,
    progress: Progress = silent,
    *,
    workers: int = 0,
    keep: Keep = keep_nothing,
) -> Evaluation:
    """Return metrics and pictures of a network on a data set; pictures are spread evenly over it.

    Args:
        keep: Gets each evaluated image.
    """
    data = EvaluationData("", dataset, plan)
    with closing(evaluate_network(detector, data, progress, workers=workers)) as images:
        return summarize(images, plan, counted_categories(data), keep)


def evaluate_in_processes(
    detector: Detector, data: EvaluationData, processes: Processes, *, workers: int = 0, run: Path | None = None
) -> list[EvaluatedImage]:
    """Return, in every process, all evaluated images, which the processes share; their networks are the same.

    Args:
        run: The run's folder, for the workers' sockets.
    """
    images = list(evaluate_network(detector, data, share=processes.share, workers=workers, run=run))
    return [image for some in processes.gather(images) for image in some]


def evaluate_network(
    detector: Detector | MultiScaleDetector,
    data: EvaluationData,
    progress: Progress = silent,
    share: Share = all_batches,
    *,
    workers: int = 0,
    run: Path | None = None,
) -> Generator[EvaluatedImage]:
    """Yield the evaluated images of a share; the network's training mode is restored at the end.

    Args:
        run: The run's folder, for the workers' sockets.
    """
    read = partial(samples_in_order, workers=workers, run=run)
    module = detector.detector if isinstance(detector, MultiScaleDetector) else detector
    with evaluation_mode(module), _at_own_size(detector) if data.plan.own_size else nullcontext():
        yield from evaluate_images(partial(detect_with_losses, detector, data.plan), data, read, progress, share)


@contextmanager
def _at_own_size(detector: Detector | MultiScaleDetector) -> Iterator[None]:
    """Leave images at their size until the end."""
    if isinstance(detector, MultiScaleDetector):
        raise ConfigError("eval_config.force_no_resize: detection at many scales resizes images; use one of both")
    kept = detector.preprocessor
    detector.preprocessor = kept.with_resizer(IdentityResizer())
    try:
        yield
    finally:
        detector.preprocessor = kept


def detect_with_losses(
    detector: Detector | MultiScaleDetector, plan: EvaluationPlan, samples: list[Sample], seed: int
) -> Iterator[tuple[FoundObjects, dict[str, float]]]:
    """Yield the detections in each sample, and the losses of its batch."""

    def targets(sizes: Tensor, start: int) -> Targets:
        return _targets(detector, samples[start : start + len(sizes)], sizes)

    def compute(predictions: Any, wanted: Targets, start: int) -> dict[str, Tensor]:
        return _losses(detector, predictions, wanted, plan, seed=seed + start)

    losses, context = EvaluationLosses(targets, compute) if plan.losses else None, stack_context(samples)
    for detections, values in detector.detect_runs([one.image for one in samples], losses, context=context):
        total = {TOTAL: sum(values.values())} if values else {}
        for one in detections:
            yield one.arrays(), values | total


def _targets(detector: Detector | MultiScaleDetector, samples: list[Sample], sizes: Tensor) -> Targets:
    """Return the groundtruth of images that are processed together, on the network's device."""
    if not detector.network.learns_masks:
        samples = [replace(sample, masks=None) for sample in samples]
    objects = [learnable(sample, (h, w)) for sample, (h, w) in zip(samples, sizes.tolist(), strict=True)]
    targets, device = stack_targets(objects, tuple(sizes.amax(0).tolist())), next(detector.network.parameters()).device
    return targets.pin_memory().to(device) if device.type == "cuda" else targets


def _losses(
    detector: Detector | MultiScaleDetector, predictions: Any, targets: Targets, plan: EvaluationPlan, *, seed: int
) -> dict[str, Tensor]:
    """Return TF's loss terms of images that were processed together; the seed is for sampled anchors."""
    device = next(detector.network.parameters()).device
    with torch.no_grad(), torch.random.fork_rng(random_devices(device)):
        torch.manual_seed(seed)
        losses = LossTerm.values(detector.criterion(predictions, targets))
        if plan.regularize:
            losses[REGULARIZATION] = detector.regularization()
    return losses
