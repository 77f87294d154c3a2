"""Which sample comes when: a function of seed and position alone.

A stream of samples resumes where a run stopped, and is the same whatever the number of processes and
workers, as nothing in it depends on what was drawn before except through counts that can be redone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError

# (epoch, index of the sample): what happens to a sample follows from the two and the seed.
Key = tuple[int, int]
_BLOCK = 4096
# Keeps the draws among sources apart from the order of samples.
_SOURCES = 0x736F7572


@dataclass(frozen=True)
class StreamSettings:
    """How samples become a stream.

    Attributes:
        batch_size: Samples a batch, over all processes.
        seed: Decides order and augmentation.
        shuffle: Whether each epoch has an order of its own.
        every_nth: Only every nth sample is used.
        num_epochs: How often the data is gone through; 0 for without end.
        workers: Processes that prepare samples; 0 for none beside this one.
        source_weights: How often each source is drawn from, relative to the others; empty to go through
            all sources as one.
        group: Whether batches are of upright or of wide images, as far as an epoch allows.
        skip_bad: Whether a sample that cannot be read is replaced by the next one.
    """

    batch_size: int
    seed: int = 0
    shuffle: bool = True
    every_nth: int = 1
    num_epochs: int = 0
    workers: int = 1
    source_weights: tuple[float, ...] = ()
    group: bool = False
    skip_bad: bool = False


def sample_keys(
    sizes: Sequence[int], settings: StreamSettings, start: int = 0, wide: NDArray[np.bool_] | None = None
) -> Iterator[Key]:
    """Yield which sample comes when.

    Args:
        sizes: How many samples each source has; their indices follow one another.
        start: How many samples have come before.
        wide: bool [samples]: which images are wider than high; needed to group.

    Returns:
        An iterator of (epoch, index); without end, unless `num_epochs` is set.

    Raises:
        ConfigError: Where there is not one weight a source.
    """
    if not settings.source_weights:
        indices = np.arange(0, sum(sizes), settings.every_nth)
        return _one_source(indices, settings, start, 0, wide)
    if len(settings.source_weights) != len(sizes):
        raise ConfigError(
            f"sample_from_datasets_weights: {len(settings.source_weights)} weights for {len(sizes)} sources"
        )
    return _mixed(sizes, settings, start)


def _one_source(
    indices: NDArray[np.int64], settings: StreamSettings, start: int, first: int, wide: NDArray[np.bool_] | None
) -> Iterator[Key]:
    """Go through indices epoch after epoch; `first` is where they begin among all sources."""
    begin, skip = divmod(start, len(indices))
    for epoch in count(begin):
        if settings.num_epochs and epoch >= settings.num_epochs:
            return
        order = indices
        if settings.shuffle:
            entropy = [settings.seed, epoch, first] if first else [settings.seed, epoch]
            order = np.random.default_rng(entropy).permutation(indices)
        if settings.group and wide is not None:
            order = _grouped(order, wide[order], settings.batch_size, -epoch * len(indices) % settings.batch_size)
        for index in order[skip:].tolist():
            yield epoch, index
        skip = 0


def _grouped(order: NDArray[np.int64], wide: NDArray[np.bool_], size: int, offset: int) -> NDArray[np.int64]:
    """Bring an epoch's samples into batches of one kind, as they come.

    The first `offset` belong to the batch that the epoch before began, and stay as they are. What is
    left over of both kinds at the end stands together.
    """
    head, order, wide = order[:offset], order[offset:], wide[offset:]
    kinds = [order[wide], order[~wide]]
    # A batch is due when its last sample comes.
    places = [np.flatnonzero(wide), np.flatnonzero(~wide)]
    due = [
        (int(place[end - 1]), kind[end - size : end])
        for kind, place in zip(kinds, places, strict=True)
        for end in range(size, len(kind) + 1, size)
    ]
    rest = [kind[len(kind) - len(kind) % size :] for kind in kinds]
    return np.concatenate([head, *(batch for _, batch in sorted(due, key=lambda item: item[0])), *rest])


def _mixed(sizes: Sequence[int], settings: StreamSettings, start: int) -> Iterator[Key]:
    """Draw a source for each position, and take the next sample of that source's own stream.

    A source that is at its end is passed over, as in TF; a stream that ends is gone through from its start.
    """
    weights = np.asarray(settings.source_weights, np.float64)
    weights = weights / weights.sum()
    if settings.num_epochs:
        yield from islice(_drawn_keys(sizes, settings, weights, 0), start, None)
    else:
        yield from _drawn_keys(sizes, settings, weights, start)


def _drawn_keys(
    sizes: Sequence[int], settings: StreamSettings, weights: NDArray[np.float64], start: int
) -> Iterator[Key]:
    whole, within = divmod(start, _BLOCK)
    taken = np.bincount(_drawn(settings.seed, whole, weights)[:within], minlength=len(sizes))
    for block in range(whole):
        taken += np.bincount(_drawn(settings.seed, block, weights), minlength=len(sizes))
    firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).tolist()
    streams: dict[int, Iterator[Key]] = {
        number: _one_source(first + np.arange(0, size, settings.every_nth), settings, int(done), first, None)
        for number, (first, size, done) in enumerate(zip(firsts, sizes, taken, strict=True))
        if weights[number] > 0
    }
    for block in count(whole):
        for source in islice(_drawn(settings.seed, block, weights).tolist(), within if block == whole else 0, None):
            key = next(streams[source], None) if source in streams else None
            if key is not None:
                yield key
            elif source in streams:
                del streams[source]
                if not streams:
                    return


def _drawn(seed: int, block: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.random.default_rng([seed, block, _SOURCES]).choice(len(weights), _BLOCK, p=weights)
