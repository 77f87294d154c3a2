"""The ground truth of an evaluation as a COCO data set, from which it can be reported later without its data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from boxwright.data.coco import coco_annotation, coco_category
from boxwright.data.lvis import searched_lists
from boxwright.evaluation.images import EvaluatedImage
from boxwright.evaluation.results import image_identity
from boxwright.types import Categories


def truth_of(images: Iterable[EvaluatedImage], categories: Categories) -> dict[str, Any]:
    """Return images, annotations and categories; ids of images as in the rows of detections.

    Each image has `index` beside COCO's fields, its place in the data.
    """
    rows: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    used = {category.label: category for category in categories}
    for image in images:
        sample, identity = image.sample, image_identity(image.sample.id)
        height, width = sample.image.shape[:2]
        name = sample.filename or sample.id
        row = {"id": identity, "file_name": name, "width": width, "height": height, "index": image.index}
        rows.append({**row, **searched_lists(sample, categories)})
        codes = image.masks.truth if image.masks is not None else []
        for number, label in enumerate(sample.labels.tolist()):
            category = used.setdefault(label, categories.by_label(label))
            row = {"id": len(annotations) + 1, "image_id": identity, **coco_annotation(sample, number, category)}
            if len(codes) == len(sample.labels):
                row["segmentation"] = codes[number]
            annotations.append(row)
    return {
        "images": rows,
        "annotations": annotations,
        "categories": [coco_category(used[one]) for one in sorted(used)],
    }
