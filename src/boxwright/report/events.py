"""Events, images, curves, masks and keypoints as JSON for a page, in parts that it loads when they are needed.

Confident detections that disagree with the labels may be errors of the labels.

Dimensions: E events, I images, K classes, H W image.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.coco import coco_category
from boxwright.data.coco_masks import decode_mask
from boxwright.report.analysis import Analysis
from boxwright.report.matching import NOTHING, TYPES, Outcomes, sampled_precision
from boxwright.report.pictures import Photos
from boxwright.report.tables import Bools, Floats, Indices, Tables
from boxwright.report.tide import MISSED

EVENTS_A_PART, CLASSES_A_PART = 4000, 25
# Events that stand in the page itself.
FIRST = 60
_RIGHT_TYPE, _MISSED_TYPE = 0, MISSED + 1


def event_columns(tables: Tables, outcomes: Outcomes, chosen: Indices) -> dict[str, Any]:
    """Return some events as columns.

    `truth` and `seen` are positions of classes, -1 for nothing; `near` is the class of the object that a wrong
    detection is about; `object` and `box` are x, y, width and height in pixels, four numbers an event, 0 for none.
    """
    detections, objects = outcomes.detections[chosen], outcomes.objects[chosen]
    about = outcomes.about[chosen]
    return {
        "id": chosen.tolist(),
        "image": outcomes.images[chosen].tolist(),
        "type": outcomes.types[chosen].tolist(),
        "truth": _classes(tables, tables.objects.labels, objects),
        "seen": _classes(tables, tables.detections.labels, detections),
        "near": _classes(tables, tables.objects.labels, about),
        "score": [round(float(score), 3) for score in _taken(tables.detections.scores, detections)],
        "object": _boxes(tables.objects.boxes, about),
        "box": _boxes(tables.detections.boxes, detections),
    }


def _taken(values: NDArray[Any], indices: Indices) -> NDArray[Any]:
    """Return the values at indices; 0 for -1."""
    padded = np.concatenate([values, np.zeros((1, *values.shape[1:]), values.dtype)])
    return padded[indices]


def _classes(tables: Tables, labels: Indices, indices: Indices) -> list[int]:
    positions = np.searchsorted(tables.classes, labels)
    class_positions: list[int] = np.where(indices == NOTHING, NOTHING, _taken(positions, indices)).tolist()
    return class_positions


def _boxes(boxes: Floats, indices: Indices) -> list[int]:
    corner_boxes = _taken(boxes, indices)
    corners = np.concatenate([corner_boxes[:, :2], corner_boxes[:, 2:] - corner_boxes[:, :2]], axis=1)
    rounded: list[int] = np.rint(corners).astype(np.int64).ravel().tolist()
    return rounded


def severity(tables: Tables, outcomes: Outcomes) -> Floats:
    """Return how bad each event is, float64 [E]: a wrong detection its score, a missed object 0.5, a right one 0."""
    scores = _taken(tables.detections.scores, outcomes.detections)
    wrong = np.where(outcomes.types == _MISSED_TYPE, 0.5, scores)
    return np.where(outcomes.types == _RIGHT_TYPE, 0.0, wrong)


def worst_first(tables: Tables, outcomes: Outcomes) -> Indices:
    """Return the events, worst first."""
    return np.argsort(-severity(tables, outcomes), kind="stable")


def image_columns(tables: Tables, outcomes: Outcomes, photos: Photos) -> dict[str, Any]:
    """Return the images as columns: name, size, copy, and how many events are right, wrong and missed."""
    count = len(tables.ids)
    kinds = {
        "right": outcomes.types == _RIGHT_TYPE,
        "missed": outcomes.types == _MISSED_TYPE,
        "wrong": (outcomes.types != _RIGHT_TYPE) & (outcomes.types != _MISSED_TYPE),
    }
    columns = {name: np.bincount(outcomes.images[chosen], minlength=count).tolist() for name, chosen in kinds.items()}
    return {
        "name": [name or str(identity) for name, identity in zip(tables.names, tables.ids, strict=True)],
        "height": tables.sizes[:, 0].tolist(),
        "width": tables.sizes[:, 1].tolist(),
        "file": list(photos.files),
        **columns,
    }


def image_severity(tables: Tables, outcomes: Outcomes) -> Floats:
    """Return how bad each image's events are together, float64 [I]."""
    weights = severity(tables, outcomes)
    return np.bincount(outcomes.images, weights, minlength=len(tables.ids)).astype(np.float64)


def curve_part(analysis: Analysis, start: int, stop: int) -> list[Any]:
    """Return the precision at 101 recalls of some classes at each overlap; None for a class without objects."""
    part = [sampled_precision(curve) for curve in analysis.curves[start:stop]]
    return [None if np.isnan(curve).any() else np.round(curve, 3).tolist() for curve in part]


def mean_curve(analysis: Analysis) -> list[Any]:
    """Return the mean of the classes' precision at 101 recalls, at each overlap; empty without objects."""
    known = [curve for curve in map(sampled_precision, analysis.curves) if not np.isnan(curve).any()]
    return np.stack(known).mean(axis=0).round(4).tolist() if known else []


# Images whose shapes a page loads together.
IMAGES_A_PART = 50
# Outlines may be off by so many pixels.
_TOLERANCE = 1.0
_LEAST_KEYPOINT_SCORE = 0.3


