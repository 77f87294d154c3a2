"""Checks of image files: unreadable, rotated and duplicate images."""

from __future__ import annotations

import hashlib
import io
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import imagehash
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from boxwright.base.errors import DataError, pass_shortage
from boxwright.base.text import counted, visible_line
from boxwright.data.dataset import Dataset
from boxwright.data.image_io import FORMATS
from boxwright.data.listed import ListedDataset
from boxwright.data.picture_dataset import PictureDataset
from boxwright.training.preflight.records import Finding, Record, some
from boxwright.types.pixels import WIDE_MODES

# Images are near-duplicates if both 256-bit hashes differ in fewer bits than this: those of unrelated images differ in
# about 128, those of copies in other sizes or qualities in under 30.
_NEAR = {"dhash": 24, "phash": 40}
# Frames of a video differ more: in fewer bits than this by hash, where unrelated photographs differ in 100 to 155.
_ALIKE = {"dhash": 96, "phash": 96}
_NUMBERED = re.compile(r"(.*?)(\d{1,12})(\D*)", re.DOTALL)
_ROBOFLOW = re.compile(r"_[a-z]{3,4}\.rf\.[0-9a-f]+$")
_SIDE = 16
# The hashes look at 64 × 64 pixels at most; JPEG decoders return a half to an eighth of the size much faster.
_SMALL = (128, 128)
# EXIF's tag; its values are 1 to 8, and 1 is upright.
_ORIENTATION = 0x0112
# Rows of the table of pairs at a time: the whole table of 10,000 images would take 400 MB in float32.
_BLOCK = 512
_MOST_PAIRS, _SHOWN = 1000, 20


@dataclass(frozen=True)
class Fingerprints:
    """Digests of images, with one row per readable image.

    Attributes:
        exact: A digest of each file's bytes.
        hashes: Perceptual hashes by name, packed bits, uint8 [images, 32].
        turned: Names of images whose EXIF orientation rotates or mirrors them.
    """

    names: tuple[str, ...]
    exact: tuple[bytes, ...]
    hashes: dict[str, NDArray[np.uint8]]
    turned: tuple[str, ...]
    unreadable: tuple[str, ...]
    indices: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Digests of one image, which `Fingerprints` has of many."""

    index: int
    name: str
    exact: bytes
    hashes: Mapping[str, NDArray[np.uint8]]
    turned: bool


def read_fingerprint(dataset: Dataset, index: int) -> Fingerprint:
    """Return the fingerprint of an image file; a JPEG is decoded at a fraction of its size.

    Raises:
        DataError: If it cannot be read.
    """
    data, name = dataset.encoded(index)
    try:
        small, orientation = _thumbnail(data)
    except Exception as error:  # noqa: BLE001  # Pillow's plugins raise whatever their parsing meets
        pass_shortage(error, name or str(index))
        raise DataError(f"{name or index}: {str(error) or type(error).__name__}") from None
    # For equality alone; faster than SHA-256.
    exact = hashlib.blake2b(data, digest_size=16).digest()
    hashes = {"dhash": _packed(imagehash.dhash(small, _SIDE)), "phash": _packed(imagehash.phash(small, _SIDE))}
    return Fingerprint(index, name or str(index), exact, hashes, orientation != 1)


def read_fingerprints(dataset: Dataset, indices: Iterable[int]) -> Fingerprints:
    """Return the fingerprints of image files."""
    prints, unreadable = [], []
    for index in indices:
        try:
            prints.append(read_fingerprint(dataset, index))
        except DataError as error:
            unreadable.append(str(error))
    return join_fingerprints(prints, unreadable)


def join_fingerprints(fingerprints: Sequence[Fingerprint], unreadable: Sequence[str] = ()) -> Fingerprints:
    """Return the fingerprints of several images as one table; `unreadable` has a line for each that has none."""
    rows = {
        kind: np.array([image.hashes[kind] for image in fingerprints], np.uint8).reshape(-1, _SIDE * _SIDE // 8)
        for kind in _NEAR
    }
    return Fingerprints(
        names=tuple(image.name for image in fingerprints),
        exact=tuple(image.exact for image in fingerprints),
        hashes=rows,
        turned=tuple(image.name for image in fingerprints if image.turned),
        unreadable=tuple(unreadable),
        indices=tuple(image.index for image in fingerprints),
    )


def _thumbnail(data: bytes) -> tuple[Image.Image, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on odd EXIF data and sizes; readers have their own limits
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            image.draft("L", _SMALL)
            orientation = image.getexif().get(_ORIENTATION, 1)
            readable = Image.fromarray(_stretched(np.asarray(image))) if image.mode in WIDE_MODES else image
            return readable.convert("L"), orientation if orientation in range(1, 9) else 1


def _stretched(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return values as uint8 from black to white: images are compared, whatever their scale."""
    finite = np.nan_to_num(values.astype(np.float64))
    least, largest = finite.min(), finite.max()
    return np.asarray((finite - least) * (255 / max(largest - least, 1e-12)), np.uint8)


