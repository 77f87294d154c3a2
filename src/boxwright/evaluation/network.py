"""A network's detections in samples, with TF's losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from boxwright.base.device import random_devices
from boxwright.base.errors import ConfigError
from boxwright.data.batch import learnable, stack_context, stack_targets
from boxwright.evaluation.build import EvaluationPlan
from boxwright.evaluation.images import SampleDetector
from boxwright.nn.criteria.criterion import REGULARIZATION, TOTAL, LossTerm
from boxwright.nn.detector import Detector, EvaluationLosses
from boxwright.nn.multi_scale import MultiScaleDetector
from boxwright.nn.network import evaluation_mode
from boxwright.nn.preprocessing import IdentityResizer
from boxwright.types import Array, Detections, Sample, Targets


@contextmanager
def network_on_samples(detector: Detector | MultiScaleDetector, plan: EvaluationPlan) -> Iterator[SampleDetector]:
    """Give a function that detects in samples, with losses; the network's training mode is restored at the end."""
    module = detector.detector if isinstance(detector, MultiScaleDetector) else detector
    with evaluation_mode(module), _at_own_size(detector) if plan.own_size else nullcontext():
        yield partial(detect_with_losses, detector, plan)


def batches_ahead(detector: Detector) -> int:
    """Return how many batches to detect in before the images of an earlier one are taken: one on a GPU, else none."""
    # A CPU's cores are busy with the network; a GPU would wait while Python looks at each image.
    return int(any(weight.is_cuda for weight in detector.parameters()))


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
) -> Iterator[tuple[Detections[Array], dict[str, float]]]:
    """Yield the detections in each sample, and the losses of its batch."""

    def targets(indices: Sequence[int], sizes: Tensor) -> Targets:
        return _targets(detector, [samples[index] for index in indices], sizes)

    def compute(predictions: Any, wanted: Targets, indices: Sequence[int]) -> dict[str, Tensor]:
        return _losses(detector, predictions, wanted, plan, seed=seed + indices[0])

    losses, context = EvaluationLosses(targets, compute) if plan.losses else None, stack_context(samples)
    images = [sample.image for sample in samples]
    for detections, values in detector.detect_with_losses(images, losses, "pixels", context):
        total = {TOTAL: sum(values.values())} if values else {}
        yield detections.arrays(), values | total


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
