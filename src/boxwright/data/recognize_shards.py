"""Which files are shards of pictures with their objects, and which of them belong together.

A WebDataset's archive differs from an archive of a folder by its first samples: a picture, and beside it an annotation
with `objects`. Parquet files say in their schema that they are such shards; others are Hugging Face's.
"""

from __future__ import annotations

import glob
import json
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from boxwright.base.errors import DataError, shortened
from boxwright.base.files import BoundedFile, is_file, is_folder, open_regular
from boxwright.base.limits import RECORD_BYTES
from boxwright.base.remote import (
    address_in,
    find_remote,
    find_remote_file,
    folder_of,
    is_listable,
    is_pattern,
    list_remote,
)
from boxwright.base.text import counted, without_secrets
from boxwright.data.layouts.content import containing_folder
from boxwright.data.parquet import open_parquet, states_boxes
from boxwright.data.picture_files import PICTURE_ENDINGS, is_left_over
from boxwright.data.recognized import HELD_OUT, TRAINING, RecognizedData, recognize_lists, words_of
from boxwright.data.sources import DataFormat, Source
from boxwright.data.web_dataset import TAR_DAMAGE
from boxwright.data.write_shards import LABEL_MAP

_ENDINGS: dict[DataFormat, tuple[str, ...]] = {"web_dataset": (".tar", ".tar.gz", ".tgz"), "parquet": (".parquet",)}
KINDS: dict[DataFormat, str] = {"web_dataset": "WebDataset", "parquet": "Parquet"}
_TRIED = 64  # members of an archive
_LARGEST = 16 << 20  # an annotation
_SET = re.compile(r"(?P<stem>.*)-[0-9]{5}-of-(?P<count>[0-9]{5})(?P<ending>\..*)")
_NUMBERED = re.compile(r"(?P<stem>.*?)[0-9]+(?P<ending>\..*)")


def recognize_shards(path: Path) -> RecognizedData | None:
    """Recognize shards of pictures with their objects: a folder of them, or one of them with its set.

    Raises:
        DataError: If there are shards of both formats.
    """
    if (found := shards_in(path)) is None:
        return None
    folder = glob.escape(str(containing_folder(path)))
    return _recognize_sets(*found, path, lambda pattern: os.path.join(folder, pattern))


def recognize_at_address(address: str) -> RecognizedData:
    """Recognize shards of pictures with their objects at the address of a folder, of one of them, or a pattern of them.

    Raises:
        DataError: If there is none, or shards of both formats; or as `list_remote`.
    """
    kind, folder, names = shards_at(address)
    if is_pattern(address):
        recognized = RecognizedData(KINDS[kind], Source(kind, address))
    else:
        recognized = _recognize_sets(kind, names, address, lambda pattern: address_in(folder, pattern))
    # Beside the shards, or above their folders.
    places = dict.fromkeys((folder_of(recognized.train.path), folder))
    maps = (find_remote_file(address_in(place, LABEL_MAP)) for place in places)
    label_map = next((file for file in maps if file is not None), None)
    return recognized if label_map is None else replace(recognized, label_map=label_map.local_copy())


def source_of_pattern(path: str) -> Source | None:
    """Return the shards that a path, glob or `name@count` on this machine names by its ending; None for other names."""
    return next((Source(kind, path) for kind, endings in _ENDINGS.items() if path.lower().endswith(endings)), None)


def _recognize_sets(
    kind: DataFormat, names: Sequence[str], where: str | Path, locate: Callable[[str], str]
) -> RecognizedData:
    """Return shards whose sets are lists; where no list is for training, all are one."""
    sets = patterns(names)
    endings = {f".{name.rpartition('/')[2].partition('.')[2]}" for name in names}
    unnamed = not any(set(words_of(name)) & {*TRAINING, *HELD_OUT} for name in sets)
    if len(sets) > 1 and unnamed and len(endings) == 1:
        sets = ["*/" * names[0].count("/") + f"*{endings.pop()}"]
    return recognize_lists(KINDS[kind], sets, where, lambda name: Source(kind, locate(name)))


def shards_in(path: Path) -> tuple[DataFormat, list[str]] | None:
    """Return the format and the names of the shards in a folder, or of one that is a path itself; None without any.

    Raises:
        DataError: If there are shards of both formats.
    """
    folder = path.parent if is_file(path) else path
    names = [path.name] if is_file(path) else os.listdir(path) if is_folder(path) else []
    by_format = _by_format(names)
    by_format = {kind: files for kind, found in by_format.items() if (files := _only_files(folder, found))}
    # The first of a set stands for all of it.
    first = {kind: names for kind, names in by_format.items() if _IS_SHARD[kind](folder / names[0])}
    return _only_format(first, str(path))