def _packed(image_hash: Any) -> NDArray[np.uint8]:
    return np.packbits(image_hash.hash.reshape(-1))


def near_groups(prints: Fingerprints, *, frames: bool = False) -> list[list[int]]:
    """Return the rows of images in groups of near-duplicates; a unique image is a group of one.

    Args:
        prints: Of all images.
        frames: Whether frames of one video belong together, too: images with consecutive numbers that look
            more alike than unrelated ones ever do.
    """
    group = list(range(len(prints.names)))

    def root(row: int) -> int:
        while group[row] != row:
            group[row] = group[group[row]]
            row = group[row]
        return row

    for start, near in _near_blocks(prints):
        for row, column in np.argwhere(near).tolist():
            # The earlier image names the group, so that groups do not depend on the order of pairs.
            first, second = sorted((root(row + start), root(column)))
            group[second] = first
    for row, column in _frames(prints) if frames else ():
        first, second = sorted((root(row), root(column)))
        group[second] = first
    members: dict[int, list[int]] = {}
    for row in range(len(group)):
        members.setdefault(root(row), []).append(row)
    return list(members.values())


def _frames(prints: Fingerprints) -> Iterator[tuple[int, int]]:
    """Yield the rows of consecutive frames of a video, by their names and looks."""
    numbered: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row, name in enumerate(prints.names):
        # Roboflow's exports add the ending and a digest to a name: clip-12_jpg.rf.0a1b.jpg.
        stem = _ROBOFLOW.sub("", name.rpartition(".")[0] or name)
        if (match := _NUMBERED.fullmatch(stem)) is not None:
            numbered.setdefault((match[1], match[3]), []).append((int(match[2]), row))
    for rows in numbered.values():
        ordered = [row for _, row in sorted(rows)]
        for first, second in itertools.pairwise(ordered):
            if all(_distance(prints.hashes[name], first, second) < most for name, most in _ALIKE.items()):
                yield first, second


def _distance(packed: NDArray[np.uint8], first: int, second: int) -> int:
    return int(np.unpackbits(packed[first] ^ packed[second]).sum())


def near_pairs(first: Fingerprints, second: Fingerprints) -> list[tuple[int, int]]:
    """Return all pairs of rows of near-duplicates in two data sets."""
    return [
        (int(row) + start, int(column))
        for start, near in _near_blocks(first, second)
        for row, column in np.argwhere(near)
    ]


def _pairs(first: Fingerprints, second: Fingerprints | None = None) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of pairs of near-duplicates in two data sets, or in one, and some of the pairs."""
    count = 0
    pairs: list[tuple[int, int]] = []
    for start, near in _near_blocks(first, second):
        count += int(near.sum())
        if len(pairs) < _MOST_PAIRS:
            pairs += [(int(row) + start, int(column)) for row, column in np.argwhere(near)[:_MOST_PAIRS]]
    return count, pairs


def _near_blocks(first: Fingerprints, second: Fingerprints | None = None) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Yield the table of near-duplicates in blocks of rows, with their first row; one data set's pairs occur once."""
    other = second or first
    columns = np.arange(len(other.names))
    bits = {name: _unpacked(other.hashes[name]) for name in _NEAR}
    for start in range(0, len(first.names), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(first.names)))
        near = np.ones((len(rows), len(columns)), np.bool_) if second else columns[None] > rows[:, None]
        for name, most in _NEAR.items():
            ones = _unpacked(first.hashes[name][rows])
            # Hamming distances by a matrix product, for speed; exact in float32.
            different = ones.sum(1)[:, None] + bits[name].sum(1) - 2 * (ones @ bits[name].T)
            near &= different < most
        yield start, near


