"""COCO's metrics as a metric of torchmetrics, for loops that keep others of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from boxwright.evaluation.metrics.coco import CocoMetrics
from boxwright.types import Categories, Category, Detections, Sample

_FOUND = ("boxes", "scores", "labels")
_TRUTH = ("boxes", "labels", "iscrowd", "area")


class CocoMetric(Metric):
    """COCO's average precision and recall of boxes, with the values and the names that `boxwright.evaluate` gives.

    `update` takes what torchmetrics' MeanAveragePrecision takes: for each image a dictionary of `boxes` (xyxy in
    pixels), `scores` and `labels`, and one of `boxes`, `labels` and, where they are known, `iscrowd` and `area`. Labels
    are from 0.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    found_boxes: list[Tensor]

    def __init__(self, names: Sequence[str], **settings: Any) -> None:
        """Start without images.

        Args:
            names: The classes' names, by label.
            **settings: Those of every metric of torchmetrics, such as dist_sync_on_step.
        """
        super().__init__(**settings)
        self.names = tuple(names)
        # A list for each column, an item for each image, which torchmetrics gathers from all processes.
        for key in _FOUND:
            self.add_state(f"found_{key}", default=[], dist_reduce_fx=None)
        for key in _TRUTH:
            self.add_state(f"truth_{key}", default=[], dist_reduce_fx=None)

    def update(self, preds: Sequence[Mapping[str, Tensor]], target: Sequence[Mapping[str, Tensor]]) -> None:
        """Add images.

        Args:
            preds: What was found in each.
            target: What is in each.

        Raises:
            ValueError: If there are not as many of both.
        """
        for prediction, truth in zip(preds, target, strict=True):
            for key in _FOUND:
                getattr(self, f"found_{key}").append(prediction[key].detach())
            boxes = truth["boxes"].reshape(-1, 4)
            sides = boxes[:, 2:] - boxes[:, :2]
            known = {"iscrowd": torch.zeros_like(truth["labels"]), "area": sides[:, 0] * sides[:, 1], **truth}
            for key in _TRUTH:
                getattr(self, f"truth_{key}").append(known[key])

    def compute(self) -> dict[str, Tensor]:
        """Return the metrics by TensorFlow's names; -1 for one without objects."""
        categories = Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(self.names)))
        metrics = CocoMetrics(categories)
        for row in range(len(self.found_boxes)):
            boxes, scores, labels = (_array(getattr(self, f"found_{key}")[row]) for key in _FOUND)
            there, known, crowd, area = (_array(getattr(self, f"truth_{key}")[row]) for key in _TRUTH)
            order = np.argsort(-scores, kind="stable")
            detections = Detections(
                boxes.reshape(-1, 4).astype(np.float32)[order],
                scores.astype(np.float32)[order],
                labels.astype(np.int64)[order],
                (1, 1),
            )
            sample = Sample(
                np.zeros((1, 1, 3), np.uint8),
                boxes=there.reshape(-1, 4).astype(np.float32),
                labels=known.astype(np.int64),
                is_crowd=crowd.astype(bool),
                areas=area.astype(np.float32),
            )
            metrics.add(sample, detections)
        return {name: torch.tensor(value, device=self.device) for name, value in metrics.compute().values.items()}


def _array(values: Tensor) -> Any:
    """Return a tensor's numbers, of any device and precision."""
    return (values.float() if values.is_floating_point() else values).cpu().numpy()
