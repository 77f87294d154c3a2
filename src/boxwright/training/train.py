"""`boxwright.train`: load, build, restore, step, log, checkpoint, evaluate."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from boxwright.builders.detector import build_detector
from boxwright.builders.evaluation import build_evaluation
from boxwright.builders.input_reader import build_dataset
from boxwright.builders.training import TrainingPlan, build_training
from boxwright.checkpoints.load_weights import load_weights
from boxwright.checkpoints.store import CheckpointStore
from boxwright.config import messages as m
from boxwright.config.load import dump_message
from boxwright.config.support import refuse_unsupported, report
from boxwright.data.batch import Batch
from boxwright.data.dataset import Dataset
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.errors import BoxwrightError, DataError, TrainingError
from boxwright.evaluation.evaluate import check_same_classes, run_evaluation
from boxwright.evaluation.evaluator import Evaluation
from boxwright.models.detector import usable_device
from boxwright.training.allocator import keep_freed_memory
from boxwright.training.log import TrainingLog
from boxwright.training.state import TrainingState, new_state
from boxwright.training.step import training_step

__all__ = ["RunSettings", "TrainingObserver", "train"]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run needs that a configuration does not say.

    Attributes:
        checkpoint_every_n: Steps between checkpoints; the last step has one always.
        log_every_n: Steps between lines of the log.
        seed: Decides fresh weights, order and augmentation.
        workers: Processes that prepare samples.
        max_seconds: Seconds of training after which the run saves and ends; 0 for no limit.
        evaluate: Whether to evaluate at each checkpoint, where there is an evaluation reader.
        compile: Whether the network is compiled; pays off after some hundreds of steps.
        device: "cpu", "cuda", or "auto" for a GPU where there is one.
    """

    checkpoint_every_n: int = 1000
    log_every_n: int = 20
    seed: int = 0
    workers: int = 1
    max_seconds: float = 0.0
    evaluate: bool = True
    compile: bool = False
    device: str = "auto"


class TrainingObserver(Protocol):
    """Hears what a run does; the command line prints it."""

    def message(self, text: str) -> None:
        """Hear a line of text.

        Args:
            text: The line.
        """
        ...

    def step(self, step: int, total: int, values: dict[str, float], images_per_second: float) -> None:
        """Hear of a step.

        Args:
            step: Steps done.
            total: Steps in all.
            values: Loss terms and learning rate.
            images_per_second: Lately.
        """
        ...

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """Hear of an evaluation.

        Args:
            step: Steps done.
            evaluation: What was found.
        """
        ...


class _Silent:
    def message(self, text: str) -> None:
        del text

    def step(self, step: int, total: int, values: dict[str, float], images_per_second: float) -> None:
        del step, total, values, images_per_second

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        del step, evaluation


def train(
    config: m.TrainEvalPipelineConfig,
    model_dir: str | Path,
    settings: RunSettings | None = None,
    observer: TrainingObserver | None = None,
) -> int:
    """Train the detector that a configuration describes, going on where an earlier run stopped.

    Args:
        config: The whole configuration.
        model_dir: The run's folder; it is made.
        settings: What the configuration does not say; without, the defaults.
        observer: Hears what happens, if anyone.

    Returns:
        Steps done in all: fewer than configured where the time was up or the run was interrupted,
        in both cases after a checkpoint was saved.

    Raises:
        BoxwrightError: Where configuration, data or checkpoints cannot be used, or the loss is not
            finite.
    """
    settings, observer = settings or RunSettings(), observer or _Silent()
    refuse_unsupported(config, "")
    plan = build_training(config, workers=settings.workers, seed=settings.seed)
    for found in report(config):
        if found.worth_saying:
            observer.message(str(found))
    dataset = build_dataset(config.train_input_reader, "train_input_reader")
    state, store = _prepare(config, plan, dataset, model_dir, settings, observer)
    with TrainingLog(store.folder) as log, _stop_requests() as stop_requested:
        run = _Run(config, plan, settings, state, store, log, observer)
        try:
            run.loop(dataset, stop_requested)
        except (DataError, TrainingError):
            run.save_before_stopping()
            raise
    return state.step


def _prepare(
    config: m.TrainEvalPipelineConfig,
    plan: TrainingPlan,
    dataset: Dataset,
    model_dir: str | Path,
    settings: RunSettings,
    observer: TrainingObserver,
) -> tuple[TrainingState, CheckpointStore]:
    """Build the detector; restore the newest checkpoint, else the fine-tune checkpoint."""
    torch.manual_seed(settings.seed)
    detector = build_detector(config, dataset.categories)
    device = _device(settings.device)
    if device.type == "cpu":
        keep_freed_memory()
    detector.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    if settings.evaluate:
        _check_evaluation(config, dataset)
    store = CheckpointStore(model_dir)
    found = store.latest()
    if found is None and plan.fine_tune.source:
        observer.message(
            f"from {plan.fine_tune.source}:\n{load_weights(detector, plan.fine_tune.source, plan.fine_tune.scope)}"
        )
    state = new_state(detector, plan)
    if found is not None:
        _check_same_classes(found[1], dataset, found[0])
        state.restore(found[1])
        observer.message(f"going on from {found[0]}, step {state.step}")
    _write_config(config, store.folder)
    if settings.compile:
        detector.network.compile()
    return state, store


