"""The summary of evaluated images: metrics, notes and pictures."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.build import EvaluationPlan
from boxwright.evaluation.image_results import Keep, keep_nothing
from boxwright.evaluation.images import EvaluatedImage
from boxwright.evaluation.results import Evaluation
from boxwright.types import Categories


def summarize(
    images: Iterable[EvaluatedImage], plan: EvaluationPlan, categories: Categories, keep: Keep = keep_nothing
) -> Evaluation:
    """Return metrics and pictures of images, none of which is kept after its turn.

    Args:
        images: In the data's order, by which equal scores are ranked.
        categories: As by `counted_categories`.
        keep: Gets each image.
    """
    metrics = [make(categories) for make in plan.metrics]
    pictures: dict[str, NDArray[np.uint8]] = {}
    sums: dict[str, float] = {}
    count = 0
    for image in images:
        for metric in metrics:
            metric.add(image.sample, image.detections, image.masks)
        keep(image, categories)
        if image.picture is not None:
            name = image.sample.id or str(count)
            pictures[name if name not in pictures else f"{name} ({count})"] = image.picture
        count += 1
        sums = {name: sums.get(name, 0.0) + value for name, value in image.losses.items()}
    results = [metric.compute() for metric in metrics]
    values = {name: value for result in results for name, value in result.values.items()}
    values |= {name: total / count for name, total in sums.items()}
    return Evaluation(values, [note for result in results for note in result.notes], pictures, results)


def in_order(images: Iterable[EvaluatedImage]) -> list[EvaluatedImage]:
    """Return images of several processes in the data's order."""
    return sorted(images, key=lambda image: image.index)
