"""Checks of labels and boxes.

The label map is compared with the records, classes and objects per image are counted; boxes must be inside their
images, valid, unique, and large enough in the network's input.

Dimensions: N objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from boxwright.base.text import visible_line
from boxwright.data.record_classes import labeled_texts
from boxwright.data.survey import suspicion
from boxwright.training.preflight.anchors import InputFrame
from boxwright.training.preflight.records import Finding, Record, some
from boxwright.types import Categories

# As a share of all boxes: so many useless ones are a mistake in the format, such as two exchanged coordinates.
_FATAL = 0.5
_SMALLEST = 1.0  # pixels of the input


def check_boxes(records: Sequence[Record]) -> Iterable[Finding]:
    """Yield suspicious boxes."""
    reasons: dict[str, list[str]] = {}
    total = 0
    for record in records:
        seen = set()
        for box, label in zip(record.boxes.tolist(), record.labels.tolist(), strict=True):
            total += 1
            key = (label, *box)
            reason = suspicion(box, *record.size) or ("twice in one image" if key in seen else "")
            seen.add(key)
            if reason:
                reasons.setdefault(reason, []).append(record.name)
    for reason, names in reasons.items():
        useless = reason in ("turned inside out", "no area", "outside the image")
        yield Finding(
            "boxes",
            "fatal" if useless and len(names) > _FATAL * total else "warning",
            f"{len(names)} of {total} boxes: {reason} ({some(names)})",
            "correct or remove them; boxwright inspect shows them"
            + (" (training ignores such boxes)" if useless else ""),
        )
    if not reasons:
        yield Finding("boxes", "fine", f"{total} boxes are inside their images")


def check_small_boxes(records: Sequence[Record], frame: InputFrame) -> Iterable[Finding]:
    """Yield boxes that are smaller than a pixel after resizing."""
    names, total = [], 0
    for record in records:
        boxes, _ = frame.boxes(record)
        sides = (boxes[:, 2:] - boxes[:, :2]).min(1, initial=np.inf)
        total += len(sides)
        names += [record.name] * int((sides < _SMALLEST).sum())
    if names:
        yield Finding(
            "small_boxes",
            "warning",
            f"{len(names)} of {total} boxes are less than a pixel wide or high in the network's input ({some(names)})",
            "enlarge image_resizer, crop tiles (random_tile), or remove such boxes",
        )
    else:
        yield Finding("small_boxes", "fine", f"{total} boxes are at least a pixel in the network's input")


# A class this many times rarer than another is hardly learned.
_RATIO = 100
_MOSTLY_EMPTY = 0.5


def check_label_map(records: Sequence[Record], categories: Categories, num_classes: int) -> Iterable[Finding]:
    """Yield mismatches between the label map, the records and the detector's number of classes."""
    left_out = sum(record.left_out for record in records)
    total = left_out + sum(len(record.boxes) for record in records)
    if left_out:
        yield Finding(
            "label_map",
            "fatal" if left_out == total else "warning",
            f"{left_out} of {total} objects have classes that are not in the label map, and are ignored",
            "add them to the label map, or remove them from the records",
        )
    else:
        yield Finding("label_map", "fine", f"every class of {total} objects is in the label map")
    slots = categories.num_slots
    if slots == num_classes:
        yield Finding("num_classes", "fine", f"{num_classes}, as in the label map")
    else:  # more classes than num_classes is refused when the detector is built
        yield Finding(
            "num_classes",
            "warning",
            f"the model has {num_classes} classes, the label map ids up to {slots}: the others are never learned",
            f"set num_classes to {slots}",
        )


