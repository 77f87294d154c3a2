"""The results of an evaluation, and their files."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.data.image_io import encode_png
from boxwright.evaluation.metrics.metric import MetricResult
from boxwright.nn.ops.pasted_masks import RunLengths, mask_run_lengths
from boxwright.types import Array, Categories, Detections
from boxwright.types.categories import ids

# A number that is written back unchanged: no leading zeros, ASCII digits, and no more of them than fit in 64 bits.
_NUMBER = re.compile("0|[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation.

    Attributes:
        notes: Explanations of metrics that are 0, -1 or NaN.
        pictures: Detections beside ground truth, by image id.
        results: The results of each metric set, with curves.
    """

    metrics: dict[str, float]
    notes: list[str]
    pictures: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    results: list[MetricResult] = field(default_factory=list)


def image_identity(image_id: str) -> str | int:
    """Return an image's id for COCO's files: a number if it reads as one."""
    return int(image_id) if _NUMBER.fullmatch(image_id) else image_id


def detection_rows(
    detections: Detections[Array],
    image_id: str,
    categories: Categories | None,
    segmentations: Sequence[RunLengths] | None = None,
) -> list[dict[str, Any]]:
    """Return detections as rows of COCO's results file; the image id becomes a number if it reads as one.

    `keypoint_depths` and `temporal_offset` (y, x), if the detector predicts them, are not COCO's.

    Args:
        categories: The classes, for their ids; if None, ids are labels plus 1.
    """
    more: list[dict[str, Any]] = [{} for _ in range(len(detections))]
    for row, code in zip(more, segmentations or (), strict=False):
        row["segmentation"] = code
    for key, values in (
        ("keypoint_depths", detections.keypoint_depths),
        ("temporal_offset", detections.temporal_offsets),
    ):
        for row, own in zip(more, () if values is None else values.astype(np.float64).round(4), strict=False):
            row[key] = own.tolist()
    # COCO's third number is a visibility, which its evaluation of results ignores; scores stand there by custom.
    if detections.keypoints is not None:
        for row, points in zip(more, keypoints_of_classes(detections, categories), strict=True):
            row["keypoints"] = points.flatten().tolist()
    identity = image_identity(image_id)
    class_ids = ids(categories, detections.labels.tolist())
    boxes, scores = detections.boxes.astype(np.float64).tolist(), detections.scores.tolist()
    return [
        {
            "image_id": identity,
            "category_id": class_id,
            "bbox": [round(v, 3) for v in (box[0], box[1], box[2] - box[0], box[3] - box[1])],
            "score": round(score, 6),
            **own,
        }
        for box, score, class_id, own in zip(boxes, scores, class_ids, more, strict=True)
    ]


def large_values(detections: Detections[Array]) -> list[dict[str, Any]]:
    """Return what a detector predicts of each object in many numbers; evaluations do not keep it.

    Returns:
        For each object, if the detector predicts it, its mask as COCO's run lengths (`segmentation`), its `embedding`,
        and its body's `surface`: `size` (rows and columns, which span the box) and `iuv`, base64 of the picture that
        `surface_picture` returns.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(len(detections))]
    if detections.masks is not None:
        for row, code in zip(rows, mask_run_lengths(detections), strict=True):
            row["segmentation"] = code
    if detections.embeddings is not None:
        for row, own in zip(rows, detections.embeddings.astype(np.float64).round(6), strict=True):
            row["embedding"] = own.tolist()
    if detections.surface_parts is not None and detections.surface_coordinates is not None:
        for row, parts, places in zip(rows, detections.surface_parts, detections.surface_coordinates, strict=True):
            picture = base64.b64encode(surface_picture(parts, places)).decode()
            row["surface"] = {"size": list(parts.shape), "iuv": picture}
    return rows


def surface_picture(parts: NDArray[np.uint8], places: NDArray[np.float32]) -> bytes:
    """Return an object's surface as PNG: part (0 for none), u and v in 0..255 as red, green and blue.

    DensePose's custom, by which other programs read it.

    Args:
        parts: uint8 [h, w].
        places: float32 [h, w, 2]; v and u in 0..1.
    """
    levels = (places.clip(0, 1) * 255).round().astype(np.uint8)
    return encode_png(np.dstack([parts, levels[..., 1], levels[..., 0]]))


def keypoints_of_classes(detections: Detections[Array], categories: Categories | None) -> list[NDArray[np.float64]]:
    """Return the keypoints of each detection, x, y and score, [P, 3], of its class alone if the classes name theirs.

    COCO's evaluation expects as many as an object of the class has, of which a detection with several tasks has more.
    """
    points = detections.scored_keypoints()
    if points is None:
        return []
    known = (
        {}
        if categories is None
        else {category.label: list(category.keypoint_indices) for category in categories if category.keypoints}
    )
    listed = []
    for label, own in zip(detections.labels.tolist(), points.astype(np.float64).round(3), strict=True):
        places = known.get(label, [])
        # A detector of one class has the points of that alone, whatever their ids.
        listed.append(own[places] if places and max(places) < len(own) else own)
    return listed
