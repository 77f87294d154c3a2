"""How many anchors could be matched with each object.

Dimensions: N objects, A anchors.
"""

from __future__ import annotations

import numpy as np
import torch

from boxwright.nn.ops.boxes import pairwise_iou
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.report.tables import Indices, Tables
from boxwright.training.preflight.anchors import AnchorLayouts, anchors_of
from boxwright.training.preflight.input_frame import InputFrame
from boxwright.training.preflight.records import Record

# Objects that are compared with all anchors at a time.
_BLOCK = 128


def count_anchors(config: m.TrainEvalPipelineConfig, tables: Tables) -> Indices | None:
    """Return how many anchors reach the matcher's overlap with each object, int64 [N]; None without anchors."""
    found = anchors_of(config.model)
    if found is None or config.model is None:
        return None
    detector = build_detector(config.model)
    frame, layouts, threshold = InputFrame(detector), AnchorLayouts(detector), found[1]
    counts = np.zeros(len(tables.objects), np.int64)
    by_size: dict[tuple[int, int], tuple[list[Indices], list[np.ndarray]]] = {}
    bounds = np.searchsorted(tables.objects.images, np.arange(len(tables.ids) + 1))
    for image in np.flatnonzero(np.diff(bounds)).tolist():
        rows = np.arange(bounds[image], bounds[image + 1])
        rows = rows[_usable(tables, rows, image)]
        boxes, size = frame.boxes(_record(tables, rows, image))
        numbers, kept = by_size.setdefault(size, ([], []))
        numbers.append(rows[: len(boxes)])
        kept.append(boxes)
    for size, (numbers, parts) in by_size.items():
        anchors, joined, places = layouts.own(size), torch.from_numpy(np.concatenate(parts)), np.concatenate(numbers)
        for start in range(0, len(joined), _BLOCK):
            overlap = pairwise_iou(joined[start : start + _BLOCK], anchors)
            counts[places[start : start + _BLOCK]] = (overlap >= threshold).sum(1).numpy()
    return counts


def _usable(tables: Tables, rows: Indices, image: int) -> np.ndarray:
    """Return which objects have an area within their image, and are no crowd: the others match no anchor."""
    height, width = tables.sizes[image].tolist()
    boxes = np.clip(tables.objects.boxes[rows], 0, [width, height, width, height])
    return np.asarray((boxes[:, 2:] - boxes[:, :2] > 1e-3).all(axis=1) & ~tables.objects.crowd[rows])


def _record(tables: Tables, rows: Indices, image: int) -> Record:
    height, width = tables.sizes[image].tolist()
    return Record(
        name=tables.names[image],
        size=(height, width),
        boxes=tables.objects.boxes[rows].astype(np.float32),
        labels=tables.objects.labels[rows],
        crowd=tables.objects.crowd[rows],
        left_out=0,
    )
