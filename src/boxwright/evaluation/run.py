"""Running a detector over a data set: metrics, losses, detections, pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.builders.evaluation import EvaluationPlan, build_evaluation
from boxwright.builders.input_reader import build_dataset
from boxwright.checkpoints.restore import restore_detector
from boxwright.config import messages as m
from boxwright.criteria.terms import REGULARIZATION, TOTAL, LossTerm
from boxwright.data.batch import learnable, stack_targets
from boxwright.data.dataset import Dataset
from boxwright.data.loader import samples_in_order
from boxwright.distributed import ALONE, Processes
from boxwright.errors import ConfigError
from boxwright.evaluation.pictures import draw_beside_truth
from boxwright.evaluation.results import Evaluation, detection_rows
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.metrics.regions import ImageMasks
from boxwright.models.detector import Detector
from boxwright.models.multi_scale import MultiScaleDetector, at_scales
from boxwright.ops.pasted_masks import mask_run_lengths
from boxwright.ops.run_lengths import encode_mask
from boxwright.runtime.exported import ExportedDetector
from boxwright.types import Categories, Category, FoundObjects, Sample

__all__ = [
    "EvaluationSet",
    "Part",
    "check_reader",
    "check_same_classes",
    "evaluate",
    "evaluate_detector",
    "evaluate_exported",
    "evaluate_share",
    "open_evaluation",
    "reader_name",
    "run_evaluation",
    "sum_shares",
]

Progress = Callable[[Iterable[int], str], Iterable[int]]
# From samples and a seed to what is found in each, and losses.
Look = Callable[[list[Sample], int], Iterator[tuple[FoundObjects, dict[str, float]]]]
# From all batches to those that one process looks at.
Share = Callable[[list[range]], Sequence[range]]
_NTH_OF_TRAINING = 5
_DEFAULTS = EvaluationSettings(workers=0)


@dataclass(frozen=True)
class EvaluationSet:
    """Data to evaluate on, opened once, and how.

    Attributes:
        name: The reader's name, as the folder of its events has it; empty for the first without one.
        dataset: The data.
        plan: How.
    """

    name: str
    dataset: Dataset
    plan: EvaluationPlan


def open_evaluation(
    config: m.TrainEvalPipelineConfig, settings: EvaluationSettings, trained: Categories | None
) -> EvaluationSet:
    """Return the data that the settings choose, opened, and how to evaluate on it.

    A missing reader, or other classes than the detector was `trained` on, where they are known, are a ConfigError.
    """
    reader, where = _reader(config, settings)
    dataset = build_dataset(reader, where, trained)
    check_same_classes(trained, dataset.categories)
    plan = replace(build_evaluation(config, reader), class_agnostic=settings.class_agnostic)
    return EvaluationSet(reader_name(config, settings), dataset, plan)


def check_reader(config: m.TrainEvalPipelineConfig, settings: EvaluationSettings) -> None:
    """Raise ConfigError where the configuration lacks the reader that the settings choose."""
    _reader(config, settings)


def _reader(config: m.TrainEvalPipelineConfig, settings: EvaluationSettings) -> tuple[m.InputReader, str]:
    """Return the reader that the settings choose, and its path in the configuration."""
    every = settings.sample_1_of_n_eval_examples
    if settings.eval_on_train_data:
        if config.train_input_reader is None:
            raise ConfigError("train_input_reader is missing from the configuration")
        found, where, every = config.train_input_reader, "train_input_reader", every or _NTH_OF_TRAINING
    else:
        number, count = settings.eval_index, len(config.eval_input_reader)
        if number >= count:
            raise ConfigError(f"eval_input_reader[{number}] is missing; the configuration has {count}")
        found, where = config.eval_input_reader[number], f"eval_input_reader[{number}]"
    return found if every is None else found.model_copy(update={"sample_1_of_n_examples": every}), where


def _silent(indices: Iterable[int], _: str) -> Iterable[int]:
    return indices


@dataclass(frozen=True)
class Part:
    """What was found in one image; without its pixels, so that it can travel between processes."""

    index: int
    sample: Sample
    detections: FoundObjects
    losses: dict[str, float]
    picture: NDArray[np.uint8] | None
    masks: ImageMasks | None


def evaluate_detector(
    detector: Detector | MultiScaleDetector,
    dataset: Dataset,
    plan: EvaluationPlan,
    progress: Progress = _silent,
    processes: Processes = ALONE,
    workers: int = 0,
) -> Evaluation:
    """Run a detector over a data set, which the processes share.

    Args:
        detector: The detector; in each process the same.
        dataset: The data.
        plan: How.
        progress: Wraps the indices and takes a title, to show how far it is.
        processes: Those that evaluate; each image is seen by one of them.
        workers: Processes that read and decode.

    Returns:
        Metrics, detections and pictures, the same in every process, whatever their number. Pictures are
        of images spread evenly over the data.
    """
    training = detector.training
    detector.eval()
    try:
        look = partial(_looked_at, detector, plan)
        return _evaluation(look, dataset, plan, progress, processes, workers)
    finally:
        detector.train(training)


def evaluate_exported(
    detector: ExportedDetector, dataset: Dataset, plan: EvaluationPlan, progress: Progress = _silent, workers: int = 0
) -> Evaluation:
    """Run an exported detector over a data set.

    Args:
        detector: The opened file.
        dataset: The data.
        plan: How; there are no losses.
        progress: Wraps the indices and takes a title, to show how far it is.
        workers: Processes that read and decode.

    Returns:
        Metrics, detections and pictures.
    """
    return _evaluation(partial(_looked_at_exported, detector), dataset, plan, progress, ALONE, workers)


def evaluate_share(
    config: m.TrainEvalPipelineConfig,
    detector: Detector | ExportedDetector,
    settings: EvaluationSettings,
    share: tuple[int, int],
) -> list[Part]:
    """Look at a share of the data that the settings choose; `sum_shares` makes an evaluation of all shares.

    Args:
        config: The configuration.
        detector: The detector, in evaluation mode, or an exported one.
        settings: What is evaluated.
        share: Which, from 0, of how many.

    Returns:
        What was found in each image.

    Raises:
        ConfigError: As `run_evaluation`.
    """
    opened = open_evaluation(config, settings, detector.categories)
    look = _look(detector, settings, opened.plan)
    number, count = share
    return _parts(look, opened.dataset, opened.plan, _silent, lambda batches: batches[number::count], settings.workers)


def sum_shares(
    config: m.TrainEvalPipelineConfig, settings: EvaluationSettings, trained: Categories | None, parts: list[Part]
) -> Evaluation:
    """Return the evaluation of what was found in all shares, the same as that of one process.

    Args:
        config: The configuration.
        settings: What is evaluated.
        trained: The detector's classes.
        parts: Of all shares, in any order.

    Returns:
        Metrics, detections and pictures.

    Raises:
        ConfigError: As `run_evaluation`.
    """
    opened = open_evaluation(config, settings, trained)
    return _summed_up(parts, _categories(opened.dataset.categories, opened.plan), opened.plan)


def _look(detector: Detector | ExportedDetector, settings: EvaluationSettings, plan: EvaluationPlan) -> Look:
    if not isinstance(detector, ExportedDetector):
        return partial(_looked_at, at_scales(detector, settings.multi_scale), plan)
    if settings.multi_scale:
        raise ConfigError("multi_scale: an exported detector looks once; evaluate what it was exported from")
    return partial(_looked_at_exported, detector)


def _looked_at_exported(
    detector: ExportedDetector, samples: list[Sample], _: int
) -> Iterator[tuple[FoundObjects, dict[str, float]]]:
    for found in detector.detect([sample.image for sample in samples]):
        yield found, {}


def _evaluation(
    look: Look, dataset: Dataset, plan: EvaluationPlan, progress: Progress, processes: Processes, workers: int
) -> Evaluation:
    parts = _parts(look, dataset, plan, progress, processes.share, workers)
    gathered = [part for some in processes.gather(parts) for part in some]
    return _summed_up(gathered, _categories(dataset.categories, plan), plan)


def _parts(
    look: Look, dataset: Dataset, plan: EvaluationPlan, progress: Progress, share: Share, workers: int
) -> list[Part]:
    """Look at a share of the images."""
    indices = range(0, len(dataset), plan.every_nth)
    step = max(len(indices) // max(plan.num_pictures, 1), 1)
    drawn = set(list(indices)[::step][: plan.num_pictures])
    size = plan.batch_size
    mine = [
        index for batch in share([indices[at : at + size] for at in range(0, len(indices), size)]) for index in batch
    ]
    samples = samples_in_order(dataset, mine, workers)
    try:
        return [
            part
            for batch in _batches(zip(progress(mine, "evaluate"), samples, strict=True), size)
            for part in _evaluate_batch(look, dataset, plan, batch, drawn)
        ]
    finally:
        samples.close()


def _categories(given: Categories, plan: EvaluationPlan) -> Categories:
    return Categories((Category(0, 1, "object"),)) if plan.class_agnostic else given


def _looked_at(
    detector: Detector | MultiScaleDetector, plan: EvaluationPlan, samples: list[Sample], seed: int
) -> Iterator[tuple[FoundObjects, dict[str, float]]]:
    """Yield what a detector finds in each sample, and the losses of its run."""
    start = 0
    for found, predictions, sizes in detector.detect_runs([sample.image for sample in samples]):
        run = samples[start : start + len(found)]
        losses = _losses(detector, predictions, run, sizes, plan, seed=seed + start) if plan.losses else {}
        for one in found:
            yield one.arrays(), losses
        start += len(found)


def _evaluate_batch(
    look: Look,
    dataset: Dataset,
    plan: EvaluationPlan,
    batch: list[tuple[int, Sample]],
    drawn: set[int],
) -> Iterator[Part]:
    indices = [index for index, _ in batch]
    # As in TF, the losses of an evaluation are of labels, whatever scores the records have.
    samples = [replace(sample, class_scores=None) for _, sample in batch]
    for index, sample, (arrays, losses) in zip(indices, samples, look(samples, indices[0]), strict=True):
        truth, seen = _one_class(sample, arrays) if plan.class_agnostic else (sample, arrays)
        classes = _categories(dataset.categories, plan)
        yield Part(
            index=index,
            sample=replace(truth, image=np.zeros((*sample.image.shape[:2], 0), np.uint8), masks=None),
            detections=replace(seen, masks=None, multiclass_scores=None, keypoints=None, anchor_indices=None),
            losses=losses,
            picture=draw_beside_truth(truth, seen, classes, plan) if index in drawn else None,
            masks=_masks(sample, arrays),
        )


def _masks(sample: Sample, found: FoundObjects) -> ImageMasks | None:
    """Return the masks of an image as run lengths, which a whole data set's fit in memory; None without any."""
    if found.masks is None:
        return None
    # Objects without masks stay without; metrics of masks then say so.
    truth = [encode_mask(mask) for mask in sample.masks] if sample.masks is not None else []
    return ImageMasks(truth, list(mask_run_lengths(found)))


