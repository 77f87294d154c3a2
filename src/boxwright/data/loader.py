"""Batches for training: an endless, repeatable stream.

Order and augmentation of samples depend only on (seed, epoch, sample index), and on the training step where a
configuration says so. So the stream is the same for any number of workers and processes, and can start anywhere. No
wait blocks forever: consumers are notified each second in which no batch has arrived.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import count, islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from pickle import PicklingError, UnpicklingError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, get_worker_info

from boxwright.base.distributed import ALONE, Processes
from boxwright.base.errors import BoxwrightError, DataError, TrainingError, first_line
from boxwright.base.signals import end_signals
from boxwright.base.worker_pools import exit_while_importing
from boxwright.data.augmentation.expanded_crop import join_steps
from boxwright.data.augmentation.mosaic import BatchMixUp
from boxwright.data.augmentation.transform import Chain, Stages
from boxwright.data.batch import Batch, DrawnSizes, Resizer, collate, to_input
from boxwright.data.dataset import Dataset, shard_sizes, source_sizes
from boxwright.data.image_io import image_size
from boxwright.data.order import Key, SamplePosition, StreamSettings, sample_keys
from boxwright.data.reading import reading
from boxwright.data.worker_errors import (
    dead_worker_error,
    describe_death,
    no_shared_memory,
    start_error,
    stuck_workers_error,
    unusable_shared_memory,
)
from boxwright.data.worker_folder import make_worker_folder, remove_worker_folder
from boxwright.types import Sample

# More bad samples than this in a row mean that the data set as a whole is bad.
_MOST_BAD_IN_A_ROW = 100
_POLL_SECONDS = 1


class TrainingExamples(torch.utils.data.Dataset[Sample | BoxwrightError]):
    """Augmented, resized examples by their place."""

    def __init__(
        self,
        dataset: Dataset,
        augmentation: Chain | Stages,
        resizer: Resizer,
        seed: int,
        *,
        sizes: DrawnSizes | None = None,
        mixup: BatchMixUp | None = None,
        skip_bad: bool = False,
    ) -> None:
        """Store the parts.

        Args:
            sizes: Other resizers than `resizer` at some steps.
            mixup: Blends the examples of a batch.
            skip_bad: Whether a sample that cannot be read is replaced by the next one.
        """
        self.skip_bad = skip_bad
        self.dataset, self.resizer, self.seed = dataset, resizer, seed
        self.augmentation = augmentation.changed(join_steps)
        self.sizes, self.mixup = sizes, mixup

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, places: Sequence[Key | SamplePosition]) -> Sequence[Sample | BoxwrightError]:
        """Return the examples of a process's share of a batch, or the errors that prevented them; torch calls this."""
        examples = [self[place] for place in places]
        samples = [example for example in examples if isinstance(example, Sample)]
        if self.mixup is None or len(samples) < len(examples):
            return examples
        return self.mixup(samples, SamplePosition(*places[0]).step)

    def __getitem__(self, place: Key | SamplePosition) -> Sample | BoxwrightError:
        """Return the example, or the error that prevented it."""
        epoch, index, step = SamplePosition(*place)
        augmentation, key = self.augmentation.at(step), (epoch, index)
        resizer = self.resizer if self.sizes is None else self.sizes.at(step)
        problems: list[str] = []
        for further in range(_MOST_BAD_IN_A_ROW if self.skip_bad else 1):
            # The key seeds the generator, not the sample that takes a bad one's place.
            rng = np.random.default_rng([self.seed, epoch, index])
            try:
                number = (index + further) % len(self.dataset)
                sample = self.dataset[number]
                with reading(f"{self.dataset.name}: sample {number} ({sample.id[:60]}): augmentation"):
                    prepared = to_input(augmentation(sample, rng), resizer)
                prepared.key, prepared.problems = key, tuple(problems)
                prepared.draw_key = draw_key(self.seed, key)
                return prepared
            except DataError as error:
                problems.append(str(error))
            except BoxwrightError as error:  # raised by a worker, it would arrive wrapped in a traceback
                return error
        return DataError(problems[0] if not self.skip_bad else f"{len(problems)} samples in a row: {problems[0]}")


