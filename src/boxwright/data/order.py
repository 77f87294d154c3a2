"""The order of samples: a function of seed and position alone.

A stream of samples resumes where a run stopped, and is the same for any number of processes and workers, as it depends
on earlier draws only through counts that can be recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError

# (epoch, sample index): with the seed, these determine what augmentation draws for a sample.
Key = tuple[int, int]
# Draws of sources are seeded in blocks of this size, so that a stream can start in any of them.
_BLOCK = 4096
# Separates the random draws of sources from those of the order.
_SOURCES = 0x736F7572


class SamplePosition(NamedTuple):
    """A sample's place in a run: its key, and the training step, from 0, which learns from it."""

    epoch: int
    sample: int
    step: int = 0


@dataclass(frozen=True)
class Interleaving:
    """How samples are shuffled that are read in sequence: TF's order, which needs a few files and blocks at a time.

    The files of an epoch, in random order, are read by groups: some records of each in turn. Each part of this sequence
    is shuffled by itself.

    Attributes:
        buffer: Records that are shuffled among each other.
        files: How many are read in turn.
        block: Records that are taken from one before the next.
    """

    buffer: int = 2048
    files: int = 64
    block: int = 32


@dataclass(frozen=True)
class StreamSettings:
    """How samples become a stream.

    Attributes:
        batch_size: Samples per batch, over all processes.
        seed: Determines order and augmentation.
        shuffle: Whether each epoch has its own random order.
        num_epochs: How many epochs the stream has; 0 for an endless stream.
        workers: Processes that prepare samples; 0 to prepare them in this one.
        source_weights: Relative rates at which sources are sampled; empty to concatenate the sources.
        group: Whether to batch upright and wide images separately, as far as an epoch allows.
        skip_bad: Whether a sample that cannot be read is replaced by the next one.
        interleaving: How samples are shuffled that are read in sequence.
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
    interleaving: Interleaving = Interleaving()


def sample_keys(
    sizes: Sequence[int],
    settings: StreamSettings,
    start: int = 0,
    wide: NDArray[np.bool_] | None = None,
    shards: Sequence[Sequence[int]] = (),
) -> Iterator[Key]:
    """Return an iterator of (epoch, index), endless unless `num_epochs` is set.

    Args:
        sizes: The number of samples of each source; indices count through the sources.
        wide: bool [samples]: which images are wider than high; required to group.
        shards: By source, the number of samples of each file, if they are read in sequence.

    Raises:
        ConfigError: If there is not one weight per source.
    """
    if not settings.source_weights:
        indices = np.arange(0, sum(sizes), settings.every_nth)
        return _one_source(_Source(0, indices, tuple(chain(*shards))), settings, start, wide)
    if len(settings.source_weights) != len(sizes):
        raise ConfigError(
            f"sample_from_datasets_weights: {len(settings.source_weights)} weights for {len(sizes)} sources"
        )
    return _mixed(sizes, settings, start, shards)


@dataclass(frozen=True)
class _Source:
    """A source of samples.

    Attributes:
        first: The index of its first sample, in which all sources count.
        indices: int64 [N]: those of its samples that are used, in their order.
        shards: The number of samples of each of its files, if they are read in sequence; else empty.
    """

    first: int
    indices: NDArray[np.int64]
    shards: tuple[int, ...]

    def shuffled(self, entropy: Sequence[int], how: Interleaving) -> NDArray[np.int64]:
        """Return the indices in a random order."""
        rng = np.random.default_rng(entropy)
        return _interleaved(self, rng, how) if self.shards else rng.permutation(self.indices)


def _interleaved(source: _Source, rng: np.random.Generator, how: Interleaving) -> NDArray[np.int64]:
    """Return a source's indices in the order in which `Interleaving` reads and shuffles them."""
    ends = source.first + np.cumsum(source.shards)
    parts = np.split(source.indices, np.searchsorted(source.indices, ends[:-1]))
    files = [parts[number] for number in rng.permutation(len(parts)).tolist()]
    order = np.empty_like(source.indices)
    filled = 0
    for start in range(0, len(files), how.files):
        group = files[start : start + how.files]
        # A record's turn, and among those of one turn its file: the first records of all, then the next of all.
        turns = np.concatenate([np.arange(len(part)) // how.block for part in group])
        records = np.concatenate(group)[np.argsort(turns, kind="stable")]
        order[filled : filled + len(records)] = records
        filled += len(records)
    for start in range(0, len(order), how.buffer):
        rng.shuffle(order[start : start + how.buffer])
    return order


def _one_source(source: _Source, settings: StreamSettings, start: int, wide: NDArray[np.bool_] | None) -> Iterator[Key]:
    """Yield the keys of one source, epoch after epoch."""
    indices, first = source.indices, source.first
    begin, skip = divmod(start, len(indices))
    for epoch in count(begin):
        if settings.num_epochs and epoch >= settings.num_epochs:
            return
        order = indices
        if settings.shuffle:
            # The first source has the order that it has alone; the others must not share it.
            entropy = [settings.seed, epoch, first] if first else [settings.seed, epoch]
            order = source.shuffled(entropy, settings.interleaving)
        if settings.group and wide is not None:
            order = _grouped(order, wide[order], settings.batch_size, -epoch * len(indices) % settings.batch_size)
        # Python's numbers take four times an array's memory: a part of the epoch at a time.
        for at in range(skip, len(order), _BLOCK):
            for index in order[at : at + _BLOCK].tolist():
                yield epoch, index
        skip = 0


def _grouped(order: NDArray[np.int64], wide: NDArray[np.bool_], size: int, offset: int) -> NDArray[np.int64]:
    """Return an epoch's samples reordered into batches of one orientation, by completion of each batch.

    The first `offset` samples complete the previous epoch's last batch and keep their place. The leftovers of both
    orientations come last.
    """
    head, order, wide = order[:offset], order[offset:], wide[offset:]
    kinds = [order[wide], order[~wide]]
    # A batch is due when its last sample is.
    places = [np.flatnonzero(wide), np.flatnonzero(~wide)]
    due = [
        (int(place[end - 1]), kind[end - size : end])
        for kind, place in zip(kinds, places, strict=True)
        for end in range(size, len(kind) + 1, size)
    ]
    rest = [kind[len(kind) - len(kind) % size :] for kind in kinds]
    return np.concatenate([head, *(batch for _, batch in sorted(due, key=lambda item: item[0])), *rest])


def _mixed(
    sizes: Sequence[int], settings: StreamSettings, start: int, shards: Sequence[Sequence[int]]
) -> Iterator[Key]:
    """Draw a source for each position, and take the next sample of that source's own stream.

    A source that is exhausted is skipped, as in TF.
    """
    weights = np.asarray(settings.source_weights, np.float64)
    weights = weights / weights.sum()
    if settings.num_epochs:
        # With a last epoch, exhausted sources are skipped, so that counts of draws do not tell the position: replay.
        yield from islice(_drawn_keys(sizes, settings, weights, 0, shards), start, None)
    else:
        yield from _drawn_keys(sizes, settings, weights, start, shards)


def _drawn_keys(
    sizes: Sequence[int],
    settings: StreamSettings,
    weights: NDArray[np.float64],
    start: int,
    shards: Sequence[Sequence[int]],
) -> Iterator[Key]:
    whole, within = divmod(start, _BLOCK)
    draws = np.bincount(_draw_sources(settings.seed, whole, weights)[:within], minlength=len(sizes))
    for block in range(whole):
        draws += np.bincount(_draw_sources(settings.seed, block, weights), minlength=len(sizes))
    firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).tolist()
    streams: dict[int, Iterator[Key]] = {
        number: _one_source(
            _Source(first, first + np.arange(0, size, settings.every_nth), tuple(files)), settings, int(drawn), None
        )
        for number, (first, size, drawn, files) in enumerate(
            zip(firsts, sizes, draws, shards or [()] * len(sizes), strict=True)
        )
        if weights[number] > 0
    }
    for block in count(whole):
        for source in islice(
            _draw_sources(settings.seed, block, weights).tolist(), within if block == whole else 0, None
        ):
            key = next(streams[source], None) if source in streams else None
            if key is not None:
                yield key
            elif source in streams:
                del streams[source]
                if not streams:
                    return


def _draw_sources(seed: int, block: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.random.default_rng([seed, block, _SOURCES]).choice(len(weights), _BLOCK, p=weights)
