"""A split of data that come without one: near-duplicates stay together, so that no picture is on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from boxwright.base.errors import DataError
from boxwright.data.dataset import Dataset
from boxwright.preflight.images import Fingerprints, near_groups, read_fingerprints
from boxwright.preflight.records import Progress

_SHARE, _MOST = 0.2, 5000


@dataclass(frozen=True)
class Split:
    """Which samples are for what, by number and file name.

    Attributes:
        train: For training.
        held_out: For evaluation.
        groups: Groups of two or more pictures that are nearly the same.
        unreadable: A line for each image that cannot be read; it is on neither side.
    """

    train: tuple[tuple[int, str], ...]
    held_out: tuple[tuple[int, str], ...]
    groups: int
    unreadable: tuple[str, ...]


def split_dataset(dataset: Dataset, progress: Progress | None = None) -> Split:
    """Split a data set: a fifth of the images, at most 5000, is held out.

    The same data give the same split.

    Returns:
        The split; both sides in the data's order.

    Raises:
        DataError: Where there are fewer than two pictures that differ.
    """
    indices = range(len(dataset))
    prints = read_fingerprints(dataset, progress("compare images", indices) if progress else indices)
    groups = near_groups(prints)
    held_out = choose_held_out(groups, prints)
    if not held_out or len(held_out) == len(prints.names):
        raise DataError(
            f"{dataset.name}: {len(prints.names)} images in {len(groups)} groups of nearly the same picture; "
            "there must be two that differ, to train on one and evaluate on the other"
        )
    rows = [(prints.indices[row], prints.names[row]) for row in range(len(prints.names))]
    return Split(
        tuple(row for number, row in enumerate(rows) if number not in held_out),
        tuple(row for number, row in enumerate(rows) if number in held_out),
        sum(len(group) > 1 for group in groups),
        prints.unreadable,
    )


def choose_held_out(groups: Sequence[Sequence[int]], prints: Fingerprints) -> set[int]:
    """Return the rows that are held out: whole groups, in an order that follows from the files' bytes alone.

    Args:
        groups: Rows of pictures that are nearly the same; each row is in one group.

    Returns:
        About a fifth of the rows, at least one group where there are two; never all.
    """
    total = sum(len(group) for group in groups)
    wanted = min(max(round(total * _SHARE), 1), _MOST)
    ordered: list[Sequence[int]] = sorted(groups, key=lambda group: min(prints.exact[row] for row in group))
    chosen: set[int] = set()
    for group in ordered:
        if len(chosen) >= wanted:
            break
        # A group that is larger than all that may be held out stays for training.
        if len(chosen) + len(group) <= max(wanted * 1.25, 1):
            chosen.update(group)
    if not chosen and len(ordered) > 1:
        smallest: Sequence[int] = min(ordered, key=len)
        chosen.update(smallest)
    return chosen
