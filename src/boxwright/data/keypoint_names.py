"""Keypoints that records name one by one (TF's `use_keypoint_label_map`), in place of an order that all share.

Dimensions: N objects, T named keypoints of an object, P keypoints of all classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.types import Categories, Sample

KEYPOINT_TEXT = "image/object/keypoint/text"


@dataclass(frozen=True)
class KeypointPlacement:
    """Where the keypoints of a record go.

    Attributes:
        places: int64 [N, T]; a keypoint's place among those of all classes, -1 for a name that the label map lacks.
        count: P.
    """

    places: NDArray[np.int64]
    count: int

    def put(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values [N, T, …] at their places, [N, P, …]; 0 where the record names no keypoint."""
        rows, named = np.nonzero(self.places >= 0)
        placed = np.zeros((len(values), self.count, *values.shape[2:]), values.dtype)
        placed[rows, self.places[rows, named]] = values[rows, named]
        return placed


@dataclass(frozen=True)
class KeypointNames:
    """The names of keypoints of all classes.

    Attributes:
        places: A name to its place.
        count: How many places there are, P.
    """

    places: Mapping[str, int]
    count: int

    @classmethod
    def of(cls, categories: Categories, count: int) -> KeypointNames:
        """Return the names in a label map: each is one keypoint's, whatever the class.

        Raises:
            DataError: If it names none, a name or an id is there twice, or an id is not below the number of places.
        """
        pairs = [
            (name, place)
            for category in categories
            for name, place in zip(category.keypoints, category.keypoint_indices, strict=True)
        ]
        if not pairs:
            raise DataError("no item has keypoints { id: 0 label: 'nose' }")
        for kind, values in (("label", [name for name, _ in pairs]), ("id", [place for _, place in pairs])):
            value, times = Counter[object](values).most_common(1)[0]
            if times > 1:
                raise DataError(f"the keypoint {kind} {value!r} occurs {times} times; give each keypoint its own")
        name, last = max(pairs, key=lambda pair: pair[1])
        if last >= count:
            raise DataError(
                f"keypoint {name!r} has id {last}, but num_keypoints is {count}; set it to {last + 1} or more"
            )
        return cls(dict(pairs), count)

    def located(self, texts: Sequence[bytes], objects: int, where: str) -> KeypointPlacement:
        """Return where the named keypoints of a record's objects go.

        Args:
            texts: The names, as many for each object.
            objects: N.

        Raises:
            DataError: If there are not as many names for each object, or an object has a keypoint twice.
        """
        if len(texts) % objects if objects else len(texts):
            raise DataError(f"{where}: {KEYPOINT_TEXT} has {len(texts)} names for {objects} boxes")
        # Few names occur, many times each.
        known = {text: self.places.get(text.decode("utf-8", "replace"), -1) for text in set(texts)}
        places = np.array([known[text] for text in texts], np.int64).reshape(objects, -1 if objects else 0)
        ordered = np.sort(places, axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        if twice.any():
            number, place = (int(indices[0]) for indices in np.nonzero(twice))
            name = next(name for name, other in self.places.items() if other == ordered[number, place])
            raise DataError(f"{where}: {KEYPOINT_TEXT} names {name!r} twice for object {number}")
        return KeypointPlacement(places, self.count)


def names_of_objects(sample: Sample, categories: Categories) -> list[bytes]:
    """Return the name of each keypoint [N · P], empty where an object's class has none; none if no class names any."""
    names: list[bytes] = []
    if sample.keypoints is None or not any(category.keypoints for category in categories):
        return names
    count = sample.keypoints.shape[1]
    for label in sample.labels.tolist():
        own, category = [b""] * count, categories.by_label(label)
        for name, place in zip(category.keypoints, category.keypoint_indices, strict=True):
            if place < count:
                own[place] = name.encode()
        names += own
    return names