def draw_key(seed: int, key: Key) -> int:
    """Return the key, of 63 bits, of what a network draws for a sample in training."""
    # One word more than augmentation's seed, so that the two share no stream.
    return int(np.random.SeedSequence([seed, *key, 1]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _start_method() -> str:
    """Return how this process starts others, without deciding it for the caller, who may choose it once and later."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


class _Collate:
    """Collates examples into batches, or returns an error among them; counts batches over all workers, if any."""

    def __init__(self, workers: int) -> None:
        # Counting takes a semaphore, which needs shared memory; without workers a run needs none.
        try:
            self.made = multiprocessing.get_context(_start_method()).Value("Q", 0) if workers else None
        except OSError as error:
            raise unusable_shared_memory(error) from None

    def __call__(self, examples: list[Sample | BoxwrightError]) -> Batch | BoxwrightError:
        batch = self._collated(examples)
        if self.made is not None:
            with self.made:
                self.made.value += 1
        return batch

    def _collated(self, examples: list[Sample | BoxwrightError]) -> Batch | BoxwrightError:
        error = next((example for example in examples if isinstance(example, BoxwrightError)), None)
        if error is not None:
            return error
        batch = collate([example for example in examples if isinstance(example, Sample)])
        if get_worker_info() is None:
            return batch
        try:
            # torch would do this in a thread that swallows errors: the batch would never arrive.
            return batch.share_memory()
        except (RuntimeError, OSError) as problem:
            return no_shared_memory(first_line(problem))


def _begin_worker(folder: str, _: int) -> None:
    """Make a worker ignore signals and exit with its parent; its sockets are in `folder`.

    Ctrl-C and SIGHUP reach all processes of a terminal, torchrun's SIGTERM a whole group; the parent saves first.
    """
    tempfile.tempdir = folder
    for number in (signal.SIGINT, *end_signals()):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    # torch's own watchdog then waits for the queue to be drained: forever if its data fill the pipe.
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


class _Batches:
    """The batch sampler for PyTorch's loader: the places of this process's share of each batch."""

    def __init__(
        self,
        dataset: Dataset,
        settings: StreamSettings,
        begin: tuple[int, int],
        processes: Processes,
        wide: NDArray[np.bool_] | None,
    ) -> None:
        self.sizes, self.settings, self.begin = source_sizes(dataset), settings, begin
        self.processes, self.wide, self.shards = processes, wide, shard_sizes(dataset)

    def __iter__(self) -> Iterator[list[SamplePosition]]:
        start, first_step = self.begin
        keys = sample_keys(self.sizes, self.settings, start, self.wide, self.shards)
        for step in count(first_step):
            batch = list(islice(keys, self.settings.batch_size))
            if len(batch) < self.settings.batch_size:
                return
            yield [SamplePosition(*key, step) for key in self.processes.share(batch)]


class BatchStream:
    """Batches as they arrive, with detection of dead and stuck workers."""

    def __init__(self, loader: DataLoader[Any], patience: float, run: Path | None = None) -> None:
        """Store the parts.

        Args:
            loader: PyTorch's; with workers, it times out after a second.
            patience: Seconds without a batch after which the workers count as stuck.
            run: The run's folder, which has the workers' sockets; None for the system's temporary folder.
        """
        self._loader, self._patience, self._run = loader, patience, run
        self._taken = 0

    @property
    def ready(self) -> int:
        """How many finished batches are waiting in the workers' queues; always 0 without workers."""
        made = self._loader.collate_fn
        return made.made.value - self._taken if isinstance(made, _Collate) and made.made is not None else 0

    @property
    def most_ready(self) -> int:
        """How many batches workers prefetch; 0 without workers."""
        return self._loader.num_workers * (self._loader.prefetch_factor or 0)

    def origin(self, batch: Batch) -> str:
        """Return where a batch's first sample comes from, for messages."""
        examples, where = self._loader.dataset, f"sample {batch.keys[0][1]} ({batch.ids[0][:60]})" if batch.keys else ""
        return f"{examples.dataset.name}: {where}" if isinstance(examples, TrainingExamples) else where

    def __iter__(self) -> Iterator[Batch | BoxwrightError]:
        """Yield batches, and last the error that stopped the workers, if any. Workers exit with the iterator."""
        return (item for item in self.polled() if item is not None)

    def polled(self) -> Generator[Any]:
        """Yield batches as `__iter__`, and None for each second without one."""
        if self._loader.num_workers:
            exit_while_importing()
        before = set(multiprocessing.active_children())
        stream: Iterator[Any] | None = None
        folder = make_worker_folder(self._run) if self._loader.num_workers else None
        self._loader.worker_init_fn = partial(_begin_worker, str(folder))
        workers: list[BaseProcess] = []
        waiting = True
        # If the generator is never closed, exit would wait for workers that ignore signals.
        at_exit = multiprocessing.util.Finalize(None, _end_workers, (workers, folder, self._run), exitpriority=100)
        try:
            with _on_sigchld(_ignore):  # torch installs its handler here, which would raise wherever this process is
                stream = _start_workers(self._loader)
            workers += [child for child in multiprocessing.active_children() if child not in before]
            since = time.monotonic()
            while True:
                waiting = True
                item = _next_within_a_second(stream, workers)
                if item is not None:
                    waiting = False
                    self._taken += 1
                    yield item
                    since = time.monotonic()  # the consumer's own time does not count
                elif time.monotonic() - since > self._patience:
                    yield stuck_workers_error(workers, self._patience)
                    return
                else:
                    yield None
        except StopIteration:
            waiting = False
        except TrainingError as error:  # workers that cannot be started
            yield error
        except (RuntimeError, OSError, EOFError, UnpicklingError) as error:
            # A worker's death can surface as any of these: in its queue, or in the socket that passes memory.
            yield dead_worker_error(workers, error)
        finally:
            with _on_sigchld(_ignore):
                if waiting:  # they may be stuck, and torch would wait five seconds for each
                    _kill(workers)
                del stream
                _end_workers(workers, folder, self._run)
            at_exit.cancel()


def _start_workers(loader: DataLoader[Any]) -> Iterator[Any]:
    """Return the loader's iterator, whose workers have been started."""
    try:
        return iter(loader)
    except (EOFError, OSError, PicklingError, AttributeError, TypeError) as error:
        raise start_error(error, _start_method()) or error from None


def _next_within_a_second(stream: Iterator[Any], workers: list[BaseProcess]) -> Any:
    """Return the next item; None if none has arrived."""
    raise_if_dead = partial(_raise_if_dead, workers)
    try:
        # A worker that dies while it sends leaves a message whose rest would be waited for without end.
        with _on_sigchld(raise_if_dead):
            raise_if_dead()
            return next(stream)
    except RuntimeError as error:
        if "DataLoader timed out" not in str(error):
            raise
        return None


def _raise_if_dead(workers: list[BaseProcess], *_: object) -> None:
    if how := describe_death(workers):
        raise RuntimeError(how)


def _ignore(*_: object) -> None:
    pass


@contextmanager
def _on_sigchld(handler: Callable[..., None]) -> Iterator[None]:
    """Let a handler hear of the ends of child processes, in place of another, where this is the main thread.

    torch's own raises about a dead worker in any line, also where gradients are switched on again.
    """
    # Windows has no such signal.
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        yield
        return
    before = signal.signal(signal.SIGCHLD, handler)
    try:
        yield
    finally:
        # None: the interpreter is shutting down and has cleared its handlers.
        if before is not None:
            signal.signal(signal.SIGCHLD, before)


def _kill(workers: list[BaseProcess]) -> None:
    for worker in workers:
        if worker.is_alive():
            worker.kill()
            worker.join()


def _end_workers(workers: list[BaseProcess], folder: Path | None, run: Path | None) -> None:
    _kill(workers)
    if folder is not None:
        remove_worker_folder(folder, run)


def training_batches(
    examples: TrainingExamples,
    settings: StreamSettings,
    start: int = 0,
    processes: Processes = ALONE,
    patience: float = 600.0,
    run: Path | None = None,
    *,
    first_step: int = 0,
) -> BatchStream:
    """Return the stream of batches, endless unless `num_epochs` is set.

    Args:
        start: How many samples came before, for resuming.
        first_step: The training step that learns from the first batch; as a batch's size may change, it does not
            follow from `start`.
        patience: As for `BatchStream`.
        run: As for `BatchStream`.

    Raises:
        ConfigError: If there is not one weight per source.
    """
    wide = _wide_images(examples.dataset) if settings.group else None
    sample_keys(source_sizes(examples.dataset), settings, start, wide)  # validates the settings
    loader: DataLoader[Any] = DataLoader(
        examples,
        batch_sampler=_Batches(examples.dataset, settings, (start, first_step), processes, wide),
        collate_fn=_Collate(settings.workers),
        num_workers=settings.workers,
        # Its own, so that starting a loader draws nothing from the global generator.
        generator=torch.Generator(),
        pin_memory=torch.cuda.is_available(),
        prefetch_factor=3 if settings.workers else None,
        timeout=_POLL_SECONDS if settings.workers else 0,
        multiprocessing_context=_start_method() if settings.workers else None,
    )
    return BatchStream(loader, patience, run)


def samples_in_order(
    dataset: Dataset, indices: Sequence[int], workers: int = 0, patience: float = 600.0, run: Path | None = None
) -> Generator[Sample]:
    """Yield samples in the order of `indices`, read and decoded ahead by workers; 0 workers read in this process.

    Raises:
        BoxwrightError: If a sample cannot be read, or a worker died or is stuck.
    """
    with closing(samples_or_errors(dataset, indices, workers, patience, run)) as samples:
        for item in samples:
            if isinstance(item, BoxwrightError):
                raise item
            yield item


def samples_or_errors(
    dataset: Dataset, indices: Sequence[int], workers: int = 0, patience: float = 600.0, run: Path | None = None
) -> Generator[Sample | BoxwrightError]:
    """Yield samples as `samples_in_order`, with an error in place of each that cannot be read.

    The error of a worker that died or is stuck is the last item.
    """
    readable = _Readable(dataset)
    if not workers:
        yield from (readable[index] for index in indices)
        return
    loader: DataLoader[Any] = DataLoader(
        readable,
        batch_size=None,
        sampler=indices,
        collate_fn=_unchanged,
        num_workers=workers,
        generator=torch.Generator(),
        prefetch_factor=8,
        timeout=_POLL_SECONDS,
        multiprocessing_context=_start_method(),
    )
    with closing(BatchStream(loader, patience, run).polled()) as stream:
        yield from (item for item in stream if item is not None)


class _Readable(torch.utils.data.Dataset[Sample | BoxwrightError]):
    """Samples, or their errors: raised in a worker, one would arrive wrapped in a traceback."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> Sample | BoxwrightError:
        try:
            with reading(f"{self.dataset.name}: sample {index}"):
                return self.dataset[index]
        except BoxwrightError as error:
            return error


def _unchanged(item: Any) -> Any:
    return item


def _wide_images(dataset: Dataset) -> NDArray[np.bool_]:
    """Return which images are wider than high, by their headers; unreadable ones count as upright."""
    wide = np.zeros(len(dataset), np.bool_)
    for index in range(len(dataset)):
        with suppress(DataError):  # the stream raises it
            height, width = image_size(dataset.encoded(index)[0], dataset.name)
            wide[index] = width > height
    return wide
