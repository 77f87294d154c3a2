"""Batches for training: an endless, repeatable stream.

Which sample comes when, and what happens to it, follows from (seed, epoch, sample index) alone;
so the stream is the same whatever the number of workers, and can begin at any step.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from boxwright.data.augmentation.transform import Transform
from boxwright.data.batch import Batch, Example, Resizer, collate, make_example
from boxwright.data.dataset import Dataset
from boxwright.errors import BoxwrightError

__all__ = ["StreamSettings", "TrainingExamples", "training_batches"]

Key = tuple[int, int]


@dataclass(frozen=True)
class StreamSettings:
    """How samples become a stream.

    Attributes:
        batch_size: Samples a batch.
        seed: Decides order and augmentation.
        shuffle: Whether each epoch has an order of its own.
        every_nth: Only every nth sample is used.
        num_epochs: How often the data is gone through; 0 for without end.
        workers: Processes that prepare samples; 0 for none beside this one.
    """

    batch_size: int
    seed: int = 0
    shuffle: bool = True
    every_nth: int = 1
    num_epochs: int = 0
    workers: int = 1


class TrainingExamples(torch.utils.data.Dataset[Example | BoxwrightError]):
    """Augmented, resized examples by (epoch, index)."""

    def __init__(self, dataset: Dataset, augmentation: Transform, resizer: Resizer, seed: int) -> None:
        """Remember the parts.

        Args:
            dataset: Where samples come from.
            augmentation: What happens to them.
            resizer: Brings them to the network's size.
            seed: Decides what happens.
        """
        self.dataset, self.augmentation, self.resizer, self.seed = dataset, augmentation, resizer, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> Example | BoxwrightError:
        """Prepare one example.

        Args:
            key: (epoch, index).

        Returns:
            The example, or the error that says why there is none.
        """
        epoch, index = key
        rng = np.random.default_rng([self.seed, epoch, index])
        try:
            return make_example(self.augmentation(self.dataset[index], rng), self.resizer)
        except BoxwrightError as error:  # raised by a worker, it would arrive wrapped in a traceback
            return error


def _keys(count: int, settings: StreamSettings, start: int) -> Iterator[list[Key]]:
    """Yield the keys of batch after batch, from batch `start` on. A batch may span two epochs."""
    indices = np.arange(0, count, settings.every_nth)
    batch: list[Key] = []
    skip = start * settings.batch_size
    epoch = skip // len(indices)
    skip %= len(indices)
    while not settings.num_epochs or epoch < settings.num_epochs:
        order = indices
        if settings.shuffle:
            order = np.random.default_rng([settings.seed, epoch]).permutation(indices)
        for index in order[skip:].tolist():
            batch.append((epoch, index))
            if len(batch) == settings.batch_size:
                yield batch
                batch = []
        skip, epoch = 0, epoch + 1


def _collate_or_error(examples: list[Example | BoxwrightError]) -> Batch | BoxwrightError:
    error = next((example for example in examples if isinstance(example, BoxwrightError)), None)
    return error or collate([example for example in examples if isinstance(example, Example)])


def _leave_signals_to_the_parent(_: int) -> None:
    """Ctrl-C reaches all processes of a terminal; the parent saves, and ends its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Batches:
    """The keys as the batch sampler that PyTorch's loader wants."""

    def __init__(self, count: int, settings: StreamSettings, start: int) -> None:
        self.arguments = (count, settings, start)

    def __iter__(self) -> Iterator[list[Key]]:
        return _keys(*self.arguments)


def training_batches(examples: TrainingExamples, settings: StreamSettings, start: int = 0) -> DataLoader[Any]:
    """Make the stream of batches.

    Args:
        examples: Where examples come from.
        settings: How.
        start: The first batch to yield, for going on after a stop.

    Returns:
        A loader whose items are `Batch`, or the error that a sample met; without end, unless
        `num_epochs` is set.
    """
    return DataLoader(
        examples,
        batch_sampler=_Batches(len(examples), settings, start),
        collate_fn=_collate_or_error,
        num_workers=settings.workers,
        # Of its own, so that starting a loader draws nothing from the process's generator.
        generator=torch.Generator(),
        worker_init_fn=_leave_signals_to_the_parent,
        pin_memory=torch.cuda.is_available(),
        prefetch_factor=3 if settings.workers else None,
    )