def _one_class(sample: Sample, found: FoundObjects) -> tuple[Sample, FoundObjects]:
    """Let every object be of one class."""
    one = Categories((Category(0, 1, "object"),))
    truth = replace(sample, labels=np.zeros_like(sample.labels))
    return truth, replace(found, labels=np.zeros_like(found.labels), categories=one)


def _losses(
    detector: Detector | MultiScaleDetector,
    predictions: Any,
    samples: list[Sample],
    sizes: Tensor,
    plan: EvaluationPlan,
    *,
    seed: int,
) -> dict[str, float]:
    """Compute TF's loss terms of images that were detected in together; the seed is for sampled anchors."""
    if not detector.network.learns_masks:
        samples = [replace(sample, masks=None) for sample in samples]
    objects = [learnable(sample, (h, w)) for sample, (h, w) in zip(samples, sizes.tolist(), strict=True)]
    largest = tuple(sizes.amax(0).tolist())
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        losses = LossTerm.values(detector.criterion(predictions, stack_targets(objects, largest).to(sizes.device)))
        if plan.regularize:
            losses[REGULARIZATION] = detector.regularization()
        values = {name: float(value) for name, value in losses.items()}
    return values | {TOTAL: sum(values.values())}


def _summed_up(parts: Iterable[Part], categories: Categories, plan: EvaluationPlan) -> Evaluation:
    metrics = [make(categories) for make in plan.metrics]
    rows: list[dict[str, Any]] = []
    pictures: dict[str, NDArray[np.uint8]] = {}
    sums: dict[str, float] = {}
    count = 0
    for part in sorted(parts, key=lambda part: part.index):
        for metric in metrics:
            metric.add(part.sample, part.detections, part.masks)
        segmentations = None if part.masks is None else part.masks.found
        rows += detection_rows(part.detections, part.sample.id, categories, segmentations)
        if part.picture is not None:
            name = part.sample.id or str(count)
            pictures[name if name not in pictures else f"{name} ({count})"] = part.picture
        count += 1
        sums = {name: sums.get(name, 0.0) + value for name, value in part.losses.items()}
    results = [metric.compute() for metric in metrics]
    values = {name: value for result in results for name, value in result.values.items()}
    values |= {name: total / count for name, total in sums.items()}
    return Evaluation(values, [note for result in results for note in result.notes], rows, pictures, results)


