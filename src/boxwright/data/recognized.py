"""Data of a known format, and which of their lists are for training and for evaluation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from boxwright.base.errors import DataError
from boxwright.data.sources import Source

TRAINING = ("trainval", "train", "training")
HELD_OUT = ("val", "valid", "validation", "eval", "test", "testing")


@dataclass(frozen=True)
class RecognizedData:
    """Data of a known format.

    Attributes:
        kind: The format's name.
        train: The source for training.
        held_out: The source for evaluation; None if the data have no split.
        lists: All sources by name, such as those of `ImageSets/Main`; empty if the data have no lists.
        label_map: The label map beside the data; None without one.
        notes: What the user should know, such as unused lists.
        folder: The folder in the path that holds the data; empty if that is the path itself.
    """

    kind: str
    train: Source
    held_out: Source | None = None
    lists: dict[str, Source] = field(default_factory=dict)
    label_map: Path | None = None
    notes: tuple[str, ...] = ()
    folder: str = ""


def unused_lists(lists: Sequence[str], train: str, held_out: str | None) -> tuple[str, ...]:
    """Return notes on unused lists: test lists are kept for a final evaluation, others are left to the user."""
    rest = [name for name in lists if name not in (train, held_out)]
    tests = [name for name in rest if "test" in words_of(name)]
    # VOC's train and val are parts of trainval.
    others = [name for name in rest if name not in tests and not (train == "trainval" and name in ("train", "val"))]
    notes = []
    if tests:
        notes.append(f"the list {' and '.join(tests)} is kept for a final evaluation")
    if others:
        notes.append(f"not used: {', '.join(others[:4])}{', …' if len(others) > 4 else ''}")
    return tuple(notes)


def _choose_lists(names: Sequence[str], path: str | Path) -> tuple[str, str | None]:
    """Return the lists for training and for evaluation, by their names.

    `trainval`, which includes val, is paired with `test`; without a test list, train is paired with val.
    """
    by_word = {word: [name for name in names if word in words_of(name)] for word in (*TRAINING, *HELD_OUT)}
    if by_word["trainval"] and (by_word["test"] or not (by_word["train"] and by_word["val"])):
        return by_word["trainval"][0], by_word["test"][0] if by_word["test"] else None
    train = next((by_word[word][0] for word in ("train", "training") if by_word[word]), None)
    if train is None and len(names) == 1:
        return names[0], None
    if train is None:
        raise DataError(f"{path}: which of {', '.join(names)} is for training? expected one named train")
    held_out = next((name for word in HELD_OUT for name in by_word[word] if name != train), None)
    return train, held_out


def recognize_lists(
    kind: str,
    names: Sequence[str],
    path: str | Path,
    source: Callable[[str], Source],
    label_map: Path | None = None,
) -> RecognizedData:
    """Return data that have lists, of which two are chosen by name."""
    train, held_out = _choose_lists(names, path)
    lists = {name: source(name) for name in names}
    notes = unused_lists(names, train, held_out)
    return RecognizedData(kind, lists[train], lists.get(held_out or ""), lists, label_map, notes)


def words_of(name: str) -> list[str]:
    """Return the words of a name: `instances_train2017` is instances and train."""
    return re.findall("[a-z]+", name.lower())
