"""Batches for training: an endless, repeatable stream.

Which sample comes when, and what happens to it, follows from (seed, epoch, sample index) alone;
so the stream is the same whatever the number of workers and processes, and can begin anywhere.
"""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader

from boxwright.data.augmentation.transform import Transform
from boxwright.data.batch import Batch, Example, Resizer, collate, make_example
from boxwright.data.dataset import Dataset
from boxwright.data.order import Key, StreamSettings, sample_keys
from boxwright.distributed import ALONE, Processes
from boxwright.errors import BoxwrightError, DataError

__all__ = ["TrainingExamples", "training_batches"]

# A run of bad samples longer than this is a data set that is not what it should be.
_MOST_BAD_IN_A_ROW = 100


class TrainingExamples(torch.utils.data.Dataset[Example | BoxwrightError]):
    """Augmented, resized examples by (epoch, index)."""

    def __init__(
        self, dataset: Dataset, augmentation: Transform, resizer: Resizer, seed: int, *, skip_bad: bool = False
    ) -> None:
        """Remember the parts.

        Args:
            dataset: Where samples come from.
            augmentation: What happens to them.
            resizer: Brings them to the network's size.
            seed: Decides what happens.
            skip_bad: Whether the sample after one that cannot be read takes its place.
        """
        self.skip_bad = skip_bad
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
        problems: list[str] = []
        for further in range(_MOST_BAD_IN_A_ROW if self.skip_bad else 1):
            rng = np.random.default_rng([self.seed, epoch, index])
            try:
                sample = self.dataset[(index + further) % len(self.dataset)]
                example = make_example(self.augmentation(sample, rng), self.resizer)
                return replace(example, key=key, problems=tuple(problems))
            except DataError as error:
                problems.append(str(error))
            except BoxwrightError as error:  # raised by a worker, it would arrive wrapped in a traceback
                return error
        return DataError(problems[0] if not self.skip_bad else f"{len(problems)} samples in a row: {problems[0]}")


def _collate_or_error(examples: list[Example | BoxwrightError]) -> Batch | BoxwrightError:
    error = next((example for example in examples if isinstance(example, BoxwrightError)), None)
    return error or collate([example for example in examples if isinstance(example, Example)])


def _leave_signals_to_the_parent(_: int) -> None:
    """Ctrl-C reaches all processes of a terminal, torchrun's SIGTERM all of a group; the parent saves first.

    It ends its workers itself; they end by themselves where it is gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class _Batches:
    """The keys as the batch sampler that PyTorch's loader wants: this process's part of each batch."""

    def __init__(
        self,
        dataset: Dataset,
        settings: StreamSettings,
        start: int,
        processes: Processes,
        wide: NDArray[np.bool_] | None,
    ) -> None:
        self.sizes, self.settings, self.start, self.processes, self.wide = (
            dataset.parts,
            settings,
            start,
            processes,
            wide,
        )

    def __iter__(self) -> Iterator[list[Key]]:
        keys = sample_keys(self.sizes, self.settings, self.start, self.wide)
        while len(batch := list(islice(keys, self.settings.batch_size))) == self.settings.batch_size:
            yield list(self.processes.share(batch))


def training_batches(
    examples: TrainingExamples, settings: StreamSettings, start: int = 0, processes: Processes = ALONE
) -> DataLoader[Any]:
    """Make the stream of batches.

    Args:
        examples: Where examples come from.
        settings: How.
        start: How many samples have come before, for going on after a stop.
        processes: Those that share each batch.

    Returns:
        A loader whose items are `Batch`, or the error that a sample met; without end, unless
        `num_epochs` is set.

    Raises:
        ConfigError: Where there is not one weight a source.
    """
    wide = _wide_images(examples.dataset) if settings.group else None
    sample_keys(examples.dataset.parts, settings, start, wide)  # says at once what is wrong with the settings
    return DataLoader(
        examples,
        batch_sampler=_Batches(examples.dataset, settings, start, processes, wide),
        collate_fn=_collate_or_error,
        num_workers=settings.workers,
        # Of its own, so that starting a loader draws nothing from the process's generator.
        generator=torch.Generator(),
        worker_init_fn=_leave_signals_to_the_parent,
        pin_memory=torch.cuda.is_available(),
        prefetch_factor=3 if settings.workers else None,
    )


def _wide_images(dataset: Dataset) -> NDArray[np.bool_]:
    """Read from each image's header whether it is wider than high; one that cannot be read counts as upright."""
    wide = np.zeros(len(dataset), np.bool_)
    for index in range(len(dataset)):
        try:
            with Image.open(io.BytesIO(dataset.encoded(index)[0])) as image:
                wide[index] = image.width > image.height
        except (OSError, SyntaxError, ValueError, DataError):  # the error is the stream's to raise
            continue
    return wide
