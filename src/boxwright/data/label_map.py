"""Label maps: `item { id: 1 name: "cat" }` in text format, read into `Categories`, and what else they say of objects.

Records may name keypoints one by one (TF's `use_keypoint_label_map`) instead of in an order that all share. An object
may be of several classes at once: a terrier is a dog is an animal (Open Images' hierarchy).

Dimensions: N objects, T named keypoints of an object, P keypoints of all classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError, DataError
from boxwright.base.files import write_whole
from boxwright.config.load import load_message
from boxwright.config.messages import (
    LVISFrequency,
    StringIntLabelMap,
    StringIntLabelMapItem,
    StringIntLabelMapItemKeypointMap,
)
from boxwright.config.preset import packaged
from boxwright.config.text_format import write_text
from boxwright.types import Categories, Category, Sample

Related = Mapping[int, tuple[int, ...]]

KEYPOINT_TEXT = "image/object/keypoint/text"

_FREQUENCIES = {LVISFrequency.RARE: "r", LVISFrequency.COMMON: "c", LVISFrequency.FREQUENT: "f"}

_BACKGROUND = "background"


def load_label_map(path: str | Path) -> Categories:
    """Read a label map.

    An item of id i has label i - 1, whatever the order of the items and the gaps between ids.

    As TensorFlow does, an item without a name has its display name, and an item of id 0 that is named background is no
    class.

    Args:
        path: The file; or `preset:voc_label_map.pbtxt`, which comes with Boxwright.

    Raises:
        DataError: For a map without items, an item without name or id, another id 0, or a repeated id or name; with the
            item's position.
    """
    try:
        label_map = load_message(packaged(path), StringIntLabelMap)
    except ConfigError as error:
        raise DataError(f"label map {error}") from None
    if not label_map.item:
        raise DataError(f"label map {path}: no items; expected item {{ id: 1 name: 'something' }}")
    # Ids and names share the table: an integer never equals a text.
    seen: dict[object, int] = {}
    for number, item in enumerate(label_map.item, start=1):
        where = f"label map {item.location('id') or item.location('name') or path}: item {number}"
        _check_item(item, where)
        for key in (item.id, _name(item)):
            if key in seen:
                kind = "id" if isinstance(key, int) else "name"
                raise DataError(f"{where}: {kind} {key!r} is that of item {seen[key]} already")
        seen |= {item.id: number, _name(item): number}
    classes = tuple(_category(item) for item in label_map.item if item.id)
    if not classes:
        raise DataError(f"label map {path}: no items besides {_BACKGROUND!r}, which is no class")
    return Categories(classes)


def _name(item: StringIntLabelMapItem) -> str:
    return item.name or item.display_name


def _check_item(item: StringIntLabelMapItem, where: str) -> None:
    name = _name(item)
    if not item.has("id"):
        raise DataError(f"{where} ({name!r}) has no id")
    if item.id == 0 and _BACKGROUND not in (item.name, item.display_name):
        raise DataError(
            f"{where} ({name!r}) has id 0; ids start at 1, as 0 is background: remove the item if it stands for no "
            "object, as none_of_the_above does, or else number the classes from 1"
        )
    if not name:
        raise DataError(f"{where} (id {item.id}) has no name")


def _category(item: StringIntLabelMapItem) -> Category:
    points = sorted(item.keypoints, key=lambda point: point.id)
    names, ids = tuple(point.label for point in points), tuple(point.id for point in points)
    # The ids of one class's keypoints are usually 0, 1, 2, …
    return Category(
        item.id - 1,
        item.id,
        _name(item),
        item.display_name,
        names,
        () if ids == tuple(range(len(ids))) else ids,
        tuple(item.ancestor_ids),
        tuple(item.descendant_ids),
        _FREQUENCIES.get(item.frequency, ""),
    )


def write_label_map(categories: Categories, path: str | Path) -> None:
    """Write a label map; ids are labels plus 1."""
    write_whole(path, label_map_text(categories))


def label_map_text(categories: Categories) -> str:
    """Return a label map in text format, with the names of keypoints; ids are labels plus 1."""
    items = []
    for category in categories:
        item = StringIntLabelMapItem(id=category.label + 1, name=category.name)
        if category.display_name:
            item.display_name = category.display_name
        item.keypoints = [
            StringIntLabelMapItemKeypointMap(id=number, label=name)
            for number, name in zip(category.keypoint_indices, category.keypoints, strict=True)
        ]
        item.ancestor_ids, item.descendant_ids = list(category.ancestor_ids), list(category.descendant_ids)
        if category.frequency:
            item.frequency = next(name for name, letter in _FREQUENCIES.items() if letter == category.frequency)
        items.append(item)
    return write_text(StringIntLabelMap(item=items))


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
