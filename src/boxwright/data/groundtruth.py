"""Which objects are learned, with their weights and class scores, and which regions of images are ignored.

A region to ignore (a crowd, KITTI's DontCare, VisDrone's ignored regions) has objects that nobody annotated. Learned as
background, it teaches that such objects are none; so its pixels are covered by a plain gray, but for those of annotated
objects, which lie in it at times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.augmentation.functional.compose import covered
from boxwright.data.dataset import Dataset, shard_sizes, source_sizes, with_white_level
from boxwright.types import Categories, Sample

_GRAY = 114  # as of padding

# TF compares boxes by coordinates truncated to ten thousandths of the image.
_BINS = 9999


def without_class_scores(sample: Sample, rng: np.random.Generator) -> Sample:
    """Return the sample without class scores, so that labels are learned."""
    del rng
    return replace(sample, class_scores=None)


def without_masks(sample: Sample, rng: np.random.Generator) -> Sample:
    """Return the sample without masks, for networks that do not learn them."""
    del rng
    return replace(sample, masks=None)


def without_verified_labels(sample: Sample, rng: np.random.Generator) -> Sample:
    """Return the sample without the whole image's classes, for losses that do not read them."""
    del rng
    return replace(sample, verified_labels=sample.verified_labels[:0]) if len(sample.verified_labels) else sample


@dataclass(frozen=True)
class KeepFirst:
    """Keep only the first `count` objects of an image (TF's `max_number_of_boxes`)."""

    count: int

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with its first objects."""
        del rng
        return sample.keep(np.arange(min(self.count, len(sample.boxes))))


@dataclass(frozen=True)
class WeighClasses:
    """Scale the weights of objects by class.

    Attributes:
        weights: float32 [K], by label.
    """

    weights: NDArray[np.float32]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with other weights."""
        del rng
        return replace(sample, weights=sample.weights * self.weights[sample.labels])


@dataclass(frozen=True)
class MergeLabels:
    """Merge objects with the same box into one object of all their classes (TF's `merge_multiple_label_boxes`).

    The first one's box, weight and flags stay. (TF does not merge weights, so there later objects' weights move up.)
    """

    num_classes: int

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a sample with one object per distinct box, with `class_scores` of 0 and 1."""
        del rng
        height, width = sample.image.shape[:2]
        unit = np.array([width, height, width, height], np.float32)
        places = (sample.boxes / unit * _BINS).astype(np.int64)
        # np.unique sorts by coordinates; the rank restores the order in which objects first appear.
        _, firsts, group = np.unique(places, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(firsts, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        scores = np.zeros((len(firsts), self.num_classes), np.float32)
        rows = rank[group.reshape(-1)]
        scores[rows, sample.labels] = 1
        merged = replace(sample.keep(firsts[order]), class_scores=scores)
        if sample.confidences is None:
            return merged
        confidences = np.zeros_like(scores)
        confidences[rows, sample.labels] = sample.confidences[np.arange(len(rows)), sample.labels]
        return replace(merged, confidences=confidences)


@dataclass(frozen=True)
class ClassScores:
    """Learn the stored scores of all classes (TF's `use_multiclass_scores`); without scores, the labels.

    (TF moves the labels of an image without scores up by one.)
    """

    num_classes: int

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a sample with `class_scores`.

        Raises:
            DataError: If there is not one score per class.
        """
        del rng
        if sample.class_scores is None:
            return replace(sample, class_scores=np.eye(self.num_classes, dtype=np.float32)[sample.labels])
        if sample.class_scores.shape[1] != self.num_classes:
            raise DataError(
                f"{sample.id}: {sample.class_scores.shape[1]} multiclass scores per object, "
                f"but {self.num_classes} classes"
            )
        return sample


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

    @property
    def white_level(self) -> float:
        """The value that is white in images that are not of 8 bits, of data that have one; else an AttributeError."""
        return self.whole.white_level  # type: ignore[attr-defined, no-any-return]  # as said

    @white_level.setter
    def white_level(self, level: float) -> None:
        self.whole = with_white_level(self.whole, level)

    @property
    def source_sizes(self) -> tuple[int, ...]:
        """The number of samples of each source."""
        return source_sizes(self.whole)

    @property
    def shard_sizes(self) -> tuple[tuple[int, ...], ...]:
        """By source, the number of samples of each file that is read in sequence; empty if none is."""
        return shard_sizes(self.whole)

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, index: int) -> Sample:
        return with_regions_hidden(self.whole[index])

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes, in which nothing is hidden, and its name."""
        return self.whole.encoded(index)
