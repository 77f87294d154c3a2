"""Evaluating a detector on a data set: metrics, detections, pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.builders.evaluation import EvaluationPlan
from boxwright.criteria.terms import REGULARIZATION, TOTAL, LossTerm
from boxwright.data.batch import learnable, stack_targets
from boxwright.data.dataset import Dataset
from boxwright.data.image_io import encode_png
from boxwright.data.pictures import draw_sample
from boxwright.distributed import ALONE, Processes
from boxwright.drawing import draw_boxes, side_by_side
from boxwright.files import make_folder, unfinished, unique_stem, write_whole
from boxwright.metrics.metric import without_nan
from boxwright.models.detector import Detector
from boxwright.models.multi_scale import MultiScaleDetector
from boxwright.types import Categories, Category, Detections, Sample

__all__ = [
    "Evaluation",
    "detection_rows",
    "draw_detections",
    "evaluate_detector",
    "write_evaluation",
]

Progress = Callable[[Iterable[int], str], Iterable[int]]
# A number as it is written back: no leading zeros, digits of ASCII, and no more of them than 64 bits have.
_NUMBER = re.compile("0|[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        metrics: TF's metric names to values.
        notes: Why a metric is 0, -1 or NaN, where one is.
        rows: All detections in COCO's result form, image by image.
        pictures: Detections beside truth, by image id.
    """

    metrics: dict[str, float]
    notes: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[str, NDArray[np.uint8]] = field(default_factory=dict)


def _silent(indices: Iterable[int], _: str) -> Iterable[int]:
    return indices


@dataclass(frozen=True)
class _Part:
    """What was found in one image; without its pixels, so that it can travel between processes."""

    index: int
    sample: Sample
    detections: Detections
    losses: dict[str, float]
    picture: NDArray[np.uint8] | None