def shards_at(address: str) -> tuple[DataFormat, str, list[str]]:
    """Return the format, the folder's address and the names of the shards in it, or of those that are named themselves.

    Raises:
        DataError: If there is none, or shards of both formats; or as `list_remote`.
    """
    if _by_format([address]) or is_pattern(address) or not is_listable(address):
        folder = folder_of(address)
        names = [file.name for file in find_remote(address)]
    else:
        folder = address.rstrip("/")
        below = list(list_remote(folder))
        # Or train/a.tar and val/a.tar.
        names = next((some for depth in (0, 1) if _by_format(some := _at_depth(below, depth))), below)
    shown = shortened(without_secrets(address), 400)
    found = _only_format(_by_format(names), shown)
    if found is None:
        there = shortened(", ".join(sorted(names)[:8]) or "nothing", 400)
        raise DataError(f"{shown}: data at an address are shards, .tar of WebDataset or .parquet; found {there}")
    return found[0], folder, found[1]


def _only_files(folder: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if is_file(folder / name)]


def _at_depth(names: Iterable[str], depth: int) -> list[str]:
    return [name for name in names if name.count("/") == depth]


def _by_format(names: Iterable[str]) -> dict[DataFormat, list[str]]:
    """Return the names that have the ending of a format, sorted; without formats of which there is none."""
    usable = sorted(name for name in names if not is_left_over(name.rpartition("/")[2]))
    found = {kind: [name for name in usable if name.lower().endswith(endings)] for kind, endings in _ENDINGS.items()}
    return {kind: matching for kind, matching in found.items() if matching}


def _only_format(found: dict[DataFormat, list[str]], where: str) -> tuple[DataFormat, list[str]] | None:
    if len(found) > 1:
        parts = " and ".join(f"{counted(len(names), 'file')} of {KINDS[kind]}" for kind, names in found.items())
        raise DataError(f"{shortened(where, 400)}: {parts}; move each to a folder of its own, and name one of them")
    return next(iter(found.items()), None)


def patterns(names: Sequence[str]) -> list[str]:
    """Return the patterns of the sets that files belong to, by their numbers: `a-?????-of-00002.tar`, `a[0-9]*.tar`."""
    return list(dict.fromkeys(map(_pattern, names)))


def _pattern(name: str) -> str:
    if match := _SET.fullmatch(name):
        return f"{glob.escape(match['stem'])}-?????-of-{match['count']}{match['ending']}"
    match = _NUMBERED.fullmatch(name)
    return f"{glob.escape(match['stem'])}[0-9]*{match['ending']}" if match else glob.escape(name)


def _is_web_dataset(path: Path) -> bool:
    """Return whether an archive has a picture and an annotation with `objects` side by side, among its first files."""
    pictures, annotated = set[str](), set[str]()
    try:
        with open_regular(path) as file, tarfile.open(fileobj=BoundedFile(file), mode="r:*") as archive:  # type: ignore[call-overload]
            for member in islice(archive, _TRIED):
                if RECORD_BYTES.exceeded(member.size):
                    return False
                stem, dot, ending = member.name.rpartition("/")[2].partition(".")
                key = f"{member.name.rpartition('/')[0]}/{stem}"
                if f"{dot}{ending.lower()}" in PICTURE_ENDINGS:
                    pictures.add(key)
                elif ending.lower() == "json" and member.isreg() and member.size <= _LARGEST:
                    content = archive.extractfile(member)
                    annotation = json.loads(content.read()) if content is not None else None
                    if isinstance(annotation, dict) and "objects" in annotation:
                        annotated.add(key)
                if pictures & annotated:
                    return True
    except (*TAR_DAMAGE, zlib.error, lzma.LZMAError):
        return False  # whoever reads it says what is wrong with it
    return False


def _is_own_parquet(path: Path) -> bool:
    """Return whether a Parquet file says that it is a shard."""
    try:
        with open_regular(path) as file:
            return states_boxes(open_parquet(file, path).schema_arrow)
    except (DataError, OSError):
        return False  # whoever reads it says what is wrong with it


_IS_SHARD = {"web_dataset": _is_web_dataset, "parquet": _is_own_parquet}
