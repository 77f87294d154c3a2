"""What is learned of a sample's objects, after augmentation: how many, how much each counts, of which classes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.types import Sample

# TF tells boxes apart by coordinates in ten thousandths of the image, cut off.
_BINS = 9999


def without_class_scores(sample: Sample, rng: np.random.Generator) -> Sample:
    """Learn labels, whatever scores were read."""
    del rng
    return replace(sample, class_scores=None)


def without_masks(sample: Sample, rng: np.random.Generator) -> Sample:
    """Return the sample without masks, for networks that do not learn them."""
    del rng
    return replace(sample, masks=None)


@dataclass(frozen=True)
class KeepFirst:
    """Learn from the first objects of an image only (TF's `max_number_of_boxes`).

    Attributes:
        count: How many.
    """

    count: int

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with its first objects."""
        del rng
        return sample.keep(np.arange(min(self.count, len(sample.boxes))))


@dataclass(frozen=True)
class WeighClasses:
    """Let the objects of some classes count more or less.

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
    """Make one object of several with the same box, of all their classes (TF's `merge_multiple_label_boxes`).

    The first one's box, weight and marks stay. (In TF the weights of the objects after it move up by one,
    as they are not merged.)

    Attributes:
        num_classes: K.
    """

    num_classes: int

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a sample of as many objects as there are boxes, with `class_scores` of 0 and 1."""
        del rng
        height, width = sample.image.shape[:2]
        unit = np.array([width, height, width, height], np.float32)
        places = (sample.boxes / unit * _BINS).astype(np.int64)
        _, firsts, group = np.unique(places, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(firsts, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        scores = np.zeros((len(firsts), self.num_classes), np.float32)
        scores[rank[group.reshape(-1)], sample.labels] = 1
        return replace(sample.keep(firsts[order]), class_scores=scores)


@dataclass(frozen=True)
class ClassScores:
    """Learn the stored score of every class (TF's `use_multiclass_scores`); an image without has its labels.

    (TF gives an image without scores its labels moved up by one.)

    Attributes:
        num_classes: K.
    """

    num_classes: int

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Insist on one score a class.

        Returns:
            A sample with `class_scores`.

        Raises:
            DataError: Where there is another number of scores.
        """
        del rng
        if sample.class_scores is None:
            return replace(sample, class_scores=np.eye(self.num_classes, dtype=np.float32)[sample.labels])
        if sample.class_scores.shape[1] != self.num_classes:
            raise DataError(
                f"{sample.id}: {sample.class_scores.shape[1]} multiclass scores an object, "
                f"for {self.num_classes} classes"
            )
        return sample
