"""Splitting data that have no split: near-duplicates stay together, so that no image is on both sides."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from boxwright.base.errors import DataError
from boxwright.data.dataset import Dataset
from boxwright.training.preflight.images import Fingerprints, near_groups, read_fingerprints
from boxwright.training.preflight.records import Progress

_SHARE, _MOST = 0.2, 5000


@dataclass(frozen=True)
class Split:
    """The samples for training and for evaluation, by number and file name.

    Attributes:
        groups: The number of groups of two or more near-duplicates.
        unreadable: A line for each unreadable image, which is on neither side.
    """

    train: tuple[tuple[int, str], ...]
    held_out: tuple[tuple[int, str], ...]
    groups: int
    unreadable: tuple[str, ...]


def split_dataset(dataset: Dataset, progress: Progress | None = None, without: Collection[int] = ()) -> Split:
    """Return a deterministic split with a fifth of the images, at most 5000, held out; both sides in the data's order.

    Args:
        progress: Shows the images that are compared.
        without: Indices of samples that are on neither side.

    Raises:
        DataError: If there are fewer than two distinct images.
    """
    indices = [number for number in range(len(dataset)) if number not in without]
    prints = read_fingerprints(dataset, progress("compare images", indices) if progress else indices)
    groups = near_groups(prints, frames=True)
    held_out = choose_held_out(groups, prints)
    if not held_out:  # one video, or copies: parts of it are better than nothing to evaluate on
        groups = near_groups(prints)
        held_out = choose_held_out(groups, prints)
    if not held_out or len(held_out) == len(prints.names):
        raise DataError(
            f"{dataset.name}: {len(prints.names)} images in {len(groups)} groups of near-duplicates; at least two are "
            "needed, to train on one and evaluate on the other"
        )
    rows = [(prints.indices[row], prints.names[row]) for row in range(len(prints.names))]
    return Split(
        tuple(row for number, row in enumerate(rows) if number not in held_out),
        tuple(row for number, row in enumerate(rows) if number in held_out),
        sum(len(group) > 1 for group in groups),
        prints.unreadable,
    )


def choose_held_out(groups: Sequence[Sequence[int]], prints: Fingerprints) -> set[int]:
    """Return the held-out rows: whole groups, about a fifth of the rows, in an order that depends on file bytes only.

    Args:
        groups: Rows of near-duplicates; each row is in one group. Of two or more groups at least one is held out,
            never all.
    """
    total = sum(len(group) for group in groups)
    wanted = min(max(round(total * _SHARE), 1), _MOST)
    # By hashes of the files, which is as good as shuffled, and the same wherever the data lie.
    ordered: list[Sequence[int]] = sorted(groups, key=lambda group: min(prints.exact[row] for row in group))
    chosen: set[int] = set()
    for group in ordered:
        if len(chosen) >= wanted:
            break
        # A group larger than the whole held-out share stays in training.
        if len(chosen) + len(group) <= max(wanted * 1.25, 1):
            chosen.update(group)
    if not chosen and len(ordered) > 1:
        smallest: Sequence[int] = min(ordered, key=len)
        chosen.update(smallest)
    return chosen
