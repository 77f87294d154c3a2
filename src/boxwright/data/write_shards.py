"""Writing data as shards: files that each hold many samples, with the label map beside them.

On this machine all shards of a set appear together. At an address (s3://, gs://) each is written here, copied and
removed, so that the disk holds one at a time; the last of the set is there only when all are.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, make_folder, open_whole
from boxwright.base.outputs import is_output_address, require_output_address
from boxwright.base.remote import address_in, folder_of, list_remote, remove_remote, upload
from boxwright.base.text import without_secrets
from boxwright.data.dataset import Dataset
from boxwright.data.label_map import load_label_map, write_label_map
from boxwright.types import Categories

Progress = Callable[[Iterable[int]], Iterable[int]]
# Writes the samples of some indices to a file.
WriteShard = Callable[[BinaryIO, Iterator[int]], object]
LABEL_MAP = "label_map.pbtxt"


def write_shards(dataset: Dataset, names: Sequence[str], write: WriteShard, *, progress: Progress = iter) -> list[str]:
    """Write a data set as files of about equal numbers of samples, with its label map as `label_map.pbtxt` beside them.

    Args:
        names: The files' paths or addresses, in one folder.
        progress: Wraps the indices, for a progress bar.

    Returns:
        The names.

    Raises:
        DataError: If the folder already has a label map of other classes.
        OutputError: If the disk is full or the folder is not writable, where existing files stay; or if a file does not
            arrive at an address, where the set lacks its last file then.
    """
    bounds = [len(dataset) * number // len(names) for number in range(len(names) + 1)]
    indices = iter(progress(range(len(dataset))))
    parts = [itertools.islice(indices, stop - start) for start, stop in itertools.pairwise(bounds)]
    if is_output_address(names[0]):
        _write_at_address(dataset.categories, names, parts, write)
    else:
        _write_here(dataset.categories, names, parts, write)
    for _ in indices:  # lets a progress bar finish
        pass
    return list(names)


def _write_here(
    categories: Categories, names: Sequence[str], parts: Sequence[Iterator[int]], write: WriteShard
) -> None:
    folder = make_folder(Path(names[0]).parent)
    check_label_map(categories, folder / LABEL_MAP)
    with ExitStack() as whole:  # all shards appear together, so that none mixes with an earlier conversion
        for name, part in zip(names, parts, strict=True):
            file = whole.enter_context(open_whole(name))
            write(file, part)
            file.flush()  # a full disk shows here, before any shard has its name
        write_label_map_once(categories, folder / LABEL_MAP)


def _write_at_address(
    categories: Categories, names: Sequence[str], parts: Sequence[Iterator[int]], write: WriteShard
) -> None:
    for name in names:
        require_output_address(name, "target")
    folder = folder_of(names[0])
    label_map = address_in(folder, LABEL_MAP)
    existing = list_remote(folder).get(LABEL_MAP)
    if existing is not None:
        _check_classes(categories, existing.local_copy(), without_secrets(label_map))
    if len(names) > 1:  # a set without its last file is refused by readers: it must not mix two conversions unnoticed
        remove_remote(names[-1])
    with tempfile.TemporaryDirectory(prefix="boxwright-") as scratch:
        local = Path(scratch, "shard")
        if existing is None:
            write_label_map(categories, local)
            upload(local, label_map)
        for name, part in zip(names, parts, strict=True):
            with open_whole(local) as file:
                write(file, part)
            upload(local, name)


def shard_names(target: str | Path, count: int, *, before_suffix: bool) -> list[str]:
    """Return the names of a set of files: the target's own for one, else with `-00000-of-00003` and so on.

    Args:
        before_suffix: Whether the numbers stand before the ending, as in `a-00000-of-00003.tar`, or behind it.
    """
    text = str(target)
    if count == 1:
        return [text]
    suffix = Path(text).suffix if before_suffix else ""
    stem = text.removesuffix(suffix)
    return [f"{stem}-{number:05d}-of-{count:05d}{suffix}" for number in range(count)]


def check_label_map(categories: Categories, path: Path) -> None:
    """Raise a DataError if there is a label map of other classes: data beside it would change meaning."""
    if is_file(path):
        _check_classes(categories, path, str(path))


def write_label_map_once(categories: Categories, path: Path) -> None:
    """Write a label map unless the same one exists; raise a DataError if one of other classes does."""
    check_label_map(categories, path)
    if not is_file(path):
        write_label_map(categories, path)


def _check_classes(categories: Categories, path: Path, shown: str) -> None:
    existing = [(item.id, item.name) for item in load_label_map(path)]
    if existing != [(item.label + 1, item.name) for item in categories]:
        raise DataError(
            f"{shown} already exists and has other classes; pass it as label_map, or write to another folder"
        )
