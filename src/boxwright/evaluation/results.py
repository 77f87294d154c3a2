"""What an evaluation found, and its files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.files import make_folder, unfinished, unique_stem, write_whole
from boxwright.data.image_io import encode_png
from boxwright.metrics.metric import MetricResult, without_nan
from boxwright.ops.run_lengths import RunLengths
from boxwright.types import Categories, FoundObjects
from boxwright.types.categories import ids

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
        results: What each metric set found, with the curves behind its values.
    """

    metrics: dict[str, float]
    notes: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    results: list[MetricResult] = field(default_factory=list)


def detection_rows(
    detections: FoundObjects,
    image_id: str,
    categories: Categories | None,
    segmentations: Sequence[RunLengths] | None = None,
) -> list[dict[str, Any]]:
    """Write detections as rows of COCO's results file.

    Args:
        image_id: Its id; a number where it reads as one.
        categories: The classes, for their ids; without, ids are labels plus 1.
        segmentations: Their masks, where there are any.
    """
    masks: list[dict[str, Any]] = [{}] * len(detections)
    if segmentations is not None:
        masks = [{"segmentation": code} for code in segmentations]
    identity: str | int = int(image_id) if _NUMBER.fullmatch(image_id) else image_id
    class_ids = ids(categories, detections.labels.tolist())
    boxes, scores = detections.boxes.astype(np.float64).tolist(), detections.scores.tolist()
    return [
        {
            "image_id": identity,
            "category_id": class_id,
            "bbox": [round(v, 3) for v in (box[0], box[1], box[2] - box[0], box[3] - box[1])],
            "score": round(score, 6),
            **mask,
        }
        for box, score, class_id, mask in zip(boxes, scores, class_ids, masks, strict=True)
    ]


def write_evaluation(evaluation: Evaluation, folder: str | Path) -> None:
    """Write metrics.json, detections.json and the pictures.

    Raises:
        OutputError: Where the disk is full or the folder cannot be written; it stays marked as unfinished.
    """
    with unfinished(folder, "an evaluation") as whole:
        pictures, taken = make_folder(whole / "pictures"), set[str]()
        for name, picture in evaluation.pictures.items():
            write_whole(pictures / f"{unique_stem(name, taken)}.png", encode_png(picture))
        write_whole(whole / "detections.json", json.dumps(evaluation.rows) + "\n")
        write_whole(whole / "metrics.json", json.dumps(without_nan(evaluation.metrics), indent=2) + "\n")