def _unpacked(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.unpackbits(packed, axis=1).astype(np.float32)


def check_readable(unreadable: Sequence[str], total: int, what: str) -> Iterable[Finding]:
    """Yield the unreadable ones of `total` samples of `what`."""
    if unreadable:
        yield Finding(
            "readable",
            "fatal",
            f"{len(unreadable)} of {total} samples of {what} cannot be read: {some(list(unreadable))}",
            "replace or remove them; --skip_bad_records trains on the rest",
        )
    else:
        yield Finding("readable", "fine", f"{total} samples of {what} can be read")


# Of 255: pictures whose brightest pixel, or whose mean, is below are read by a wrong scale, or useless.
_BRIGHT, _MEAN = 64, 4


def check_levels(records: Sequence[Record], what: str) -> Iterable[Finding]:
    """Yield the ends of the histogram of all pixels."""
    if not records:
        return
    darkest, brightest = min(record.levels[0] for record in records), max(record.levels[1] for record in records)
    mean = sum(record.levels[2] for record in records) / len(records)
    ends = f"pixels of {what} are {darkest:.0f} to {brightest:.0f} of 0..255, {mean:.1f} on average"
    if brightest < _BRIGHT or mean < _MEAN:
        yield Finding(
            "pixels",
            "warning",
            f"{ends}: nearly black, as where values of 12 bits are read as 16, or floats in 0..1 became integers",
            "state the value that is white: train_input_reader.white_level; boxwright inspect draws the pictures",
        )
    else:
        yield Finding("pixels", "fine", ends)


def check_stored(prints: Fingerprints, dataset: Dataset) -> Iterable[Finding]:
    """Yield the images of TFRecords that viewers show turned: they are read as stored, as TensorFlow reads them."""
    whole = dataset.whole if isinstance(dataset, ListedDataset) else dataset
    if prints.turned and not isinstance(whole, PictureDataset):
        yield Finding(
            "orientation",
            "warning",
            f"the EXIF orientation of {len(prints.turned)} of {len(prints.names)} images turns or mirrors them "
            f"({some(prints.turned)}); the records are read as stored, as TensorFlow reads them",
            "check that their boxes match the objects (boxwright inspect); otherwise write the records again from "
            "pictures and annotations with boxwright convert, which turns the pixels",
        )


@dataclass(frozen=True)
class Duplicates:
    """Images of one data set that are nearly the same.

    Attributes:
        count: How many pairs of images are.
        exact: How many pairs are the same to the byte.
        pairs: Rows of some pairs.
        groups: Rows of the images that are linked by pairs, of two or more.
    """

    count: int
    exact: int
    pairs: Sequence[tuple[int, int]]
    groups: Sequence[Sequence[int]]


def find_duplicates(prints: Fingerprints) -> Duplicates:
    """Return the images of a data set that are nearly the same, for `doctor` and the pages on data and evaluations."""
    count, pairs = _pairs(prints)
    exact = sum(times * (times - 1) // 2 for times in Counter(prints.exact).values())
    groups = [group for group in near_groups(prints) if len(group) > 1] if count else []
    return Duplicates(count, exact, pairs, groups)


def check_duplicates(prints: Fingerprints, what: str) -> Iterable[Finding]:
    """Yield duplicate images in `what`."""
    duplicates = find_duplicates(prints)
    count, exact, pairs = duplicates.count, duplicates.exact, duplicates.pairs
    if not count:
        yield Finding("duplicates", "fine", f"{len(prints.names)} images of {what} differ")
        return
    same = [prints.exact[a] == prints.exact[b] for a, b in pairs]
    ordered = sorted(zip(same, pairs, strict=True), key=lambda row: not row[0])
    named = [f"{prints.names[a]} {'=' if is_same else '≈'} {prints.names[b]}" for is_same, (a, b) in ordered]
    yield Finding(
        "duplicates",
        "warning",
        f"{counted(count, 'pair')} of images of {what} are the same, {exact} to the byte: {_first(named, count)}",
        "remove one of each pair; if their annotations differ, one of the two is wrong",
    )


def check_leak(training: Fingerprints, evaluation: Fingerprints) -> Iterable[Finding]:
    """Yield images that are in both the training and the evaluation data."""
    count, pairs = _pairs(training, evaluation)
    if count:
        named = [f"{training.names[a]} and {evaluation.names[b]}" for a, b in pairs]
        yield Finding(
            "leak",
            "warning",
            f"{counted(count, 'pair')} of images are the same in training and evaluation data: {_first(named, count)}",
            "remove them from one: metrics on them say nothing about new images",
        )
    else:
        yield Finding("leak", "fine", "training and evaluation data share no image")


def _first(named: Sequence[str], count: int) -> str:
    return visible_line(", ".join(named[:_SHOWN])) + (f" and {count - _SHOWN} more" if count > _SHOWN else "")
