"""Objects of data by class, size, aspect and place.

Dimensions: N objects, K classes, S bins of size, A bins of aspect, H cells of a side of the map of places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxwright.report.data_collection import DataTables
from boxwright.report.tables import Floats, Indices

# Sides as square roots of areas, in pixels, and widths over heights; what is beyond them is in the first and last bin.
SIDES = (0, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
ASPECTS = (0, 1 / 5, 1 / 3, 1 / 2, 2 / 3, 4 / 5, 5 / 4, 3 / 2, 2, 3, 5)
CELLS = 24


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts of each class, which is a row.

    Attributes:
        objects: int64 [K].
        images: int64 [K]; images with an object of it.
        sides: int64 [K, S]; objects by the square root of their box's area.
        aspects: int64 [K, A]; by width over height.
        middle: float64 [K, 2]; the median width and height in pixels, NaN without objects.
    """

    objects: Indices
    images: Indices
    sides: Indices
    aspects: Indices
    middle: Floats


def count(tables: DataTables) -> Counts:
    """Return the counts of all classes."""
    classes = len(tables.categories)
    position = tables.positions
    spans = np.maximum(tables.boxes[:, 2:] - tables.boxes[:, :2], 0)
    sides = np.searchsorted(SIDES, np.sqrt(spans.prod(axis=1)), "right") - 1
    aspects = np.searchsorted(ASPECTS, spans[:, 0] / np.maximum(spans[:, 1], 1e-6), "right") - 1
    pairs = np.unique(position * max(len(tables.names), 1) + tables.images)
    middle = np.full((classes, 2), np.nan)
    for place in np.unique(position[position < classes]).tolist():
        middle[place] = np.median(spans[position == place], axis=0)
    return Counts(
        objects=np.bincount(position, minlength=classes)[:classes],
        images=np.bincount(pairs // max(len(tables.names), 1), minlength=classes)[:classes],
        sides=_crossed(position, sides, classes, len(SIDES)),
        aspects=_crossed(position, aspects, classes, len(ASPECTS)),
        middle=middle,
    )


def _crossed(position: Indices, bins: Indices, classes: int, count: int) -> Indices:
    """Return how many objects of each class are in each bin, int64 [K, count]."""
    inside = position < classes
    together = position[inside] * count + bins[inside]
    return np.bincount(together, minlength=classes * count).reshape(classes, count)


def places(tables: DataTables, chosen: Indices) -> Indices:
    """Return how many of the chosen objects cover each cell of a square that all images are stretched to, int64 [H, H].

    A cell is covered if its middle is in the box.
    """
    sizes = tables.sizes[tables.images[chosen]][:, [1, 0, 1, 0]]
    shares = tables.boxes[chosen] / np.maximum(sizes, 1)
    # The first cell whose middle is in the box, and the first beyond it.
    bounds = np.clip(np.ceil(shares * CELLS - 0.5), 0, CELLS).astype(np.int64)
    changes = np.zeros((CELLS + 1, CELLS + 1), np.int64)
    x0, y0, x1, y1 = bounds[(bounds[:, 2:] > bounds[:, :2]).all(axis=1)].T
    for sign, rows, columns in ((1, y0, x0), (-1, y0, x1), (-1, y1, x0), (1, y1, x1)):
        np.add.at(changes, (rows, columns), sign)
    return changes.cumsum(axis=0).cumsum(axis=1)[:CELLS, :CELLS]
