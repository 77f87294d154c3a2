"""Reading samples and the text files that describe them: every failure is a `DataError` with place and cause.

All data sets read through here, so that skipping bad samples works for all of them. What a reader assumed, and what it
left out, is counted by reason with an example each.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import os
import re
import unicodedata
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import BoxwrightError, DataError, is_shortage
from boxwright.base.files import cause, read_file, shown
from boxwright.base.limits import COORDINATE
from boxwright.base.text import from_cell, to_number
from boxwright.types import Categories, Sample

# Characters of a file's own text in a message: a hostile file may have megabytes there.
_MOST_SHOWN = 60
_XML_ENCODING = re.compile(rb"<\?xml[^>]*?\bencoding\s*=\s*[\"']([A-Za-z0-9._-]+)[\"']")
_XML_DECLARATION = re.compile(r"^\ufeff?<\?xml[^>]*\?>")
# Characters outside XML 1.0, and the carriage return, which XML readers turn into a line feed.
NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST_EXAMPLE = 400
# The reason of notices and accounts for boxes whose class the label map lacks.
UNKNOWN_CLASS = "of classes that are not in the label map"


@dataclass
class ReasonCounts:
    """Counts by reason, and the first example of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, example: object = "", times: int = 1) -> None:
        """Count a reason, `times` times; the first example of each is kept."""
        if times:
            self.counts[reason] += times
            self.examples.setdefault(reason, str(example)[:_LONGEST_EXAMPLE])

    def merge(self, other: ReasonCounts) -> None:
        """Add another tally's counts."""
        for reason, times in other.counts.items():
            self.add(reason, other.examples[reason], times)

    def lines(self) -> Iterator[str]:
        """Yield `without a box: 3 (a.jpg)` for each reason, most frequent first."""
        for reason, times in self.counts.most_common():
            example = self.examples[reason]
            yield f"{reason}: {times}" + (f" ({example})" if example else "")

    def total(self) -> int:
        """Return the sum of all counts."""
        return self.counts.total()


@dataclass
class Notices:
    """What a reader noticed when it opened data; complete then, and not changed by reading samples.

    Attributes:
        assumed: Pictures or labels that were read as their author meant them, not as they are written.
        boxes: Annotated boxes that no sample has.
        files: Pictures and annotation files that are no sample.
    """

    assumed: ReasonCounts = field(default_factory=ReasonCounts)
    boxes: ReasonCounts = field(default_factory=ReasonCounts)
    files: ReasonCounts = field(default_factory=ReasonCounts)

    def merge(self, other: Notices) -> None:
        """Add another reader's."""
        for own, more in ((self.assumed, other.assumed), (self.boxes, other.boxes), (self.files, other.files)):
            own.merge(more)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn exceptions raised inside into a `DataError`; Boxwright's own errors pass through.

    A lack of memory becomes another error, as nothing is wrong with the sample, which would be skipped.
    """
    try:
        yield
    except BoxwrightError:
        raise
    except Exception as error:  # libraries raise all kinds of exceptions for malformed files
        if is_shortage(error):
            raise BoxwrightError(f"{where}: not enough memory to read it; fewer workers need less") from error
        if isinstance(error, OSError):
            raise DataError(f"{where}: {cause(error)}") from error
        raise DataError(f"{where}: {type(error).__name__}: {str(error)[:_MOST_SHOWN]}") from error


def checked_sample(sample: Sample, where: str) -> Sample:
    """Return the sample unchanged.

    Raises:
        DataError: For boxes, weights, areas or class scores that are not finite, and boxes, visible points or offsets
            far outside any image.
    """
    for name in ("boxes", "weights", "areas", "class_scores"):
        values = getattr(sample, name)
        if values is not None and not np.isfinite(values).all():
            bad = int(np.argwhere(~np.isfinite(values))[0][0])
            raise DataError(f"{where}: {name} of object {bad} are not finite: {np.asarray(values[bad]).tolist()}")
    if len(sample.boxes):
        worst = int(np.abs(sample.boxes).max(1).argmax())
        if problem := COORDINATE.exceeded(float(np.abs(sample.boxes[worst]).max())):
            raise DataError(f"{where}: box {sample.boxes[worst].tolist()} of object {worst}: {problem}")
    for what, points in (("keypoint", sample.keypoints), ("DensePose's point", sample.dense_pose)):
        if points is not None and points.size:
            farthest = np.abs(np.where(points[..., 2:3] > 0, points[..., :2], 0)).max(-1)
            number, point = np.unravel_index(farthest.argmax(), farthest.shape)
            if problem := COORDINATE.exceeded(float(farthest[number, point])):
                raise DataError(f"{where}: {what} {point} of object {number}: {problem}")
    if sample.temporal_offsets is not None and len(sample.temporal_offsets):
        longest = np.abs(sample.temporal_offsets).max(1)
        if problem := COORDINATE.exceeded(float(longest.max())):
            raise DataError(f"{where}: offset of object {longest.argmax()} from the previous frame: {problem}")
    return sample


def finite_number(value: Any, where: str) -> float:
    """Return a number from a file.

    Raises:
        DataError: If it is not a finite number.
    """
    if isinstance(value, bool | int | float):
        try:
            number = float(value)
        # An integer of more than 308 digits, which JSON allows.
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        raise DataError(f"{where}: expected a finite number, found {str(value)[:_MOST_SHOWN]}")
    raise DataError(f"{where}: expected a number, found {repr(value)[:_MOST_SHOWN]}")


def whole_number(value: Any, where: str) -> int:
    """Return an integer from a file; 3.0 is one.

    Raises:
        DataError: If it is not an integer.
    """
    number = finite_number(value, where)
    if number != int(number):
        raise DataError(f"{where}: expected a whole number, found {value}")
    # int(number) would change ids above 2**53, for which a float has no room.
    return int(value)


def parse_numbers(words: Iterable[str], where: str) -> list[float]:
    """Return the finite numbers that words spell; raise DataError if any spells none."""
    return [parse_number(word, where) for word in words]


def parse_number(word: str, where: str) -> float:
    """Return the finite number that a word spells; raise DataError if it spells none."""
    try:
        number = to_number(word)
    except ValueError:
        raise DataError(f"{where}: expected a number, found {word[:60]!r}") from None
    return finite_number(number, where)


def is_number(word: str) -> bool:
    """Return whether a word spells a number."""
    try:
        to_number(word)
    except ValueError:
        return False
    return True


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, in UTF-16 with a byte order mark, or else in Windows-1252.

    Raises:
        DataError: If it cannot be read, or is in none of them.
    """
    data = read_file(path)
    try:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return data.decode("utf-16")
        # Editors on Windows start a file with a byte order mark, which would become part of the first word.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = str(error)
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError:
        raise DataError(f"{shown(path)}: not UTF-8: {problem}") from None


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """Return the number, from 1, and the stripped text of each line of a file that is not blank."""
    return [(number, line.strip()) for number, line in enumerate(read_text(path).splitlines(), start=1) if line.strip()]


