"""`boxwright.Learner`: a detector with its optimizer and data, for training loops of one's own."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from boxwright.api.own import Config, copied_config, use_own_data, use_own_detector
from boxwright.base.device import usable_device
from boxwright.base.distributed import ALONE
from boxwright.base.errors import BoxwrightError
from boxwright.base.files import make_folder
from boxwright.base.threads import refuse_in_fork
from boxwright.config.load import dump_message
from boxwright.config.support import refuse_unsupported
from boxwright.data.batch import Batch
from boxwright.data.dataset import Dataset
from boxwright.data.loader import training_batches
from boxwright.data.own_dataset import Collection
from boxwright.data.pixel_scale import measure_white_level
from boxwright.nn.detector import Detector
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.input_reader import build_dataset, state_white_level
from boxwright.pipeline.load import Overrides
from boxwright.pipeline.message import white_level
from boxwright.pipeline.missing import require_for_training
from boxwright.pipeline.training import build_training
from boxwright.training import step as training_step
from boxwright.training.background_writer import copied
from boxwright.training.examples import on_device, training_examples
from boxwright.training.initialize import initialize, with_classes
from boxwright.training.length import steps_through
from boxwright.training.state import new_state, placed
from boxwright.training.step import StepReport
from boxwright.weights.store import CheckpointStore

if TYPE_CHECKING:
    from boxwright.base.settings import AnyDevice

_LOG = logging.getLogger("boxwright")


class Learner:
    """Takes training steps exactly as `boxwright.train` does; evaluation, log and checkpoints are left to the caller.

    Attributes:
        detector: The detector in training mode, on its device. `detect` works between any two steps.
    """

    def __init__(
        self,
        config: Config,
        *,
        dataset: Dataset | Collection | None = None,
        detector: Detector | None = None,
        overrides: Overrides = (),
        device: AnyDevice = "auto",
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        """Build the detector and its optimizer; load the configuration's fine-tune checkpoint, if any.

        Args:
            config: The configuration: a file, "preset:NAME", or the result of `load_config`.
            dataset: Training data of your own, as for `boxwright.train`.
            detector: A detector of your own, as for `boxwright.train`.
            overrides: Changes of the configuration, as for `boxwright.train`.
            device: As for `boxwright.load`.
            workers: Processes that read and augment samples; 0 to do so in this one.
            seed: Determines the first weights, the order of samples and their augmentation.

        Raises:
            BoxwrightError: If configuration, data or checkpoint cannot be used.
        """
        plan_of = copied_config(config, overrides)
        own = None if dataset is None else use_own_data(plan_of, dataset)
        if detector is not None:
            use_own_detector(plan_of, detector)
        refuse_unsupported(plan_of, "")
        require_for_training(plan_of)
        plan = build_training(plan_of, workers=workers, seed=seed)
        data = build_dataset(plan_of.train_input_reader, "train_input_reader") if own is None else own
        if not white_level(plan_of):
            level, line = measure_white_level(data)
            if line:
                _LOG.warning(line)
            plan_of = state_white_level(plan_of, level)
            data = build_dataset(plan_of.train_input_reader, "train_input_reader") if level and own is None else data
        # As `train` does, so that the first weights are the same.
        torch.manual_seed(seed)
        built = build_detector(plan_of, data.categories) if detector is None else with_classes(detector, data)
        self.detector = placed(built, usable_device(device))
        self.detector.white_level = white_level(plan_of)
        initialize(self.detector, plan_of, plan, ALONE)
        self._config, self._plan, self._dataset = plan_of, plan, data
        self._state, self._process = new_state(self.detector, plan), os.getpid()
        self._learner = training_step.Learner(self._state, plan, ALONE)
        self.detector.train()

    def __repr__(self) -> str:
        return f"<Learner {type(self.detector.network).__name__}: step {self.step_number}>"

    @property
    def step_number(self) -> int:
        """Steps taken."""
        return self._state.step

    def batches(self) -> Iterator[Batch]:
        """Yield shuffled and augmented batches on the device, from the first sample not yet learned from.

        Endless unless `train_input_reader.num_epochs` is set.

        Yields:
            Images, their true sizes and targets.

        Raises:
            BoxwrightError: If a sample cannot be read.
        """
        examples = training_examples(
            self._config, self._dataset, self.detector, self._state.seed, skip_bad=self._plan.stream.skip_bad
        )
        # The position counts samples, not steps: a caller's batches may have other sizes.
        stream = training_batches(examples, self._plan.stream, self._state.samples, first_step=self._state.step)
        device = next(self.detector.parameters()).device
        with closing(on_device(_or_raise(iter(stream)), device)) as batches:
            yield from batches

    def epoch(self) -> Iterator[Batch]:
        """Return the batches of one pass over the data; the last may begin the next pass."""
        return islice(self.batches(), steps_through(len(self._dataset), 1, self._plan.stream.batch_size))

    def step(self, batch: Batch) -> StepReport:
        """Learn from a batch.

        Args:
            batch: One of `batches`.

        Returns:
            The step's `losses` by TensorFlow's names, `gradient_norm` before clipping, and learning `rate`.

        Raises:
            TrainingError: If a loss or gradient is not finite, or memory is too small; weights are as before.
            BoxwrightError: In a fork of the process that made the learner, where a step would never end.
        """
        threads = torch.get_num_threads() if batch.images.device.type == "cpu" else 0
        refuse_in_fork(self._process, threads, "this Learner was made")
        return self._learner.step(batch)

    def save(self, folder: str | Path) -> Path:
        """Write a checkpoint, which `boxwright.load` opens and from which `boxwright.train` resumes.

        Args:
            folder: The run's folder; it is created.

        Returns:
            The checkpoint's path.

        Raises:
            OutputError: If it cannot be written.
        """
        store = CheckpointStore(make_folder(Path(folder)))
        return store.save(self._state.step, copied(self._state.content(dump_message(self._config))))


def _or_raise(items: Iterator[Batch | BoxwrightError]) -> Iterator[Batch]:
    for item in items:
        if isinstance(item, BoxwrightError):
            raise item
        yield item
