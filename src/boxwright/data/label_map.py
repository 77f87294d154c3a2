"""Label maps: `item { id: 1 name: "cat" }` in text format, read into `Categories`."""

from __future__ import annotations

from pathlib import Path

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
from boxwright.types import Categories, Category

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