@contextmanager
def reading_csv(file: Path) -> Iterator[None]:
    """Turn errors of a table's syntax into a `DataError`."""
    try:
        yield
    except csv.Error as error:
        raise DataError(f"{file}: not CSV: {error}") from None


def read_table(
    file: Path, needed: Sequence[str] = (), row: str = "line", first: int = 2
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a CSV file with a header, each after its place.

    Args:
        needed: Columns that the header must have, and each row.
        row: What a row is called in its place.
        first: The number of the first row after the header.

    Raises:
        DataError: If it is not CSV, or lacks a column.
    """
    with reading_csv(file):
        rows = csv.DictReader(io.StringIO(read_text(file)))
        if missing := [name for name in needed if name not in (rows.fieldnames or ())]:
            known = ", ".join(rows.fieldnames or ())[:200]
            raise DataError(f"{file}: no column {', '.join(missing)}; there are: {known}")
        for number, values in enumerate(rows, start=first):
            where = f"{file}: {row} {number}"
            if not all(values[name] for name in needed):
                raise DataError(f"{where}: too few columns")
            yield where, {name: from_cell(cell) if isinstance(cell, str) else cell for name, cell in values.items()}


def read_json(path: Path) -> Any:
    """Return what a JSON file holds, in UTF-8, -16 or -32, with or without a byte order mark.

    Raises:
        DataError: If it cannot be read, or is not JSON.
    """
    return parse_json(read_file(path), shown(path))


def parse_json(text: bytes | str, where: str) -> Any:
    """Return what JSON holds; raise DataError if it is not JSON."""
    try:
        return json.loads(text)
    # ValueError: not JSON, not in its encoding, or an integer of thousands of digits.
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {str(error)[:200]}") from None


def as_object(value: Any, where: str) -> dict[str, Any]:
    """Return a value that is an object; raise DataError if it is not."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object, found {repr(value)[:60]}")
    return value


def as_list(value: Any, where: str) -> list[Any]:
    """Return a value that is a list; raise DataError if it is not."""
    if not isinstance(value, list):
        raise DataError(f"{where}: expected a list, found {repr(value)[:60]}")
    return value


