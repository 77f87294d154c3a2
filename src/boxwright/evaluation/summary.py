"""The summary of evaluated images: metrics, notes, rows and pictures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.builders.evaluation import EvaluationPlan
from boxwright.evaluation.images import EvaluatedImage
from boxwright.evaluation.results import Evaluation, detection_rows
from boxwright.evaluation.truth import truth_of
from boxwright.types import Categories


def summarize(images: Iterable[EvaluatedImage], plan: EvaluationPlan, categories: Categories) -> Evaluation:
    """Return all of an evaluation, from images in any order; `categories` as by `counted_categories`."""
    images = sorted(images, key=lambda image: image.index)
    rows: list[dict[str, Any]] = []
    for image in images:
        segmentations = None if image.masks is None else image.masks.found
        rows += detection_rows(image.detections, image.sample.id, categories, segmentations)
    return replace(summarize_without_rows(images, plan, categories), rows=rows, truth=truth_of(images, categories))


def summarize_without_rows(
    images: Iterable[EvaluatedImage], plan: EvaluationPlan, categories: Categories
) -> Evaluation:
    """Return metrics and pictures, as `summarize` does, without rows of detections."""
    metrics = [make(categories) for make in plan.metrics]
    pictures: dict[str, NDArray[np.uint8]] = {}
    sums: dict[str, float] = {}
    count = 0
    for image in sorted(images, key=lambda image: image.index):
        for metric in metrics:
            metric.add(image.sample, image.detections, image.masks)
        if image.picture is not None:
            name = image.sample.id or str(count)
            pictures[name if name not in pictures else f"{name} ({count})"] = image.picture
        count += 1
        sums = {name: sums.get(name, 0.0) + value for name, value in image.losses.items()}
    results = [metric.compute() for metric in metrics]
    values = {name: value for result in results for name, value in result.values.items()}
    values |= {name: total / count for name, total in sums.items()}
    return Evaluation(values, [note for result in results for note in result.notes], [], pictures, results)