def _batches(samples: Iterable[tuple[int, Sample]], size: int) -> Iterator[list[tuple[int, Sample]]]:
    batch: list[tuple[int, Sample]] = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def run_evaluation(
    config: m.TrainEvalPipelineConfig,
    detector: Detector | ExportedDetector,
    settings: EvaluationSettings = _DEFAULTS,
    progress: Progress = _silent,
) -> Evaluation:
    """Return what a detector, on its device, or an exported one finds in the data that the settings choose.

    A missing reader, other classes than the detector's, and several scales of an export are a ConfigError.
    """
    opened = open_evaluation(config, settings, detector.categories)
    if isinstance(detector, ExportedDetector):
        look = _look(detector, settings, opened.plan)
        return _evaluation(look, opened.dataset, opened.plan, progress, ALONE, settings.workers)
    seeing = at_scales(detector, settings.multi_scale)
    return evaluate_detector(seeing, opened.dataset, opened.plan, progress, workers=settings.workers)


def reader_name(config: m.TrainEvalPipelineConfig, settings: EvaluationSettings) -> str:
    """Return the chosen reader's `name`; where it has none, nothing for the first and the number for others."""
    if settings.eval_on_train_data:
        return "eval_on_train"
    number = settings.eval_index
    return config.eval_input_reader[number].name or (str(number) if number else "")


def check_same_classes(trained: Categories | None, given: Categories) -> None:
    """Insist that labels mean the same in the detector and in the data.

    Args:
        trained: The detector's classes, if known.
        given: The data's.

    Raises:
        ConfigError: Where a label has two names.
    """
    for category in given if trained else ():
        other = next((item for item in trained or () if item.label == category.label), None)
        if other is None or other.name != category.name:
            name = other.name if other else "nothing"
            raise ConfigError(
                f"label {category.label} is {category.name!r} in the data, but {name!r} in the detector; "
                "is this the right label map?"
            )


def evaluate(config: m.TrainEvalPipelineConfig, model_dir: str | Path) -> dict[str, float]:
    """Evaluate the newest checkpoint of a run on the first evaluation reader.

    Args:
        config: The configuration; its network must be the checkpoint's.
        model_dir: The run's folder.

    Returns:
        TF's metric names to values.
    """
    detector, _, _ = restore_detector(model_dir, config=config)
    return run_evaluation(config, detector).metrics
