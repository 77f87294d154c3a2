"""Several samples in one image, and the pixels that their boxes and masks cover, for all objects at once.

Dimensions: N objects or boxes, H W image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.functional.pixels import Pixels
from boxwright.types import Sample
from boxwright.types.sample import OBJECT_FIELDS


def covered(boxes: NDArray[Any], height: int, width: int) -> NDArray[np.bool_]:
    """Return which pixels lie in some box [N, 4], xyxy in pixels, rounded: bool [H, W]."""
    x_min, y_min, x_max, y_max = _whole(boxes, height, width)
    # A box is the 2-D cumulative sum of +1 at two opposite corners and -1 at the other two.
    corners = np.zeros((height + 1, width + 1), np.int64)
    for rows, columns, sign in ((y_min, x_min, 1), (y_max, x_min, -1), (y_min, x_max, -1), (y_max, x_max, 1)):
        np.add.at(corners, (rows, columns), sign)
    return np.asarray(corners.cumsum(0).cumsum(1)[:height, :width] > 0)


def share_covered(boxes: NDArray[Any], hidden: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of each box's pixels that are hidden, [N]; 1 for a box without pixels.

    Args:
        boxes: [N, 4], xyxy in pixels; edges are rounded.
        hidden: bool [H, W].
    """
    x_min, y_min, x_max, y_max = _whole(boxes, *hidden.shape)
    sums = np.pad(hidden.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    inside = sums[y_max, x_max] - sums[y_min, x_max] - sums[y_max, x_min] + sums[y_min, x_min]
    pixels = (x_max - x_min) * (y_max - y_min)
    return np.asarray(np.divide(inside, pixels, out=np.ones(len(pixels)), where=pixels > 0))


def mask_boxes(masks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the smallest box around each mask [N, H, W]; zeros for an empty one."""
    ends = []
    for axis in (1, 2):  # along y, then along x
        seen = masks.max(3 - axis, initial=0) > 0
        first, last = seen.argmax(1), masks.shape[axis] - seen[:, ::-1].argmax(1)
        ends.append(np.where(seen.any(1), np.stack([first, last]), 0))
    (y_min, y_max), (x_min, x_max) = ends
    return np.stack([x_min, y_min, x_max, y_max], 1).astype(np.float32)


def _whole(boxes: NDArray[Any], height: int, width: int) -> NDArray[np.int64]:
    """Return the edges rounded to pixels inside an image, [4, N]."""
    edges = np.clip(np.rint(boxes), 0, [width, height, width, height]).astype(np.int64).reshape(-1, 4)
    return np.concatenate([edges[:, :2], np.maximum(edges[:, :2], edges[:, 2:])], 1).T


def overlay(image: Pixels, samples: Sequence[Sample]) -> Sample:
    """Return one sample with the objects of several samples, whose coordinates already fit the image.

    Fields that only some of the samples with objects have (masks, say) are dropped, unless they have a neutral value.
    The result is annotated if all are, verified for the classes for which all are, and not exhaustive for those for
    which one is not. Ids and keys are the first sample's.
    """
    joined: dict[str, Any] = {}
    # A sample without objects lacks no field: it has no rows to add.
    full = [sample for sample in samples if len(sample.boxes)]
    for declared in OBJECT_FIELDS:
        rows = declared.rows(full)
        same = rows is not None and len({row.shape[1:] for row in rows}) == 1
        joined[declared.name] = np.concatenate(rows) if rows is not None and same else None
        if not full:
            joined[declared.name] = getattr(samples[0], declared.name)
    names = {sample.attribute_names for sample in full}
    if len(names) > 1:
        joined["attributes"] = None
    if names:
        joined["attribute_names"] = () if joined["attributes"] is None else names.pop()
    verified, negative = samples[0].verified_labels, samples[0].negative_labels
    for sample in samples[1:]:
        verified = np.intersect1d(verified, sample.verified_labels)
        negative = np.intersect1d(negative, sample.negative_labels)
    return replace(
        samples[0],
        image=image,
        annotated=all(sample.annotated for sample in samples),
        verified_labels=verified,
        negative_labels=negative,
        not_exhaustive_labels=np.unique(np.concatenate([sample.not_exhaustive_labels for sample in samples])),
        left_out=sum(sample.left_out for sample in samples),
        **joined,
    )