def _check_evaluation(config: m.TrainEvalPipelineConfig, training: Dataset) -> None:
    """Open what is evaluated on, so that a mistake in it shows now and not after hours."""
    for number, reader in enumerate(config.eval_input_reader):
        build_evaluation(config, reader)
        dataset = build_dataset(reader, f"eval_input_reader[{number}]", training.categories)
        check_same_classes(training.categories, dataset.categories)


def _write_config(config: m.TrainEvalPipelineConfig, folder: Path) -> None:
    """Write the configuration as run; it replaces an earlier one whole or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / ".pipeline.config.partial"
        partial.write_text(dump_message(config), encoding="utf-8")
        partial.replace(folder / "pipeline.config")
    except OSError as error:
        raise TrainingError(f"{folder}: cannot be written to: {error.strerror or error}") from None


def _check_same_classes(content: dict[str, Any], dataset: Dataset, path: Path) -> None:
    if content["categories"] != dataset.categories.to_list():
        raise BoxwrightError(f"{path} was trained on other classes than {dataset.name} has; use another model_dir")


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return usable_device(name)


def _checked(batches: Iterable[Batch | BoxwrightError]) -> Iterator[Batch]:
    """Raise what a worker met, in this process; say so where one died."""
    stream = iter(batches)
    while True:
        try:
            batch = next(stream, None)
        except RuntimeError as error:
            raise TrainingError(f"a data worker died: {error}") from None
        if batch is None:
            return
        if isinstance(batch, BoxwrightError):
            raise batch
        yield batch


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a question that the loop asks after each step.

    A second one stops at once, as always.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _: object) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class _Run:
    """A run under way: the loop and what it does on the way."""

    config: m.TrainEvalPipelineConfig
    plan: TrainingPlan
    settings: RunSettings
    state: TrainingState
    store: CheckpointStore
    log: TrainingLog
    observer: TrainingObserver

    def loop(self, dataset: Dataset, stop_requested: Callable[[], bool]) -> None:
        """Step until the configured number, the time's end, the data's end, or a request to stop."""
        state, total = self.state, self.plan.num_steps
        if state.step >= total:
            self.observer.message(f"already trained for {state.step} of {total} steps")
            return
        examples = TrainingExamples(
            dataset, self.plan.augmentation, state.detector.preprocessor.resizer, self.plan.stream.seed
        )
        batches = training_batches(examples, self.plan.stream, start=state.step)
        began, saved = time.monotonic(), -1
        clock, since = time.monotonic(), state.step
        pictures_due = True
        state.detector.train()
        for batch in _checked(batches):
            if pictures_due:
                self.log.images(state.step, batch, state.detector.categories)
                pictures_due = False
            values = training_step(state, batch, self.plan)
            last = state.step >= total or stop_requested() or self._time_is_up(began)
            if state.step % self.settings.log_every_n == 0 or last or state.step == 1:
                rate = (state.step - since) / max(time.monotonic() - clock, 1e-9)
                self.log.scalars(state.step, {**values, "steps_per_sec": rate})
                self.observer.step(state.step, total, values, rate * self.plan.stream.batch_size)
                clock, since = time.monotonic(), state.step
            if last or state.step % self.settings.checkpoint_every_n == 0:
                saved = self._checkpoint(stop_requested)
                last, pictures_due = last or stop_requested(), True
                clock, since = time.monotonic(), state.step
            if last:
                break
        if saved != state.step:
            self._checkpoint(stop_requested)
        self._say_why_it_ended(stop_requested(), self._time_is_up(began))

    def _time_is_up(self, began: float) -> bool:
        return 0 < self.settings.max_seconds <= time.monotonic() - began

    def _checkpoint(self, stop_requested: Callable[[], bool]) -> int:
        """Save, then evaluate where that is asked for and nobody waits for the end."""
        self._save()
        for number in range(len(self.config.eval_input_reader) if self.settings.evaluate else 0):
            if not stop_requested():
                self._evaluate(number)
        return self.state.step

    def _save(self) -> None:
        path = self.store.save(self.state.step, self.state.content(dump_message(self.config)))
        self.observer.message(f"saved {path}")

    def save_before_stopping(self) -> None:
        """Keep the steps since the last checkpoint when an error ends the run; weights are those before it."""
        if self.state.step and not (self.store.folder / f"ckpt-{self.state.step}.pt").exists():
            self._save()

    def _evaluate(self, number: int) -> None:
        detector, average = self.state.detector, self.state.average
        use_average = bool(self.config.eval_config and self.config.eval_config.use_moving_averages)
        own = {name: p.detach().clone() for name, p in detector.network.named_parameters()}
        if use_average and average is not None:
            detector.network.load_state_dict(average.shadow, strict=False)
        evaluation = run_evaluation(self.config, detector, number)
        detector.network.load_state_dict(own, strict=False)
        detector.train()
        self.log.evaluation(self.state.step, evaluation.metrics, evaluation.pictures, number)
        self.observer.evaluated(self.state.step, evaluation)

    def _say_why_it_ended(self, stopped: bool, time_is_up: bool) -> None:
        step, total = self.state.step, self.plan.num_steps
        if step >= total:
            return
        why = "interrupted" if stopped else "the time is up" if time_is_up else "the data is at its end"
        self.observer.message(f"{why}: stopped after {step} of {total} steps; the same command goes on from here")
