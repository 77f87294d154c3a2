"""Classes of objects: labels, ids and names; and those of COCO, by which published weights are trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from boxwright.base.errors import DataError

# LVIS's: rare, common, frequent.
FREQUENCIES = ("r", "c", "f")


@dataclass(frozen=True)
class Category:
    """One class of objects.

    Attributes:
        label: The 0-based index inside Boxwright.
        id: The id in the source (1-based in label maps, sparse in COCO).
        name: The name in annotations.
        display_name: The name for display; may be empty.
        keypoints: Names of the keypoints, in order; may be empty.
        keypoint_ids: Their indices among the keypoints of all classes; empty if those are 0, 1, 2, …
        ancestor_ids: Ids of the more general classes that its objects belong to as well.
        descendant_ids: Ids of the more special classes whose objects belong to it as well.
        frequency: LVIS's r, c or f: in fewer than 10, 10 to 99, or 100 and more training images; empty if unknown.
    """

    label: int
    id: int
    name: str
    display_name: str = ""
    keypoints: tuple[str, ...] = ()
    keypoint_ids: tuple[int, ...] = ()
    ancestor_ids: tuple[int, ...] = ()
    descendant_ids: tuple[int, ...] = ()
    frequency: str = ""

    @property
    def keypoint_indices(self) -> tuple[int, ...]:
        """The index of each keypoint among those of all classes."""
        return self.keypoint_ids or tuple(range(len(self.keypoints)))

    @property
    def title(self) -> str:
        """The display name, or else the name."""
        return self.display_name or self.name


def _numbered(label: int) -> str:
    return f"class {label + 1}"


@dataclass(frozen=True)
class Categories:
    """The classes of a data set, ordered by label.

    Labels may have gaps (a label map with ids 1, 2, 5 has labels 0, 1, 4), as TensorFlow's heads have an output for
    every id up to the largest.

    Attributes:
        items: The classes, ordered by label.

    Raises:
        DataError: For two classes of the same label, id or name, or no classes.
    """

    items: tuple[Category, ...]

    def __post_init__(self) -> None:
        if not self.items:
            raise DataError("no classes: at least one category is expected")
        for attribute in ("label", "id", "name"):
            counts = Counter(getattr(item, attribute) for item in self.items)
            twice, count = counts.most_common(1)[0]
            if count > 1:
                raise DataError(f"two categories have the {attribute} {twice!r}")
        # The dataclass is frozen, and order is part of its meaning: the last label tells how many outputs a head needs.
        object.__setattr__(self, "items", tuple(sorted(self.items, key=lambda item: item.label)))

    @cached_property
    def _by_label(self) -> dict[int, Category]:
        return {item.label: item for item in self.items}

    @cached_property
    def _by_name(self) -> dict[str, Category]:
        return {item.name: item for item in self.items}

    @cached_property
    def _by_id(self) -> dict[int, Category]:
        return {item.id: item for item in self.items}

    @classmethod
    def numbered(cls, count: int) -> Categories:
        """Return so many classes that have no names but their numbers, from 1."""
        return cls(tuple(Category(label, label + 1, _numbered(label)) for label in range(count)))

    @cached_property
    def are_numbers(self) -> bool:
        """Whether the classes are named by their numbers."""
        return all(item.name == _numbered(item.label) for item in self.items)

    def __iter__(self) -> Iterator[Category]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def num_slots(self) -> int:
        """The number of classes that a head needs: the largest label plus one."""
        return self.items[-1].label + 1

    def by_label(self, label: int) -> Category:
        """Return the class of a label; a label in a gap gets a category named after its number."""
        return self._by_label.get(label) or Category(label, label + 1, _numbered(label))

    def by_name(self, name: str) -> Category | None:
        """Return the class of a name, or None."""
        return self._by_name.get(name)

    def by_any_name(self, name: str) -> Category | None:
        """Return the class of a name, or else the first of a display name, or None."""
        return self.by_name(name) or next((item for item in self.items if item.display_name == name != ""), None)

    def by_id(self, id: int) -> Category | None:
        """Return the class of an id, or None."""
        return self._by_id.get(id)

    def to_list(self) -> list[dict[str, Any]]:
        """Return plain data, for checkpoints and JSON."""
        return [
            {"label": c.label, "id": c.id, "name": c.name, "display_name": c.display_name, "keypoints": [*c.keypoints]}
            | ({"keypoint_ids": [*c.keypoint_ids]} if c.keypoint_ids else {})
            | ({"frequency": c.frequency} if c.frequency else {})
            for c in self.items
        ]

    @classmethod
    def from_list(cls, items: list[dict[str, Any]]) -> Categories:
        """Return the categories that `to_list` converted; a `DataError` if the items are malformed."""
        kinds: dict[str, Any] = {"label": int, "id": int, "name": str, "display_name": str, "frequency": str}
        kinds |= dict.fromkeys(("keypoints", "keypoint_ids"), list | tuple)
        for number, item in enumerate(items):
            wrong = next(
                # A key that is not known has no kind that its value could be of.
                (key for key, value in item.items() if not isinstance(value, kinds.get(key, type(None)))),
                None,
            )
            if wrong is not None or not {"label", "id", "name"} <= set(item) or item["label"] < 0:
                raise DataError(f"class {number}: expected label, id and name, found {str(item)[:120]}")
        points = [{name: tuple(item.get(name, ())) for name in ("keypoints", "keypoint_ids")} for item in items]
        return cls(tuple(Category(**{**item, **own}) for item, own in zip(items, points, strict=True)))


def ids(categories: Categories | None, labels: Sequence[int]) -> list[int]:
    """Return the class id of each label; without categories, labels plus 1."""
    if categories is None:
        return [label + 1 for label in labels]
    return [categories.by_label(label).id for label in labels]


def titles(categories: Categories | None, labels: Sequence[int]) -> list[str]:
    """Return a name for each label; "class 3" for a label without a category."""
    if categories is None:
        return [_numbered(label) for label in labels]
    return [categories.by_label(label).title for label in labels]


# In order; ids count from 1 and leave out those of COCO's stuff that no object has.
# fmt: off
_NAMES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow",
    "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis",
    "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich",
    "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed",
    "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven",
    "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier",
    "toothbrush",
)
# fmt: on
_NO_OBJECTS = frozenset((12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
_IDS = [number for number in range(1, 91) if number not in _NO_OBJECTS]
# Darknet's names of six of them, which some hub exports have.
DARKNET_NAMES = {
    "motorbike": "motorcycle",
    "aeroplane": "airplane",
    "sofa": "couch",
    "pottedplant": "potted plant",
    "diningtable": "dining table",
    "tvmonitor": "tv",
}


def coco_classes() -> Categories:
    """Return COCO's 80 classes, without gaps between labels."""
    rows = enumerate(zip(_IDS, _NAMES, strict=True))
    return Categories(tuple(Category(label, number, name) for label, (number, name) in rows))


def coco_classes_by_id() -> Categories:
    """Return COCO's 80 classes with the gaps of its ids, as networks with an output for each of 90 ids have them."""
    rows = zip(_IDS, _NAMES, strict=True)
    return Categories(tuple(Category(number - 1, number, name) for number, name in rows))


def are_coco_classes(names: Sequence[str]) -> bool:
    """Tell whether names are those of COCO, or Darknet's of them, in order."""
    return [DARKNET_NAMES.get(name, name) for name in names] == list(_NAMES)
