"""Evaluating a detector on a data set: metrics, detections, pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from boxwright.builders.evaluation import EvaluationPlan
from boxwright.data.dataset import Dataset
from boxwright.drawing import draw_boxes, side_by_side
from boxwright.metrics.metric import without_nan
from boxwright.models.detector import Detector
from boxwright.types import Categories, Detections, Sample

__all__ = ["Evaluation", "detection_rows", "draw_detections", "draw_truth", "evaluate_detector", "write_evaluation"]

Progress = Callable[[Iterable[int], str], Iterable[int]]


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        metrics: TF's metric names to values.
        notes: Why a metric is 0, -1 or NaN, where one is.
        rows: All detections in COCO's result form, image by image.
        pictures: Truth beside detections, by image id.
    """

    metrics: dict[str, float]
    notes: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[str, NDArray[np.uint8]] = field(default_factory=dict)


def _silent(indices: Iterable[int], _: str) -> Iterable[int]:
    return indices


def evaluate_detector(
    detector: Detector, dataset: Dataset, plan: EvaluationPlan, progress: Progress = _silent
) -> Evaluation:
    """Run a detector over a data set.

    Args:
        detector: The detector.
        dataset: The data.
        plan: How.
        progress: Wraps the indices and takes a title, to show how far it is.

    Returns:
        Metrics, detections and pictures. Pictures are of images spread evenly over the data.
    """
    metrics = [make(dataset.categories) for make in plan.metrics]
    indices = range(0, len(dataset), plan.every_nth)
    step = max(len(indices) // max(plan.num_pictures, 1), 1)
    drawn = set(list(indices)[::step][: plan.num_pictures])
    rows: list[dict[str, Any]] = []
    pictures: dict[str, NDArray[np.uint8]] = {}
    for batch in _batches(progress(indices, "evaluate"), plan.batch_size):
        samples = [dataset[index] for index in batch]
        found = detector.detect([sample.image for sample in samples])
        for index, sample, detections in zip(batch, samples, found, strict=True):
            for metric in metrics:
                metric.add(sample, detections)
            rows += detection_rows(detections, sample.id, dataset.categories)
            if index in drawn:
                pictures[sample.id or str(index)] = _picture(sample, detections, dataset, plan)
    values: dict[str, float] = {}
    notes: list[str] = []
    for metric in metrics:
        found_values = metric.compute()
        values |= found_values
        notes += metric.explain(found_values)
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
    identity: str | int = int(image_id) if image_id.isdigit() and str(int(image_id)) == image_id else image_id
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


def _picture(sample: Sample, found: Detections, dataset: Dataset, plan: EvaluationPlan) -> NDArray[np.uint8]:
    right = draw_detections(sample.image, found, plan.min_score, plan.max_boxes)
    return side_by_side(draw_truth(sample, dataset), right, ("truth", f"detections, score {plan.min_score:g} or more"))


def draw_truth(sample: Sample, dataset: Dataset) -> NDArray[np.uint8]:
    """Draw the annotated boxes.

    Args:
        sample: The sample.
        dataset: The data, for names.

    Returns:
        uint8 [H, W, 3].
    """
    labels = sample.labels.tolist()
    names = [dataset.categories.by_label(label).title for label in labels]
    return draw_boxes(sample.image, sample.boxes, labels, names)


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
    return draw_boxes(image, boxes[::-1], labels[::-1], captions[:count][::-1])


def write_evaluation(evaluation: Evaluation, folder: str | Path) -> None:
    """Write metrics.json, detections.json and the pictures.

    Args:
        evaluation: What was found.
        folder: Where to; it is made.
    """
    folder = Path(folder)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps(without_nan(evaluation.metrics), indent=2) + "\n", encoding="utf-8")
    (folder / "detections.json").write_text(json.dumps(evaluation.rows) + "\n", encoding="utf-8")
    for name, picture in evaluation.pictures.items():
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        Image.fromarray(picture).save(folder / "pictures" / f"{safe}.png")
