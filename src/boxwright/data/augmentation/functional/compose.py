"""Several samples in one image.

Dimensions: N objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from boxwright.data.augmentation.functional.pixels import Pixels
from boxwright.types import Sample
from boxwright.types.sample import OBJECT_FIELDS


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
