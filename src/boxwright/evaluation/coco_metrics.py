"""COCO's detection metrics, under the names that TensorFlow gives them."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from boxwright.types import Categories, Detections, Sample

__all__ = ["CocoMetrics"]

_NAMES = (
    "DetectionBoxes_Precision/mAP",
    "DetectionBoxes_Precision/mAP@.50IOU",
    "DetectionBoxes_Precision/mAP@.75IOU",
    "DetectionBoxes_Precision/mAP (small)",
    "DetectionBoxes_Precision/mAP (medium)",
    "DetectionBoxes_Precision/mAP (large)",
    "DetectionBoxes_Recall/AR@1",
    "DetectionBoxes_Recall/AR@10",
    "DetectionBoxes_Recall/AR@100",
    "DetectionBoxes_Recall/AR@100 (small)",
    "DetectionBoxes_Recall/AR@100 (medium)",
    "DetectionBoxes_Recall/AR@100 (large)",
)


class CocoMetrics:
    """Gathers truth and detections image by image, then computes the twelve numbers (and each class's)."""

    def __init__(self, categories: Categories) -> None:
        """Start empty.

        Args:
            categories: The classes.
        """
        self.categories = categories
        self._images: list[dict[str, Any]] = []
        self._truth: list[dict[str, Any]] = []
        self._found: list[dict[str, Any]] = []

    def add(self, sample: Sample, detections: Detections) -> None:
        """Add one image.

        Args:
            sample: The truth; boxes in pixels of the original image.
            detections: What was found, in the same frame.
        """
        image_id = len(self._images) + 1
        height, width = sample.image.shape[:2]
        self._images.append({"id": image_id, "height": height, "width": width})
        for box, label, area, crowd in zip(sample.boxes, sample.labels, sample.areas, sample.is_crowd, strict=True):
            row = {"id": len(self._truth) + 1, "image_id": image_id, "category_id": int(label), "bbox": _xywh(box)}
            self._truth.append({**row, "area": float(area), "iscrowd": int(crowd)})
        found = zip(detections.boxes.cpu().numpy(), detections.scores.tolist(), detections.labels.tolist(), strict=True)
        for box, score, label in found:
            self._found.append({"image_id": image_id, "category_id": label, "bbox": _xywh(box), "score": score})

    def compute(self, *, per_category: bool = False) -> dict[str, float]:
        """Compute the metrics.

        Args:
            per_category: Whether to add `DetectionBoxes_PerformanceByCategory/mAP/NAME`.

        Returns:
            Metric name to value; -1 where there is no truth that the metric is about.
        """
        with contextlib.redirect_stdout(io.StringIO()):
            truth = COCO()
            truth.dataset = {
                "images": self._images,
                "annotations": self._truth,
                "categories": [{"id": item.label, "name": item.name} for item in self.categories],
            }
            truth.createIndex()
            found = _results(truth, self._found)
            evaluator = COCOeval(truth, found, "bbox")
            evaluator.evaluate()
            evaluator.accumulate()
            evaluator.summarize()
        metrics = {name: float(value) for name, value in zip(_NAMES, evaluator.stats, strict=True)}
        if per_category:
            metrics |= self._by_category(evaluator)
        return metrics

    def _by_category(self, evaluator: Any) -> dict[str, float]:
        precision = evaluator.eval["precision"][:, :, :, 0, -1]  # IoU, recall, class; all areas, 100 detections
        values = {}
        for column, label in enumerate(evaluator.params.catIds):
            known = precision[:, :, column][precision[:, :, column] > -1]
            name = f"DetectionBoxes_PerformanceByCategory/mAP/{self.categories.by_label(label).name}"
            values[name] = float(known.mean()) if known.size else -1.0
        return values

    def explain(self, metrics: dict[str, float]) -> list[str]:
        """Say why a metric is 0 or -1.

        Args:
            metrics: What `compute` returned.

        Returns:
            Lines to print; none where nothing needs explaining.
        """
        value = metrics[_NAMES[0]]
        if not self._truth:
            return [f"AP is -1: none of the {len(self._images)} images has an object"]
        if not self._found:
            return ["AP is 0: no detection scored above the threshold of post_processing; is the detector trained?"]
        if value == 0:
            best = max(row["score"] for row in self._found)
            return [
                f"AP is 0: none of {len(self._found)} detections (best score {best:.3g}) "
                "overlaps an object of its class"
            ]
        return []


def _xywh(box: Any) -> list[float]:
    x_min, y_min, x_max, y_max = (float(value) for value in box)
    return [x_min, y_min, x_max - x_min, y_max - y_min]


def _results(truth: COCO, found: list[dict[str, Any]]) -> COCO:
    """Build what `loadRes` would, which refuses an empty list."""
    results = COCO()
    rows = [
        {**row, "id": number, "area": row["bbox"][2] * row["bbox"][3], "iscrowd": 0}
        for number, row in enumerate(found, start=1)
    ]
    results.dataset = {
        "images": truth.dataset["images"],
        "categories": truth.dataset["categories"],
        "annotations": rows,
    }
    results.createIndex()
    return results