def has_shapes(tables: Tables) -> bool:
    """Return whether an object or a detection has a mask or keypoints."""
    truth = any(row.get("segmentation") or row.get("keypoints") for row in tables.truth_rows)
    return truth or bool(tables.detection_rows)


def shape_part(tables: Tables, outcomes: Outcomes, start: int, stop: int) -> dict[int, dict[str, Any]]:
    """Return the shapes of the events in some images: event to `truth` and `found`, each with `path` or `points`."""
    shapes: dict[int, dict[str, Any]] = {}
    for event in np.flatnonzero((outcomes.images >= start) & (outcomes.images < stop)).tolist():
        size = tables.sizes[outcomes.images[event]]
        detection, thing = int(outcomes.detections[event]), int(outcomes.objects[event])
        rows = {
            "truth": {} if thing == NOTHING else tables.truth_rows[thing],
            "found": {}
            if detection == NOTHING
            else tables.detection_rows.get(int(tables.detections.rows[detection]), {}),
        }
        drawn = {name: _drawn(row, (int(size[0]), int(size[1]))) for name, row in rows.items()}
        if known := {name: shape for name, shape in drawn.items() if shape}:
            shapes[event] = known
    return shapes


def _drawn(row: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """Return a row's mask as SVG's path, and its visible keypoints as x and y; those it has."""
    drawn: dict[str, Any] = {}
    if row.get("segmentation"):
        try:
            drawn["path"] = outline(decode_mask(row["segmentation"], size, "a mask"))
        except DataError:  # of another size than the image: its box is shown
            return {}
    points = row.get("keypoints")
    if isinstance(points, list) and len(points) % 3 == 0 and all(type(value) in (int, float) for value in points):
        triples = np.array(points, np.float64).reshape(-1, 3)
        drawn["points"] = triples[triples[:, 2] >= _LEAST_KEYPOINT_SCORE, :2].round(1).tolist()
    return drawn


def outline(mask: NDArray[np.uint8]) -> str:
    """Return the outlines of a mask, uint8 [H, W], as SVG's path."""
    contours, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    simple = [cv2.approxPolyDP(contour, _TOLERANCE, True).reshape(-1, 2) for contour in contours]
    return "".join("M" + "L".join(f"{x} {y}" for x, y in points.tolist()) + "Z" for points in simple if len(points) > 2)


_MOST_DISAGREEMENTS = 500
_LEAST_AP50 = 0.5
# How a detection of each type disagrees with the labels.
_REASONS = {
    "classification": "annotated as another class",
    "background": "nothing is annotated here",
    "both": "nothing of this class is annotated here",
    "localization": "the annotated box is another",
}


def label_disagreements(analysis: Analysis) -> Indices:
    """Return the events in which a trustworthy detection disagrees with the labels, the most confident first.

    A detection is trusted if its class has an AP50 of 0.5 or more, and its score is at least that of the class's best
    F1: one that is often wrong says nothing about labels. At most 500 are returned.
    """
    tables, outcomes = analysis.tables, analysis.outcomes
    kinds = [TYPES.index(name) for name in _REASONS]
    events = np.flatnonzero(np.isin(outcomes.types, kinds) & (outcomes.detections != NOTHING))
    detections = outcomes.detections[events]
    positions, scores = (
        np.searchsorted(tables.classes, tables.detections.labels[detections]),
        tables.detections.scores[detections],
    )
    least = np.array([np.inf if chosen is None else chosen.threshold for chosen in analysis.by_class])
    # NaN, for a class without objects, is not trusted either.
    least[~trusted_classes(analysis)] = np.inf
    events = events[scores >= least[positions]]
    order = np.argsort(-tables.detections.scores[outcomes.detections[events]], kind="stable")
    return events[order][:_MOST_DISAGREEMENTS]


def trusted_classes(analysis: Analysis) -> Bools:
    """Return which classes are detected well enough to doubt labels by, bool [K]."""
    return np.asarray(analysis.values[:, 0] >= _LEAST_AP50)


def to_coco(tables: Tables, outcomes: Outcomes, chosen: Indices) -> dict[str, Any]:
    """Return events as a COCO data set for an annotation tool: boxes with `score`, `reason` and the object's own id.

    Tools expect images to have numbers: where an id is none, all are counted from 1.
    """
    ids = tables.ids if all(isinstance(image_id, int) for image_id in tables.ids) else range(1, len(tables.ids) + 1)
    images, annotations = set[int](), []
    for number, event in enumerate(chosen.tolist()):
        image, detection = int(outcomes.images[event]), int(outcomes.detections[event])
        about = int(outcomes.about[event])
        images.add(image)
        x_min, y_min, x_max, y_max = (round(float(coordinate), 3) for coordinate in tables.detections.boxes[detection])
        row: dict[str, Any] = {
            "id": number + 1,
            "image_id": ids[image],
            "category_id": tables.categories.by_label(int(tables.detections.labels[detection])).id,
            "bbox": [x_min, y_min, round(x_max - x_min, 3), round(y_max - y_min, 3)],
            "area": round((x_max - x_min) * (y_max - y_min), 3),
            "iscrowd": 0,
            "score": round(float(tables.detections.scores[detection]), 6),
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
