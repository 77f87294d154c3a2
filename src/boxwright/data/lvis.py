"""What LVIS's files have beyond COCO's: frequencies of classes, and which classes each image was searched for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from boxwright.base.errors import DataError
from boxwright.types import Categories, Sample
from boxwright.types.categories import FREQUENCIES, ids

# LVIS's names of the lists, and the sample's.
_LISTS = {"neg_category_ids": "negative_labels", "not_exhaustive_category_ids": "not_exhaustive_labels"}


def with_file_names(content: dict[str, Any]) -> dict[str, Any]:
    """Return a file's content in which images without `file_name` have the end of their `coco_url`, folder and file."""
    images = content.get("images")
    if not isinstance(images, list):
        return content
    return {**content, "images": [_named(row) for row in images]}


def _named(row: Any) -> Any:
    if not isinstance(row, dict) or "file_name" in row or not isinstance(row.get("coco_url"), str):
        return row
    return {**row, "file_name": "/".join(row["coco_url"].split("/")[-2:])}


def with_frequencies(
    categories: Categories, rows: Sequence[dict[str, Any]], label_of: Mapping[int, int], where: str
) -> Categories:
    """Return the classes with the frequencies of a file's categories, where they have none.

    Args:
        rows: The file's categories.
        label_of: Their labels, by id.
        where: The file, for errors.

    Raises:
        DataError: For one that is none of r, c and f.
    """
    given: dict[int, str] = {}
    for row in (row for row in rows if "frequency" in row):
        if row["frequency"] not in FREQUENCIES:
            value = str(row["frequency"])[:60]
            raise DataError(f"{where}: category {row['name']!r}: frequency: expected r, c or f, found {value!r}")
        given.setdefault(label_of[row["id"]], row["frequency"])
    return Categories(
        tuple(replace(item, frequency=item.frequency or given.get(item.label, "")) for item in categories)
    )


def searched_classes(
    row: dict[str, Any], label_of: Mapping[int, int], known: Collection[int], where: str
) -> dict[str, Any]:
    """Return the fields of a sample that an image's lists of classes give: int64 arrays by name.

    Args:
        row: The image's.
        label_of: Labels by the ids of categories.
        known: Ids of all categories; those without a label are left out.
        where: The image, for errors.

    Raises:
        DataError: If a list is none of ids of categories.
    """
    fields: dict[str, Any] = {}
    for key, name in _LISTS.items():
        given = row.get(key) or []
        if not isinstance(given, list) or not all(
            isinstance(number, int | float) and number in known for number in given
        ):
            raise DataError(f"{where}: {key}: expected ids of categories, found {str(given)[:60]}")
        fields[name] = np.array(sorted({label_of[number] for number in given if number in label_of}), np.int64)
    return fields


def searched_lists(sample: Sample, categories: Categories) -> dict[str, list[int]]:
    """Return the lists of an image for a COCO file; nothing if it has none."""
    lists = {key: ids(categories, getattr(sample, name).tolist()) for key, name in _LISTS.items()}
    return lists if any(lists.values()) else {}
