"""Several samples in one image.

Dimensions: N objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.functional.pixels import Pixels
from boxwright.types import Sample
from boxwright.types.dense_pose import padded_points
from boxwright.types.sample import OBJECT_FIELDS


def overlay(image: Pixels, samples: Sequence[Sample]) -> Sample:
    """Return one sample with the objects of several samples, whose coordinates already fit the image.

    Fields that only some of the samples with objects have (masks, say) are dropped. The result is annotated if all are,
    and verified for the classes for which all are. Ids and keys are the first sample's.
    """
    joined: dict[str, Any] = {}
    for declared in OBJECT_FIELDS:
        # A sample without objects lacks no field: it has no rows to add.
        rows: list[NDArray[Any] | None] = [getattr(s, declared.name) for s in samples if len(s.boxes)]
        known = [row for row in rows if row is not None]
        if declared.geometry == "surface_points":
            known = padded_points(known)
        if not rows:
            joined[declared.name] = getattr(samples[0], declared.name)
        elif len(known) < len(rows) or len({row.shape[1:] for row in known}) > 1:
            joined[declared.name] = None
        else:
            joined[declared.name] = np.concatenate(known)
    names = {sample.attribute_names for sample in samples if len(sample.boxes)}
    if len(names) > 1:
        joined["attributes"] = None
    if names:
        joined["attribute_names"] = () if joined["attributes"] is None else names.pop()
    verified = samples[0].verified_labels
    for sample in samples[1:]:
        verified = np.intersect1d(verified, sample.verified_labels)
    return replace(
        samples[0],
        image=image,
        annotated=all(sample.annotated for sample in samples),
        verified_labels=verified,
        left_out=sum(sample.left_out for sample in samples),
        **joined,
    )
