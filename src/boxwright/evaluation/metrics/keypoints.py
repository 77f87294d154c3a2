"""COCO's keypoint metrics of a class, by object keypoint similarity (OKS), with TensorFlow's names.

Dimensions: D detections, G objects, P keypoints of the class, T similarity thresholds, S ranges of size.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError, DataError
from boxwright.evaluation.metrics.coco_matching import (
    THRESHOLDS,
    claim_under_rules,
    compute_class_results,
    is_outside,
    mean_of_known,
)
from boxwright.evaluation.metrics.judged import MatchAccumulator, MatchedDetections
from boxwright.evaluation.metrics.matching import NOBODY
from boxwright.evaluation.metrics.metric import MetricResult
from boxwright.evaluation.metrics.regions import ImageMasks
from boxwright.types import Array, Categories, Detections, Sample

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# TF's tolerance of keypoints that the configuration does not list.
DEFAULT_SIGMA = 0.05
# Areas in pixels: all, medium, large. COCO has no small persons with keypoints.
_RANGES = np.array([[0.0, 1e10], [32.0**2, 96.0**2], [96.0**2, 1e10]])
# COCO's limit for keypoints, where boxes have 100.
_MOST = 20  # detections of an image


class CocoKeypointMetrics:
    """Accumulates keypoints by image, then computes COCO's ten metrics.

    Objects without visible keypoints, and crowds, are ignored with the detections that match them.
    """

    def __init__(self, categories: Categories, class_name: str, sigmas: Mapping[str, float]) -> None:
        """Start without images.

        Args:
            class_name: The class whose keypoints are compared; its keypoints are those of the label map.
            sigmas: The tolerance of each keypoint by name: its standard deviation in units of the square root of the
                object's area. Others have `DEFAULT_SIGMA`, as in TF.

        Raises:
            ConfigError: If there is no such class, it has no keypoints, or a name is none of theirs.
        """
        where = "eval_config.parameterized_metric.coco_keypoint_metrics"
        category = categories.by_any_name(class_name)
        if category is None:
            known = ", ".join(item.name for item in categories)
            raise ConfigError(f"{where}.class_label: {class_name!r} is none of the classes ({known})")
        if not category.keypoints:
            raise ConfigError(f"{where}.class_label: the label map lists no keypoints of {class_name!r}; add them")
        strange = sorted(set(sigmas) - set(category.keypoints))
        if strange:
            known = ", ".join(category.keypoints)
            raise ConfigError(f"{where}.keypoint_label_to_sigmas: {strange[0]!r} is none of the keypoints ({known})")
        self._category, self._indices = category, list(category.keypoint_indices)
        # As pycocotools, which doubles the published standard deviations before it squares them.
        self._variances = (2 * np.array([sigmas.get(name, DEFAULT_SIGMA) for name in category.keypoints])) ** 2
        self._accumulator = MatchAccumulator(len(_RANGES), len(THRESHOLDS), 0)
        self._objects = np.zeros(len(_RANGES), np.int64)
        self._images = 0

    def add(self, sample: Sample, detections: Detections[Array], masks: ImageMasks | None = None) -> None:
        """Add one image.

        Raises:
            DataError: If its objects have fewer keypoints than the class, or the detector predicts none.
        """
        del masks
        self._images += 1
        own = np.flatnonzero(sample.labels == self._category.label)
        chosen = np.flatnonzero(detections.labels == self._category.label)
        truth = self._truth(sample, own)
        detected = self._found(detections, chosen)
        order = np.argsort(-detections.scores[chosen], kind="stable")[:_MOST]
        detected = detected[order]
        areas = sample.areas[own].astype(np.float64)
        hidden = ~np.any(truth[..., 2] > 0, axis=1)
        ignored: Bools = np.asarray(is_outside(areas, _RANGES) | sample.is_crowd[own] | hidden)
        self._objects += (~ignored).sum(1)
        overlap = self._similarity(detected, truth, sample.boxes[own].astype(np.float64), areas)
        claims, of_ignored = claim_under_rules(overlap, ignored, sample.is_crowd[own])
        taken = claims != NOBODY
        # COCO's results of keypoints have no box: a detection's area is that of the extent of its keypoints.
        spans = (
            detected.max(1, initial=-np.inf) - detected.min(1, initial=np.inf) if len(detected) else np.zeros((0, 2))
        )
        outside = is_outside(spans.prod(1), _RANGES)[:, None]
        best = chosen[order]
        self._accumulator.add(
            MatchedDetections(
                detections.labels[best],
                np.arange(len(best)),
                detections.scores[best],
                right=taken & ~of_ignored,
                ignored=np.where(taken, of_ignored, outside),
                images=np.full(len(best), self._images - 1),
                detections=best,
                objects=np.zeros((0, len(best)), np.int32),
            )
        )

    def _truth(self, sample: Sample, own: NDArray[np.int64]) -> Floats:
        """Return the keypoints [G, P, 3] of the class's objects."""
        if not len(own):
            return np.zeros((0, len(self._indices), 3))
        if sample.keypoints is None or sample.keypoints.shape[1] <= max(self._indices):
            count = 0 if sample.keypoints is None else sample.keypoints.shape[1]
            raise DataError(
                f"{sample.id or 'an image'}: keypoint metrics were requested, but objects have {count} keypoints, and "
                f"{self._category.name!r} needs {max(self._indices) + 1}; set num_keypoints in the reader"
            )
        points = sample.keypoints[own][:, self._indices].astype(np.float64)
        return np.concatenate([np.where(points[..., 2:] > 0, points[..., :2], 0), points[..., 2:]], -1)

    def _found(self, detections: Detections[Array], chosen: NDArray[np.int64]) -> Floats:
        """Return the predicted keypoints [D, P, 2] of the class."""
        if not len(chosen):
            return np.zeros((0, len(self._indices), 2))
        if detections.keypoints is None or detections.keypoints.shape[1] <= max(self._indices):
            raise DataError("keypoint metrics were requested, but the detector predicts no keypoints of the class")
        return detections.keypoints[chosen][:, self._indices].astype(np.float64)

    def _similarity(self, detected: Floats, truth: Floats, boxes: Floats, areas: Floats) -> Floats:
        """Return the OKS of all pairs [D, G].

        The distance of an object without visible keypoints is that of each point from its box, doubled in size.
        """
        visible: Bools = np.asarray(truth[..., 2] > 0)
        some: Bools = np.asarray(visible.any(axis=1))
        offsets = detected[:, None] - truth[None, ..., :2]
        sides = boxes[:, 2:] - boxes[:, :2]
        low, high = (boxes[:, :2] - sides)[None, :, None], (boxes[:, :2] + 2 * sides)[None, :, None]
        beyond = np.maximum(low - detected[:, None], 0) + np.maximum(detected[:, None] - high, 0)
        squares = (np.where(some[None, :, None, None], offsets, beyond) ** 2).sum(-1)
        similar = np.exp(-squares / self._variances / (areas[None, :, None] + np.spacing(1)) / 2)
        counted = np.where(some[:, None], visible, True)
        return np.asarray((similar * counted).sum(-1) / counted.sum(-1))

    def compute(self) -> MetricResult:
        """Return the metrics; -1 for a metric without objects.

        TF names three recalls as those of boxes: AR@1 is the mean over all similarities, AR@10 the recall at 0.5,
        AR@100 that at 0.75.
        """
        judged = self._accumulator.by_class()
        results = compute_class_results(judged, self._category.label, self._objects, (_MOST,))
        precision, recall = results.precision, results.recalls[_MOST]
        values = {
            "Precision/mAP": mean_of_known([precision[0]]),
            "Precision/mAP@.50IOU": mean_of_known([precision[0, 0]]),
            "Precision/mAP@.75IOU": mean_of_known([precision[0, 5]]),
            "Precision/mAP (medium)": mean_of_known([precision[1]]),
            "Precision/mAP (large)": mean_of_known([precision[2]]),
            "Recall/AR@1": mean_of_known([recall[0]]),
            "Recall/AR@10": mean_of_known([recall[0, 0]]),
            "Recall/AR@100": mean_of_known([recall[0, 5]]),
            "Recall/AR@100 (medium)": mean_of_known([recall[1]]),
            "Recall/AR@100 (large)": mean_of_known([recall[2]]),
        }
        name = self._category.name
        notes = [] if self._objects[0] else [f"keypoint AP is -1: no {name} in {self._images} images has keypoints"]
        return MetricResult(
            {f"Keypoints_{key} ByCategory/{name}": average for key, average in values.items()}, [], notes
        )
