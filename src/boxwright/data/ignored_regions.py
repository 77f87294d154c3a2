"""Regions to ignore in training: crowds, KITTI's DontCare, VisDrone's ignored regions.

A region has objects that nobody annotated. Learned as background, it teaches that such objects are none; so its pixels
are covered by a plain gray, but for those of annotated objects, which lie in it at times.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from boxwright.data.augmentation.functional.compose import covered
from boxwright.data.dataset import Dataset
from boxwright.types import Categories, Sample

_GRAY = 114  # as of padding


def with_regions_hidden(sample: Sample) -> Sample:
    """Return a sample whose regions to ignore are gray: their masks if there are any, else their boxes."""
    if not sample.is_crowd.any():
        return sample
    height, width = sample.image.shape[:2]
    hidden = covered(sample.boxes[sample.is_crowd], height, width)
    if sample.masks is not None:
        hidden &= sample.masks[sample.is_crowd].any(0)
    hidden &= ~covered(sample.boxes[~sample.is_crowd], height, width)
    image = sample.image.copy()
    image[hidden] = _GRAY
    return replace(sample, image=np.ascontiguousarray(image))


class HiddenRegionsDataset:
    """A data set whose samples have their regions to ignore hidden."""

    def __init__(self, whole: Dataset) -> None:
        """Keep the data set."""
        self.whole = whole

    @property
    def name(self) -> str:
        """Where the samples come from."""
        return self.whole.name

    @property
    def categories(self) -> Categories:
        """The classes."""
        return self.whole.categories

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, index: int) -> Sample:
        return with_regions_hidden(self.whole[index])

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes, in which nothing is hidden, and its name."""
        return self.whole.encoded(index)
