"""Likely errors of the annotations: detections of high scores that disagree with the truth.

Dimensions: E events.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from boxwright.data.coco import coco_category
from boxwright.report.outcomes import NOTHING, TYPES, Outcomes
from boxwright.report.tables import Indices, Tables

_MOST = 500
# What a confident detection of each type says of the annotations.
_REASONS = {
    "classification": "annotated as another class",
    "background": "nothing is annotated here",
    "both": "nothing of this class is annotated here",
    "localization": "the annotated box is another",
}


def suspects(tables: Tables, outcomes: Outcomes) -> Indices:
    """Return the events that may be errors of the annotations, the highest score first; at most 500."""
    kinds = [TYPES.index(name) for name in _REASONS]
    likely = np.flatnonzero(np.isin(outcomes.types, kinds) & (outcomes.found != NOTHING))
    order = np.argsort(-tables.found.scores[outcomes.found[likely]], kind="stable")
    return likely[order][:_MOST]


def as_coco(tables: Tables, outcomes: Outcomes, chosen: Indices) -> dict[str, Any]:
    """Return events as a COCO data set for an annotation tool: boxes with `score`, `reason` and the object's own id.

    Tools expect images to have numbers: where an id is none, all are counted from 1.
    """
    ids = tables.ids if all(isinstance(image_id, int) for image_id in tables.ids) else range(1, len(tables.ids) + 1)
    images, annotations = set[int](), []
    for number, event in enumerate(chosen.tolist()):
        image, detection = int(outcomes.images[event]), int(outcomes.found[event])
        about = int(outcomes.about[event])
        images.add(image)
        x_min, y_min, x_max, y_max = (round(float(coordinate), 3) for coordinate in tables.found.boxes[detection])
        row: dict[str, Any] = {
            "id": number + 1,
            "image_id": ids[image],
            "category_id": tables.categories.by_label(int(tables.found.labels[detection])).id,
            "bbox": [x_min, y_min, round(x_max - x_min, 3), round(y_max - y_min, 3)],
            "area": round((x_max - x_min) * (y_max - y_min), 3),
            "iscrowd": 0,
            "score": round(float(tables.found.scores[detection]), 6),
            "reason": _REASONS[TYPES[int(outcomes.types[event])]],
        }
        if about != NOTHING and about < len(tables.truth_rows):
            row["annotated_id"] = tables.truth_rows[about].get("id")
        annotations.append(row)
    rows = [
        {
            "id": ids[image],
            "file_name": tables.names[image],
            "width": int(tables.sizes[image, 1]),
            "height": int(tables.sizes[image, 0]),
        }
        for image in sorted(images)
    ]
    return {
        "images": rows,
        "annotations": annotations,
        "categories": [coco_category(category) for category in tables.categories],
    }
