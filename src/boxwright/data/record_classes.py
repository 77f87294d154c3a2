"""Classes as TFRecords themselves name them, without a label map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from boxwright.base.errors import DataError
from boxwright.data.reading import reading
from boxwright.data.shard_files import expand_paths
from boxwright.data.tf_example import read_features
from boxwright.data.tfrecord import TFRecordFile
from boxwright.types import Categories, Category

# A box may leave its image, but not by as much as itself.
_BEYOND_SHARES = 2.0


def classes_of_records(paths: Sequence[str]) -> Categories:
    """Return the classes in the text and label of every object, ordered by id.

    Texts without labels are numbered from 1 in alphabetical order.

    Args:
        paths: Paths, globs, or `name@count`.

    Raises:
        DataError: If objects have no texts, or a label stands for two of them.
    """
    ids: dict[str, int] = {}
    bare = 0
    for texts, labels in _texts_and_labels(paths):
        bare += len(labels) if not texts else 0
        # 0 stands for no label. Lists of different lengths are reported when the record is decoded.
        for text, label in zip(texts, labels or [0] * len(texts), strict=False):
            ids[text] = max(label, ids.get(text, 0))
    if not ids:
        raise DataError(
            f"{', '.join(paths)}: "
            + (f"{bare} objects have class numbers but no names" if bare else "there are no objects")
            + "; set a label_map"
        )
    # Only texts without a label take these, in alphabetical order.
    free = [number for number in range(1, len(ids) + 1) if number not in ids.values()]
    numbered = {text: ids[text] or free.pop(0) for text in sorted(ids)}
    double = next((n for n in numbered.values() if list(numbered.values()).count(n) > 1), None)
    if double is not None:
        same = sorted(text for text, number in numbered.items() if number == double)
        raise DataError(f"{', '.join(paths)}: class {double} is named {' and '.join(same)}; set a label_map")
    rows = sorted(numbered.items(), key=lambda row: row[1])
    return Categories(tuple(Category(label, number, text) for label, (text, number) in enumerate(rows)))


def labeled_texts(paths: Sequence[str], most: int = 0) -> Counter[tuple[str, int]]:
    """Return the number of objects of each (text, label); the label is 0 if objects have none.

    Args:
        paths: Paths, globs, or `name@count`.
        most: How many records to read from the beginning of each file; 0 for all.

    Raises:
        DataError: If a record cannot be read.
    """
    counts: Counter[tuple[str, int]] = Counter()
    for texts, labels in _texts_and_labels(paths, most):
        counts.update(zip(texts, labels or [0] * len(texts), strict=False))
    return counts


def check_record_labels(paths: Sequence[str], categories: Categories, most: int = 0) -> str | None:
    """Return one sentence if records without class texts number classes from 0 and the label map from 1, else None.

    Args:
        paths: Paths, globs, or `name@count`.
        most: How many records to read from the beginning of each file; 0 for all.

    Raises:
        DataError: If a record cannot be read.
    """
    counts: Counter[int] = Counter()
    for texts, labels in _texts_and_labels(paths, most):
        # A text decides the class, whatever the number.
        counts.update(labels if not any(texts) else ())
    if not counts[0] or any(categories.by_id(label + 1) is None for label in counts):
        return None
    return (
        f"{', '.join(paths)}: {counts.total()} objects have class numbers from 0 to {max(counts)} and no names, but "
        "ids in the label map start at 1, so that each would be of the class before its own, or of none: "
        "boxwright convert --labels_are classes_from_zero adds 1 to them"
    )


def check_record_boxes(paths: Sequence[str], most: int = 0) -> str | None:
    """Return one sentence if records have boxes in pixels, where TFRecords have shares of the image, else None.

    Args:
        paths: Paths, globs, or `name@count`.
        most: How many records to read from the beginning of each file; 0 for all.

    Raises:
        DataError: If a record cannot be read.
    """
    far = boxes = 0
    for path in expand_paths(list(paths)):
        file = TFRecordFile(path)
        for number in range(min(len(file), most or len(file))):
            where = f"{path}: record {number}"
            with reading(where):
                sides = read_features(file[number], where).get("image/object/bbox/xmax", ())
                boxes += len(sides)
                far += sum(float(side) > _BEYOND_SHARES for side in sides)
    if 2 * far <= boxes:
        return None
    return (
        f"{', '.join(paths)}: {far} of {boxes} boxes have numbers above {_BEYOND_SHARES:g}: they seem to be in pixels, "
        "where TFRecords have shares of the image; write the records again with each divided by its image's size"
    )


def _texts_and_labels(paths: Sequence[str], most: int = 0) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the class texts and labels of each record; either list may be empty."""
    for path in expand_paths(list(paths)):
        file = TFRecordFile(path)
        for number in range(min(len(file), most or len(file))):
            where = f"{path}: record {number}"
            with reading(where):
                features = read_features(file[number], where)
                texts = [text.decode("utf-8", "replace") for text in features.get("image/object/class/text", ())]
                labels = [int(label) for label in features.get("image/object/class/label", ())]
            yield texts, labels