def check_record_texts(paths: Sequence[str], categories: Categories, most: int) -> Iterable[Finding]:
    """Yield classes whose text and id in TFRecords disagree with the label map; the text wins, as in TensorFlow."""
    wrong: Counter[str] = Counter()
    for (text, label), count in labeled_texts(paths, most).items():
        category = categories.by_name(text)
        if category is not None and label and category.id != label:
            wrong[f"{text!r} has id {category.id} in the label map and {label} in the records"] += count
        elif category is None and label and (known := categories.by_id(label)) is not None:
            wrong[f"id {label} is {known.name!r} in the label map and {text!r} in the records"] += count
    if wrong:
        yield Finding(
            "label_map_texts",
            "warning",
            f"{sum(wrong.values())} objects: {some(list(wrong))}",
            "programs that read ids learn other classes than those that read names: rewrite the records with this map",
        )


def check_balance(records: Sequence[Record], categories: Categories) -> Iterable[Finding]:
    """Yield classes without objects, and classes that are far rarer than others."""
    counts = Counter(label for record in records for label in record.labels[~record.crowd].tolist())
    by_name = {category.name: counts[category.label] for category in categories}
    absent = [name for name, count in by_name.items() if not count]
    present = {name: count for name, count in by_name.items() if count}
    if absent and present:
        yield Finding(
            "class_balance",
            "warning",
            f"no object of {some(absent)} was seen",
            "remove the class from the label map, or add images of it",
        )
    if not present:
        return
    often, rare = max(present, key=by_name.__getitem__), min(present, key=by_name.__getitem__)
    if present[often] > _RATIO * present[rare]:
        yield Finding(
            "class_balance",
            "warning",
            f"{often} occurs {present[often]} times, {rare} {present[rare]} times",
            "weight the rare class by train_input_reader.class_weight, or add images of it",
        )
    elif not absent:
        shares = ", ".join(
            f"{visible_line(name)} {count}" for name, count in sorted(present.items(), key=lambda row: -row[1])[:6]
        )
        yield Finding("class_balance", "fine", shares)


def check_queries(records: Sequence[Record], most_objects: int | None) -> Iterable[Finding]:
    """Yield images with more objects than a detector has queries, each of which learns one (None: it has none)."""
    if most_objects is None:
        return
    numbers = [len(record.boxes) for record in records]
    above = [record.name for record in records if len(record.boxes) > most_objects]
    if above:
        yield Finding(
            "queries",
            "warning",
            f"{len(above)} images have more objects than the detector has queries, {most_objects}: at most "
            f"{max(numbers)} ({some(above)}); the others are never learned",
            f"set decoder.num_queries to {max(numbers)} or more, or crop tiles (random_tile)",
        )
    else:
        yield Finding(
            "queries", "fine", f"{most_objects} queries, at most {max(numbers, default=0)} objects in an image"
        )


def check_counts(records: Sequence[Record], max_number_of_boxes: int | None) -> Iterable[Finding]:
    """Yield images without objects, and with more than training keeps (None: it keeps all)."""
    numbers = np.array([len(record.boxes) for record in records])
    empty = int((numbers == 0).sum())
    if len(numbers) and empty == len(numbers):
        yield Finding("empty_images", "fatal", f"none of {empty} images has an object", "check the annotations' paths")
    elif empty > _MOSTLY_EMPTY * len(numbers):
        yield Finding(
            "empty_images",
            "warning",
            f"{empty} of {len(numbers)} images have no objects",
            "a detector learns only background from them: check that no annotations were lost, or remove most of them",
        )
    else:
        counted = f"{empty} of {len(numbers)} images have no objects" if empty else "every image has objects"
        yield Finding("empty_images", "fine", counted)
    if max_number_of_boxes is None:
        return
    above = [record.name for record in records if len(record.boxes) > max_number_of_boxes]
    if above:
        yield Finding(
            "max_number_of_boxes",
            "warning",
            f"{len(above)} images have more than {max_number_of_boxes} objects, at most {numbers.max()}: {some(above)}"
            "; the others are learned as background",
            f"set train_input_reader.max_number_of_boxes to {numbers.max()}",
        )
    else:
        yield Finding("max_number_of_boxes", "fine", f"at most {numbers.max(initial=0)} objects in an image")
