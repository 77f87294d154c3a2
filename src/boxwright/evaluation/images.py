"""The evaluation of each image, by a detector of any kind; without PyTorch.

Each image gives one value that can be sent between processes, so that several can share the images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from boxwright.base.threads import map_in_order
from boxwright.data.dataset import Dataset
from boxwright.evaluation.data import ONE_CLASS, EvaluationData
from boxwright.evaluation.metrics.regions import ImageMasks
from boxwright.evaluation.pictures import draw_beside_truth
from boxwright.nn.ops.pasted_masks import encode_mask, mask_run_lengths
from boxwright.types import Array, Categories, Detections, Sample

# Wraps the indices of images, to show progress under a title.
Progress = Callable[[Iterable[int], str], Iterable[int]]
# From samples and a seed to the objects in each, and its losses.
SampleDetector = Callable[[list[Sample], int], Iterator[tuple[Detections[Array], dict[str, float]]]]
# From all batches to those of one process.
Share = Callable[[list[range]], Sequence[range]]
# From a data set and indices to its samples in that order; closed when no more are needed.
Read = Callable[[Dataset, Sequence[int]], Iterator[Sample]]


def silent(indices: Iterable[int], _: str) -> Iterable[int]:
    """Return the indices without showing progress."""
    return indices


def all_batches(batches: list[range]) -> Sequence[range]:
    """Return all batches, for a single process."""
    return batches


@dataclass(frozen=True)
class EvaluatedImage:
    """The detections in one image, without its pixels, so that it can be sent between processes."""

    index: int
    sample: Sample
    detections: Detections[Array]
    losses: dict[str, float]
    picture: NDArray[np.uint8] | None
    masks: ImageMasks | None


# Takes the images of an evaluation in the data's order, and the classes that are counted.
Keep = Callable[[EvaluatedImage, Categories], None]


def keep_nothing(_: EvaluatedImage, __: Categories) -> None:
    """Keep nothing of an image."""


def evaluate_images(
    detect: SampleDetector,
    data: EvaluationData,
    read: Read,
    progress: Progress = silent,
    share: Share = all_batches,
    ahead: int = 0,
) -> Iterator[EvaluatedImage]:
    """Yield the evaluated images of a share, in its order; pictures are spread evenly over all the data.

    Args:
        detect: Of a network, as `network_on_samples` gives it, or `export_on_samples`.
        ahead: How many batches are detected in, in a thread, before the images of an earlier one are taken.
    """
    plan, dataset = data.plan, data.dataset
    indices = range(0, len(dataset), plan.every_nth)
    step = max(len(indices) // max(plan.num_pictures, 1), 1)
    drawn = set(list(indices)[::step][: plan.num_pictures])
    size = plan.batch_size
    batches = [indices[start : start + size] for start in range(0, len(indices), size)]
    mine = [index for batch in share(batches) for index in batch]
    with closing(read(dataset, mine)) as samples:  # type: ignore[type-var]  # generators, all of them
        given = _batches(zip(progress(mine, "evaluate"), samples, strict=True), size)

        def evaluate(batch: list[tuple[int, Sample]]) -> list[EvaluatedImage]:
            return list(_evaluate_batch(detect, data, batch, drawn))

        yield from chain.from_iterable(map_in_order(evaluate, given, 1, ahead) if ahead else map(evaluate, given))


def _evaluate_batch(
    detect: SampleDetector, data: EvaluationData, batch: list[tuple[int, Sample]], drawn: set[int]
) -> Iterator[EvaluatedImage]:
    plan, classes = data.plan, data.counted_categories
    indices = [index for index, _ in batch]
    # As in TF, evaluation losses use labels, even if the records have scores.
    samples = [replace(sample, class_scores=None) for _, sample in batch]
    for index, sample, (arrays, losses) in zip(indices, samples, detect(samples, indices[0]), strict=True):
        truth, seen = _one_class(sample, arrays) if plan.class_agnostic else (sample, arrays)
        yield EvaluatedImage(
            index=index,
            sample=replace(truth, image=np.zeros((*sample.image.shape[:2], 0), np.uint8), masks=None),
            detections=replace(seen, masks=None, multiclass_scores=None, anchor_indices=None),
            losses=losses,
            picture=draw_beside_truth(truth, seen, classes, plan) if index in drawn else None,
            masks=_masks(sample, arrays),
        )


def _masks(sample: Sample, detections: Detections[Array]) -> ImageMasks | None:
    """Return the masks of an image as run lengths, which fit in memory for a whole data set; None without masks."""
    if detections.masks is None:
        return None
    # Mask metrics report objects without masks.
    truth = [encode_mask(mask) for mask in sample.masks] if sample.masks is not None else []
    return ImageMasks(truth, list(mask_run_lengths(detections)))


def _one_class(sample: Sample, detections: Detections[Array]) -> tuple[Sample, Detections[Array]]:
    """Return a sample and its detections with every object in one class."""
    none = np.zeros(0, np.int64)
    truth = replace(sample, labels=np.zeros_like(sample.labels), negative_labels=none, not_exhaustive_labels=none)
    return truth, replace(detections, labels=np.zeros_like(detections.labels), categories=ONE_CLASS)


def _batches(samples: Iterable[tuple[int, Sample]], size: int) -> Iterator[list[tuple[int, Sample]]]:
    batch: list[tuple[int, Sample]] = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
