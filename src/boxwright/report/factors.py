"""What may make objects hard to find: their size, aspect, crowding, place, class and image, and the anchors for them.

Dimensions: N objects, D detections, I images, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from boxwright.evaluation.metrics.matching import overlaps
from boxwright.report.pictures import Photos
from boxwright.report.tables import Bools, Floats, Indices, Tables

NONE = -1
# From this overlap on, a detection is about an object; TIDE's bound of background.
_NEAR = 0.1
# Within so many pixels of the border an object is cut off by it.
_BORDER = 1.0


@dataclass(frozen=True, eq=False)
class Factor:
    """A property by which objects and detections are divided into parts.

    Attributes:
        parts: The names of its values.
        objects: int64 [N]; the part of each object; -1 if it is not known.
        detections: int64 [D]; the part of the object that each detection is about, or its own; -1 if it has none.
    """

    name: str
    parts: Sequence[str]
    objects: Indices
    detections: Indices


def nearest_objects(tables: Tables) -> Indices:
    """Return the object that each detection overlaps most, by a tenth or more, int64 [D]; -1 for none."""
    detections, objects = tables.detections, tables.objects
    nearest = np.full(len(detections), NONE, np.int64)
    counted = np.flatnonzero(~objects.crowd)
    every = np.arange(len(tables.ids) + 1)
    mine, theirs = np.searchsorted(detections.images, every), np.searchsorted(objects.images[counted], every)
    for image in np.flatnonzero((np.diff(mine) > 0) & (np.diff(theirs) > 0)).tolist():
        rows, things = slice(mine[image], mine[image + 1]), counted[theirs[image] : theirs[image + 1]]
        overlap = overlaps(detections.boxes[rows], objects.boxes[things])
        best = overlap.argmax(axis=1)
        near = overlap[np.arange(len(best)), best] >= _NEAR
        nearest[rows] = np.where(near, things[best], NONE)
    return nearest


def compute_factors(
    tables: Tables, photos: Photos, anchors: Indices | None = None, training: Indices | None = None
) -> list[Factor]:
    """Return all factors that are known.

    Args:
        anchors: int64 [N]; how many anchors could be matched with each object; None if that is not known.
        training: int64 [K]; the objects of each class in the training data; None for those of these data.
    """
    nearest = nearest_objects(tables)
    detections, objects = tables.detections, tables.objects
    sizes = _in_parts(objects.areas, _SIZE_BOUNDS), _in_parts(_areas(detections.boxes), _SIZE_BOUNDS)
    aspects = _in_parts(_aspects(objects.boxes), _ASPECT_BOUNDS), _in_parts(_aspects(detections.boxes), _ASPECT_BOUNDS)
    places = [_cut(tables, table.boxes, table.images).astype(np.int64) for table in (objects, detections)]
    alone = np.zeros(len(detections), np.int64)
    factors = [
        Factor("size", _SIZES, sizes[0], _inherit_parts(sizes[0], nearest, sizes[1])),
        Factor("aspect", _ASPECTS, aspects[0], _inherit_parts(aspects[0], nearest, aspects[1])),
        Factor("border", ("whole", "cut by the border"), places[0], _inherit_parts(places[0], nearest, places[1])),
    ]
    crowding = _in_parts(_largest_overlaps(tables), _CROWD_BOUNDS)
    factors.append(Factor("crowding", _CROWDS, crowding, _inherit_parts(crowding, nearest, alone)))
    if anchors is not None:
        covered = _in_parts(anchors.astype(np.float64), _ANCHOR_BOUNDS)
        factors.append(
            Factor("anchors", _ANCHORS, covered, _inherit_parts(covered, nearest, np.full(len(detections), NONE)))
        )
    factors.append(_class_frequency(tables, training))
    factors += _image_factors(tables, photos)
    return factors


_SIZES = ("tiny: below 16²", "small: 16² to 32²", "medium: 32² to 96²", "large: above 96²")
_SIZE_BOUNDS = (16.0**2, 32.0**2, 96.0**2)
_ASPECTS = ("very tall: above 3:1", "tall: 3:2 to 3:1", "about square", "wide: 3:2 to 3:1", "very wide: above 3:1")
_ASPECT_BOUNDS = (1 / 3, 2 / 3, 3 / 2, 3.0)
_CROWDS = ("alone", "touched: IoU up to 0.2", "overlapped: 0.2 to 0.5", "hidden: 0.5 and more")
_CROWD_BOUNDS = (1e-9, 0.2, 0.5)
_ANCHORS = ("no anchor fits", "1 or 2 anchors fit", "3 to 9 anchors fit", "10 and more anchors fit")
_ANCHOR_BOUNDS = (1.0, 3.0, 10.0)
_FREQUENCIES = ("rare: below a tenth of the most frequent", "uncommon: a tenth to a third", "frequent")
_FIFTHS = 5


def _in_parts(values: Floats, bounds: Sequence[float]) -> Indices:
    return np.searchsorted(np.array(bounds), values, "right").astype(np.int64)


def _inherit_parts(parts: Indices, nearest: Indices, own: Indices) -> Indices:
    """Return the part of the object that each detection is about; its own without one."""
    return np.where(nearest == NONE, own, np.append(parts, NONE)[nearest])


def _areas(boxes: Floats) -> Floats:
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    return np.asarray(sides[:, 0] * sides[:, 1])


def _aspects(boxes: Floats) -> Floats:
    """Return width over height."""
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 1e-3)
    return np.asarray(sides[:, 0] / sides[:, 1])


def _cut(tables: Tables, boxes: Floats, images: Indices) -> Bools:
    """Return whether boxes touch the border of their images."""
    limits = tables.sizes[images][:, ::-1] - _BORDER
    return np.asarray((boxes[:, :2] < _BORDER).any(axis=1) | (boxes[:, 2:] > limits).any(axis=1))


def _largest_overlaps(tables: Tables) -> Floats:
    """Return the largest overlap of each object with another of any class in its image, float64 [N]."""
    objects = tables.objects
    largest = np.zeros(len(objects))
    bounds = np.searchsorted(objects.images, np.arange(len(tables.ids) + 1))
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if stop - start > 1:
            overlap = overlaps(objects.boxes[start:stop], objects.boxes[start:stop])
            np.fill_diagonal(overlap, 0)
            largest[start:stop] = overlap.max(axis=1)
    return largest


def _class_frequency(tables: Tables, training: Indices | None) -> Factor:
    """Return the parts of classes by how frequent they are."""
    position, class_positions = (
        np.searchsorted(tables.classes, table.labels) for table in (tables.objects, tables.detections)
    )
    own = np.bincount(position[~tables.objects.crowd], minlength=len(tables.classes))
    counts = own if training is None else training
    parts = _in_parts(counts / max(int(counts.max(initial=0)), 1), (0.1, 1 / 3))
    name = "class frequency" if training is None else "class frequency in training"
    return Factor(name, _FREQUENCIES, parts[position], parts[class_positions])


def _image_factors(tables: Tables, photos: Photos) -> list[Factor]:
    """Return the factors of pixels: fifths of the images, if these differ."""
    named = (
        ("brightness", photos.brightness, ("darkest fifth", "middle three fifths", "brightest fifth"), (0, 1, 1, 1, 2)),
        ("blur", photos.sharpness, ("blurriest fifth", "second fifth", "the sharper images"), (0, 1, 2, 2, 2)),
    )
    factors = []
    for name, values, parts, of_fifth in named:
        known = values[~np.isnan(values)]
        if len(known) < _FIFTHS or known.min() == known.max():
            continue
        bounds = np.quantile(known, np.arange(1, _FIFTHS) / _FIFTHS)
        fifths = np.array(of_fifth)[np.searchsorted(bounds, np.nan_to_num(values), "right")]
        of_image = np.where(np.isnan(values), NONE, fifths)
        factors.append(Factor(name, parts, of_image[tables.objects.images], of_image[tables.detections.images]))
    return factors
