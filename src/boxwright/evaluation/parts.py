"""What an evaluation looks at and how it is summed up, whatever detects; without PyTorch.

What was found in the images travels as parts, one an image, so that several processes can look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError
from boxwright.builders.evaluation import EvaluationPlan, build_evaluation
from boxwright.builders.input_reader import build_dataset
from boxwright.config import messages as m
from boxwright.data.dataset import Dataset
from boxwright.evaluation.pictures import draw_beside_truth
from boxwright.evaluation.results import Evaluation, detection_rows
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.metrics.regions import ImageMasks
from boxwright.ops.pasted_masks import mask_run_lengths
from boxwright.ops.run_lengths import encode_mask
from boxwright.types import Categories, Category, FoundObjects, Sample

Progress = Callable[[Iterable[int], str], Iterable[int]]
# From samples and a seed to what is found in each, and losses.
Look = Callable[[list[Sample], int], Iterator[tuple[FoundObjects, dict[str, float]]]]
# From all batches to those that one process looks at.
Share = Callable[[list[range]], Sequence[range]]
_NTH_OF_TRAINING = 5
# From a data set and indices to its samples in their order; closed when no more are wanted.
Read = Callable[[Dataset, Sequence[int]], Iterator[Sample]]


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


def silent(indices: Iterable[int], _: str) -> Iterable[int]:
    """Return the indices, showing nothing."""
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
    return found if every is None else found.replaced(sample_1_of_n_examples=every), where


def look_at(
    look: Look,
    data: EvaluationSet,
    read: Read,
    progress: Progress = silent,
    share: Share = lambda batches: batches,
) -> list[Part]:
    """Return what is found in the images of a share.

    Args:
        progress: Wraps the indices and takes a title, to show how far it is.

    Returns:
        A part an image. Pictures are of images spread evenly over all the data.
    """
    plan, dataset = data.plan, data.dataset
    indices = range(0, len(dataset), plan.every_nth)
    step = max(len(indices) // max(plan.num_pictures, 1), 1)
    drawn = set(list(indices)[::step][: plan.num_pictures])
    size = plan.batch_size
    batches = [indices[start : start + size] for start in range(0, len(indices), size)]
    mine = [index for batch in share(batches) for index in batch]
    with closing(read(dataset, mine)) as samples:  # type: ignore[type-var]  # generators, all of them
        return [
            part
            for batch in _batches(zip(progress(mine, "evaluate"), samples, strict=True), size)
            for part in _look_at_batch(look, data, batch, drawn)
        ]


def categories_of(data: EvaluationSet) -> Categories:
    """Return the classes that are counted: those of the data, or one of all objects."""
    return Categories((Category(0, 1, "object"),)) if data.plan.class_agnostic else data.dataset.categories


def _look_at_batch(look: Look, data: EvaluationSet, batch: list[tuple[int, Sample]], drawn: set[int]) -> Iterator[Part]:
    plan, classes = data.plan, categories_of(data)
    indices = [index for index, _ in batch]
    # As in TF, the losses of an evaluation are of labels, whatever scores the records have.
    samples = [replace(sample, class_scores=None) for _, sample in batch]
    for index, sample, (arrays, losses) in zip(indices, samples, look(samples, indices[0]), strict=True):
        truth, seen = _one_class(sample, arrays) if plan.class_agnostic else (sample, arrays)
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


def sum_up(parts: Iterable[Part], plan: EvaluationPlan, categories: Categories) -> Evaluation:
    """Return metrics, detections and pictures.

    Args:
        parts: Of all images, in any order.
        categories: The classes that are counted, as `categories_of` says.
    """
    parts = list(parts)
    rows: list[dict[str, Any]] = []
    for part in sorted(parts, key=lambda part: part.index):
        segmentations = None if part.masks is None else part.masks.found
        rows += detection_rows(part.detections, part.sample.id, categories, segmentations)
    return replace(without_rows(parts, plan, categories), rows=rows)


def without_rows(parts: Iterable[Part], plan: EvaluationPlan, categories: Categories) -> Evaluation:
    """Return metrics and pictures, as `sum_up` does, and not each detection as a row."""
    metrics = [make(categories) for make in plan.metrics]
    pictures: dict[str, NDArray[np.uint8]] = {}
    sums: dict[str, float] = {}
    count = 0
    for part in sorted(parts, key=lambda part: part.index):
        for metric in metrics:
            metric.add(part.sample, part.detections, part.masks)
        if part.picture is not None:
            name = part.sample.id or str(count)
            pictures[name if name not in pictures else f"{name} ({count})"] = part.picture
        count += 1
        sums = {name: sums.get(name, 0.0) + value for name, value in part.losses.items()}
    results = [metric.compute() for metric in metrics]
    values = {name: value for result in results for name, value in result.values.items()}
    values |= {name: total / count for name, total in sums.items()}
    return Evaluation(values, [note for result in results for note in result.notes], [], pictures, results)


def _batches(samples: Iterable[tuple[int, Sample]], size: int) -> Iterator[list[tuple[int, Sample]]]:
    batch: list[tuple[int, Sample]] = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def reader_name(config: m.TrainEvalPipelineConfig, settings: EvaluationSettings) -> str:
    """Return the chosen reader's `name`; where it has none, nothing for the first and the number for others."""
    if settings.eval_on_train_data:
        return "eval_on_train"
    number = settings.eval_index
    return config.eval_input_reader[number].name or (str(number) if number else "")


def check_same_classes(trained: Categories | None, given: Categories) -> None:
    """Insist that labels mean the same in the detector and in the data.

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