def evaluate_detector(
    detector: Detector | MultiScaleDetector,
    dataset: Dataset,
    plan: EvaluationPlan,
    progress: Progress = _silent,
    processes: Processes = ALONE,
) -> Evaluation:
    """Run a detector over a data set, which the processes share.

    Args:
        detector: The detector; in each process the same.
        dataset: The data.
        plan: How.
        progress: Wraps the indices and takes a title, to show how far it is.
        processes: Those that evaluate; each image is seen by one of them.

    Returns:
        Metrics, detections and pictures, the same in every process, whatever their number. Pictures are
        of images spread evenly over the data.
    """
    indices = range(0, len(dataset), plan.every_nth)
    step = max(len(indices) // max(plan.num_pictures, 1), 1)
    drawn = set(list(indices)[::step][: plan.num_pictures])
    size = plan.batch_size
    shared = processes.share([indices[start : start + size] for start in range(0, len(indices), size)])
    training = detector.training
    detector.eval()
    try:
        parts = [
            part
            for batch in _batches(progress([index for batch in shared for index in batch], "evaluate"), size)
            for part in _evaluate_batch(detector, dataset, plan, batch, drawn)
        ]
    finally:
        detector.train(training)
    gathered = [part for some in processes.gather(parts) for part in some]
    return _summed_up(sorted(gathered, key=lambda part: part.index), _categories(dataset, plan), plan)


def _categories(dataset: Dataset, plan: EvaluationPlan) -> Categories:
    return Categories((Category(0, 1, "object"),)) if plan.class_agnostic else dataset.categories


def _evaluate_batch(
    detector: Detector | MultiScaleDetector, dataset: Dataset, plan: EvaluationPlan, indices: list[int], drawn: set[int]
) -> Iterator[_Part]:
    # As in TF, the losses of an evaluation are of labels, whatever scores the records have.
    samples = [replace(dataset[index], class_scores=None) for index in indices]
    start = 0
    for found, predictions, sizes in detector.detect_runs([sample.image for sample in samples]):
        run = samples[start : start + len(found)]
        losses = _losses(detector, predictions, run, sizes, plan, seed=indices[start]) if plan.losses else {}
        for index, sample, detections in zip(indices[start:], run, found, strict=False):
            truth, seen = _one_class(sample, detections) if plan.class_agnostic else (sample, detections)
            yield _Part(
                index=index,
                sample=replace(truth, image=np.zeros((*sample.image.shape[:2], 0), np.uint8), masks=None),
                detections=_on_cpu(seen),
                losses=losses,
                picture=_picture(truth, seen, _categories(dataset, plan), plan) if index in drawn else None,
            )
        start += len(found)


def _one_class(sample: Sample, found: Detections) -> tuple[Sample, Detections]:
    """Let every object be of one class."""
    one = Categories((Category(0, 1, "object"),))
    truth = replace(sample, labels=np.zeros_like(sample.labels))
    return truth, replace(found, labels=torch.zeros_like(found.labels), categories=one)


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
    objects = [learnable(sample, (h, w)) for sample, (h, w) in zip(samples, sizes.tolist(), strict=True)]
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        losses = LossTerm.values(detector.criterion(predictions, stack_targets(objects).to(sizes.device)))
        if plan.regularize:
            losses[REGULARIZATION] = detector.regularization()
        values = {name: float(value) for name, value in losses.items()}
    return values | {TOTAL: sum(values.values())}


def _on_cpu(found: Detections) -> Detections:
    """Keep what metrics and files need."""
    return Detections(found.boxes.cpu(), found.scores.cpu(), found.labels.cpu(), found.image_size, found.categories)


def _summed_up(parts: Iterable[_Part], categories: Categories, plan: EvaluationPlan) -> Evaluation:
    metrics = [make(categories) for make in plan.metrics]
    rows: list[dict[str, Any]] = []
    pictures: dict[str, NDArray[np.uint8]] = {}
    sums: dict[str, float] = {}
    count = 0
    for part in parts:
        for metric in metrics:
            metric.add(part.sample, part.detections)
        rows += detection_rows(part.detections, part.sample.id, categories)
        if part.picture is not None:
            name = part.sample.id or str(count)
            pictures[name if name not in pictures else f"{name} ({count})"] = part.picture
        count += 1
        sums = {name: sums.get(name, 0.0) + value for name, value in part.losses.items()}
    values: dict[str, float] = {}
    notes: list[str] = []
    for metric in metrics:
        found_values = metric.compute()
        values |= found_values
        notes += metric.explain(found_values)
    values |= {name: total / count for name, total in sums.items()}
    return Evaluation(values, notes, rows, pictures)


def _batches(indices: Iterable[int], size: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for index in indices:
        batch.append(index)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def detection_rows(detections: Detections, image_id: str, categories: Categories | None) -> list[dict[str, Any]]:
    """Write detections as rows of COCO's results file.

    Args:
        detections: The detections of one image.
        image_id: Its id; a number where it reads as one.
        categories: The classes, for their ids; without, ids are labels plus 1.

    Returns:
        One row a detection.
    """
    identity: str | int = int(image_id) if _NUMBER.fullmatch(image_id) else image_id
    boxes, scores = detections.boxes.double().tolist(), detections.scores.tolist()
    return [
        {
            "image_id": identity,
            "category_id": categories.by_label(label).id if categories else label + 1,
            "bbox": [round(v, 3) for v in (box[0], box[1], box[2] - box[0], box[3] - box[1])],
            "score": round(score, 6),
        }
        for box, score, label in zip(boxes, scores, detections.labels.tolist(), strict=True)
    ]


def _picture(sample: Sample, found: Detections, categories: Categories, plan: EvaluationPlan) -> NDArray[np.uint8]:
    left = draw_detections(sample.image, found, plan.min_score, plan.max_boxes)
    titles = (f"detections, score {plan.min_score:g} or more", "truth")
    return side_by_side(left, draw_sample(sample, categories), titles)


def draw_detections(image: NDArray[np.uint8], found: Detections, min_score: float, max_boxes: int) -> NDArray[np.uint8]:
    """Draw the best detections, the best last, so that it lies on top.

    Args:
        image: uint8 [H, W, 3].
        found: The detections.
        min_score: The least score that is drawn.
        max_boxes: The most boxes.

    Returns:
        uint8 [H, W, 3].
    """
    shown = found.above(min_score)
    count = min(len(shown), max_boxes)
    captions = [f"{name} {score:.2f}" for name, score in zip(shown.names(), shown.scores.tolist(), strict=True)]
    boxes, labels = shown.boxes[:count].cpu().numpy(), shown.labels[:count].tolist()
    # What a head predicts of a mask is of its box; only a whole picture's can be laid over one.
    whole = shown.masks is not None and tuple(shown.masks.shape[1:]) == image.shape[:2]
    masks = (shown.masks[:count] > 0.5).cpu().numpy()[::-1].astype(np.uint8) if whole else None  # type: ignore[index]
    points = None if shown.keypoints is None else shown.keypoints[:count].cpu().numpy()[::-1]
    return draw_boxes(image, boxes[::-1], labels[::-1], captions[:count][::-1], masks=masks, keypoints=points)


def write_evaluation(evaluation: Evaluation, folder: str | Path) -> None:
    """Write metrics.json, detections.json and the pictures.

    Args:
        evaluation: What was found.
        folder: Where to; it is made.

    Raises:
        OutputError: Where the disk is full or the folder cannot be written; it stays marked as unfinished.
    """
    with unfinished(folder, "an evaluation") as whole:
        pictures, taken = make_folder(whole / "pictures"), set[str]()
        for name, picture in evaluation.pictures.items():
            write_whole(pictures / f"{unique_stem(name, taken)}.png", encode_png(picture))
        write_whole(whole / "detections.json", json.dumps(evaluation.rows) + "\n")
        write_whole(whole / "metrics.json", json.dumps(without_nan(evaluation.metrics), indent=2) + "\n")
