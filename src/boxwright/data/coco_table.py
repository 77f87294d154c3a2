"""What a COCO file holds, as text in one array: a fraction of the memory of Python's objects, which processes share.

The table of a large file is kept beside it (or in the cache folder, if that is read-only) after the first reading, and
is mapped into memory from then on. It holds JSON alone, and is made anew when the file's content changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import OutputError
from boxwright.base.files import (
    cache_folder,
    file_sha256,
    file_size,
    kept_places,
    make_folder,
    open_regular,
    open_whole,
    waiting_lock,
)
from boxwright.data.packed import PackedBytes, map_array
from boxwright.data.reading import Notices, ReasonCounts

Row = dict[str, Any]

# As long as the digest after it, so that arrays begin at whole words.
_MARK = b"boxwright COCO table 2\n".ljust(32)
# Smaller files are read in no time, and are not worth a file beside them.
KEPT_BYTES = 16 << 20
_WORD = 8
_CHUNK = 1 << 24


@dataclass(frozen=True, eq=False)
class PackedJson:
    """JSON values by index.

    Attributes:
        texts: What each is as a text.
    """

    texts: PackedBytes

    @classmethod
    def of(cls, values: Iterable[Any]) -> PackedJson:
        """Return values, packed."""
        # Surrogates that stand alone are escaped, and read back.
        return cls(PackedBytes.of(json.dumps(value, separators=(",", ":")).encode() for value in values))

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Any:
        return json.loads(self.texts[index])


@dataclass(frozen=True)
class CocoTable:
    """The content of a COCO file.

    Attributes:
        images: The row of each image.
        objects: The rows of each image's annotations, a list.
        left_out: int64 [images]: how many annotations of each image are of classes that have no label.
        categories: The rows of the categories.
        dense_pose: Whether some annotation has points of DensePose.
        track_ids: Whether all annotations have one.
        notices: What was assumed, and what was left out.
    """

    images: PackedJson
    objects: PackedJson
    left_out: NDArray[np.int64]
    categories: list[Row]
    dense_pose: bool
    track_ids: bool
    notices: Notices


def kept_table(path: Path, classes: str, build: Callable[[], CocoTable]) -> CocoTable:
    """Return the table of a COCO file: the one that was kept, if the file has not changed, else a new one.

    Args:
        classes: What it depends on besides the file: the names of the label map.
        build: Reads the file.
    """
    if file_size(path) < KEPT_BYTES:
        return build()
    digest = hashlib.sha256(f"{file_sha256(path)} {classes}".encode()).hexdigest()
    # Of each label map there is one; the last one of a file that changed is written over.
    places = kept_places(path, f".{hashlib.sha256(classes.encode()).hexdigest()[:8]}.table")
    if (table := _find(places, digest)) is not None:
        return table
    with ExitStack() as held:
        # Of the processes that open a file at once, one reads it, and the others wait. Where nothing can be written,
        # each reads it by itself.
        with suppress(OSError, OutputError):
            held.enter_context(waiting_lock(make_folder(cache_folder()) / f".{digest[:24]}.lock"))
        return _find(places, digest) or _make(places, digest, build)


def _find(places: Sequence[Path], digest: str) -> CocoTable | None:
    return next((table for place in places if (table := _stored(place, digest)) is not None), None)


def _make(places: Sequence[Path], digest: str, build: Callable[[], CocoTable]) -> CocoTable:
    """Read the file, and return its table as it is kept."""
    table = build()
    for place in places:
        with suppress(OSError, OutputError):  # a read-only folder: use the cache, or read the file again next time
            place.parent.mkdir(parents=True, exist_ok=True)
            _store(place, digest, table)
            return _stored(place, digest) or table
    return table


# Of each array, how it is found in a table, and its type.
_ARRAYS: tuple[tuple[Callable[[CocoTable], NDArray[Any]], str], ...] = (
    (lambda table: table.images.texts.ends, "<i8"),
    (lambda table: table.objects.texts.ends, "<i8"),
    (lambda table: table.left_out, "<i8"),
    (lambda table: table.images.texts.text, "|u1"),
    (lambda table: table.objects.texts.text, "|u1"),
)


def _store(place: Path, source: str, table: CocoTable) -> None:
    """Write a table: its mark and a digest of the rest, a header of JSON, and the arrays, each from a whole word on."""
    arrays = [np.ascontiguousarray(find(table), kind) for find, kind in _ARRAYS]
    notices = table.notices
    header = {
        "source": source,
        "lengths": [len(array) for array in arrays],
        "categories": table.categories,
        "dense_pose": table.dense_pose,
        "track_ids": table.track_ids,
        "notices": [_list_counts(counts) for counts in (notices.assumed, notices.boxes, notices.files)],
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _WORD)
    pieces = [np.array([len(text)], "<i8").tobytes(), text]
    digest = hashlib.sha256(b"".join(pieces))
    for array in arrays:
        digest.update(_padded(array))
    with open_whole(place) as file:
        file.write(_MARK + digest.digest() + b"".join(pieces))
        for array in arrays:
            file.write(_padded(array))


def _list_counts(counts: ReasonCounts) -> list[tuple[str, str, int]]:
    return [(reason, counts.examples[reason], times) for reason, times in counts.counts.items()]


def _read_counts(rows: list[tuple[str, str, int]]) -> ReasonCounts:
    counts = ReasonCounts()
    for row in rows:
        counts.add(*row)
    return counts


def _padded(array: NDArray[Any]) -> bytes:
    data = array.tobytes()
    return data + bytes(-len(data) % _WORD)


def _stored(place: Path, source: str) -> CocoTable | None:
    """Return a table that was kept; None if there is none, it is damaged, or is of another content."""
    start = len(_MARK) + hashlib.sha256().digest_size
    try:
        with open_regular(place) as file:
            head, digest = file.read(start), hashlib.sha256()
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return None
    if head[: len(_MARK)] != _MARK or head[len(_MARK) :] != digest.digest():
        return None
    content = np.memmap(place, np.uint8, "r")
    size = int(content[start : start + _WORD].view("<i8")[0])
    header = json.loads(content[start + _WORD : start + _WORD + size].tobytes())
    if header["source"] != source:
        return None
    arrays, at = [], start + _WORD + size
    for length, (_, kind) in zip(header["lengths"], _ARRAYS, strict=True):
        arrays.append(map_array(place, kind, at, length))
        count = length * np.dtype(kind).itemsize
        at += count + -count % _WORD
    image_ends, object_ends, left_out, image_text, object_text = arrays
    return CocoTable(
        images=PackedJson(PackedBytes(image_text, image_ends)),
        objects=PackedJson(PackedBytes(object_text, object_ends)),
        left_out=left_out,
        categories=header["categories"],
        dense_pose=header["dense_pose"],
        track_ids=header["track_ids"],
        notices=Notices(*map(_read_counts, header["notices"])),
    )
