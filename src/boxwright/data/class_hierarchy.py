"""Objects that are of several classes at once: a terrier is a dog is an animal (Open Images' hierarchy).

Dimensions: N objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.types import Categories, Sample

Related = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class ClassHierarchy:
    """The classes above and below each class.

    Attributes:
        above: A label to the labels of its objects, itself among them, in rising order.
        below: A label to the labels that are absent where it is, itself among them, in rising order.
    """

    above: Related
    below: Related

    @classmethod
    def of(cls, categories: Categories, where: object) -> ClassHierarchy:
        """Return the hierarchy that a label map's `ancestor_ids` and `descendant_ids` name.

        Raises:
            DataError: For the id of no item, or a label map without any such id.
        """
        above, below = ({category.label: {category.label} for category in categories} for _ in range(2))
        for category in categories:
            for ids, labels in ((category.ancestor_ids, above), (category.descendant_ids, below)):
                for number in ids:
                    other = categories.by_id(number)
                    if other is None:
                        raise DataError(f"{where}: {category.name!r} is related to id {number}, which no item has")
                    labels[category.label].add(other.label)
        if all(len(labels) == 1 for table in (above, below) for labels in table.values()):
            raise DataError(f"{where}: expand_labels_hierarchy, but no item has ancestor_ids or descendant_ids")
        first, second = ({label: tuple(sorted(labels)) for label, labels in table.items()} for table in (above, below))
        return cls(first, second)

    def expand(self, sample: Sample) -> Sample:
        """Return a sample whose objects are there once for each class that they are of.

        Copies follow each other in the order of classes, as in TensorFlow; classes that were seen in the image are seen
        with those above, and those that are absent are absent with those below.
        """
        classes = [self.above[label] for label in sample.labels.tolist()]
        index = np.repeat(np.arange(len(classes)), [len(expanded) for expanded in classes])
        labels = np.array([label for expanded in classes for label in expanded], np.int64)
        return replace(
            sample.keep(index),
            labels=labels,
            verified_labels=_expand_labels(sample.verified_labels, self.above),
            negative_labels=_expand_labels(sample.negative_labels, self.below),
        )


def _expand_labels(labels: NDArray[np.int64], related: Related) -> NDArray[np.int64]:
    return np.unique(np.array([other for label in labels.tolist() for other in related[label]], np.int64))