def read_objects(value: Any, where: str, item: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects in a list, each after its place, such as `a.json: shape 3`; a DataError for anything else."""
    for number, row in enumerate(as_list(value, f"{where}: {item}s"), start=1):
        place = f"{where}: {item} {number}"
        yield place, as_object(row, place)


def as_text(value: Any, where: str) -> str:
    """Return a value that is text; raise DataError if it is not, or is empty."""
    if not isinstance(value, str) or not value:
        raise DataError(f"{where}: expected text, found {repr(value)[:60]}")
    return value


def read_numbers(row: dict[str, Any], keys: Sequence[str], where: str) -> list[float]:
    """Return the finite numbers under some keys of an object; raise DataError if any is none."""
    return [finite_number(row.get(key), f"{where}: {key}") for key in keys]


def read_points(value: Any, where: str, least: int = 3) -> list[float]:
    """Return x, y, x, y and so on from a list of pairs.

    Raises:
        DataError: If it has fewer than `least` pairs, or something else than pairs of finite numbers.
    """
    pairs = as_list(value, where)
    if len(pairs) < least or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise DataError(f"{where}: expected [[x, y], …] of {least} points or more, found {repr(value)[:60]}")
    return [finite_number(number, where) for pair in pairs for number in pair]


def read_xml(path: Path, assumed: ReasonCounts | None = None) -> ET.Element:
    """Return the root of an XML file.

    Args:
        assumed: Counts the files that are not in the encoding that they declare.

    Raises:
        DataError: If it cannot be read, or is not XML.
    """
    data = read_file(path)
    try:
        return ET.fromstring(data)
    except (ET.ParseError, ValueError, LookupError, RecursionError) as error:
        for text, assumption in _decode_otherwise(data):
            try:
                # The declaration is removed, since it would still name the old encoding.
                root = ET.fromstring(_XML_DECLARATION.sub("", text, count=1).encode())
            except (ET.ParseError, ValueError, RecursionError):
                continue
            if assumption and assumed is not None:
                assumed.add(assumption, path.name)
            return root
        raise DataError(f"{shown(path)}: not XML: {error}") from None


def _decode_otherwise(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the text of a file that the parser refuses, as other programs write it, and what that assumes."""
    declared = _XML_ENCODING.match(data)
    encoding = declared[1].decode() if declared else "utf-8"
    try:
        # Encodings that only Python supports, such as gb2312.
        yield data.decode(encoding), ""
    except LookupError:
        return
    except ValueError:
        pass
    try:
        yield data.decode("utf-8-sig"), "XML files that declare another encoding, read as UTF-8"
    except UnicodeDecodeError:
        with suppress(UnicodeDecodeError):
            yield data.decode("cp1252"), "XML files that are not in their encoding, read as Windows-1252"


def find_label(name: str, categories: Categories, where: object) -> int:
    """Return the label of a class.

    Raises:
        DataError: If the label map does not have it.
    """
    category = categories.by_name(name)
    if category is None:
        known = ", ".join(item.name for item in categories)
        raise DataError(f"{where}: class {name!r} is not in the label map ({known})")
    return category.label


def find_labels(names: Iterable[str], categories: Categories, where: object) -> dict[str, int]:
    """Return the label of each class name that the categories have, by name or else display name.

    A name in another Unicode form than theirs is theirs too: macOS writes é as two characters.

    Raises:
        DataError: If there are names, and the categories have none of them.
    """
    wanted = sorted(set(names))
    same = {unicodedata.normalize("NFC", item.name): item for item in categories}
    matched = {name: categories.by_any_name(name) or same.get(unicodedata.normalize("NFC", name)) for name in wanted}
    labels = {name: item.label for name, item in matched.items() if item is not None}
    if wanted and not labels:
        known = _first_names([item.name for item in categories])
        raise DataError(
            f"{where}: none of the classes in the data ({_first_names(wanted)}) is in the label map ({known})"
        )
    return labels


def _first_names(names: Sequence[str], most: int = 10) -> str:
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown(name, _MOST_SHOWN) for name in names[:most]) + more


def inside(folder: Path, name: str, where: str, *, allow_outside: bool) -> Path:
    """Return the path of a file that an annotation names, below its folder.

    Symbolic links inside the folder are followed, wherever they point: they belong to the folder's owner.

    Args:
        allow_outside: Whether absolute names, and `..` beyond the folder, are accepted.

    Raises:
        DataError: For a name that points outside the folder, or is not a valid file name.
    """
    if "\0" in name:
        raise DataError(f"{where}: {shown(name)!r} is not a file name: it has a null byte")
    path = folder / name
    if not allow_outside and is_outside(path, folder):
        raise DataError(
            f"{where}: {shown(name)!r} lies outside {folder}; if that is intended, set "
            "allow_paths_outside in the reader, or pass it when opening the data"
        )
    return path


def is_outside(path: Path, folder: Path) -> bool:
    """Return whether a path leads out of a folder, whatever links there are."""
    # Compared as paths: as text, /data-old would begin like /data.
    return os.path.relpath(os.path.abspath(path), os.path.abspath(folder)).split(os.sep)[0] == os.pardir


def read_keypoints(value: object, count: int, where: str) -> NDArray[np.float64]:
    """Return the keypoints of an object, as COCO lists them, [count, 3]: x, y, and 1 where they have a place, else 0.

    Raises:
        DataError: If the value is not a list of x, y, v of so many keypoints.
    """
    if not isinstance(value, list) or len(value) != 3 * count:
        found = len(value) if isinstance(value, list) else str(value)[:60]
        raise DataError(f"{where}: expected x, y, v of {count} keypoints, found {found}")
    points = np.array([finite_number(number, where) for number in value]).reshape(-1, 3)
    # 1 is labeled but occluded, 2 visible: both have a place.
    return np.concatenate([points[:, :2], points[:, 2:] > 0], 1)
