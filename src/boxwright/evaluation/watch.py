"""`boxwright evaluate --watch`: evaluate each checkpoint of a run as it appears, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from boxwright.checkpoints.restore import restore_detector
from boxwright.checkpoints.sources import is_tensorflow
from boxwright.checkpoints.store import CheckpointStore
from boxwright.config import messages as m
from boxwright.errors import CheckpointError, ConfigError
from boxwright.evaluation.events import EventFile, evaluation_folder, write_evaluation_events
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.run import EvaluationSet, evaluate_detector, open_evaluation, reader_name
from boxwright.models.detector import Detector, usable_device

__all__ = ["WatchSettings", "evaluate_on_training_data", "watch"]

_POLL_SECONDS = 1.0
Heard = Callable[[int, Evaluation | None, str], None]


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """How checkpoints are waited for, with TF2's meanings.

    Attributes:
        wait_interval: The least number of seconds between the beginnings of two evaluations.
        timeout: Seconds without a new checkpoint after which it ends; 0 to evaluate what is there and end.
        eval_index: Which of `eval_input_reader`.
        class_agnostic: Whether all classes count as one.
        device: Where to compute.
    """

    wait_interval: float = 300.0
    timeout: float = 3600.0
    eval_index: int = 0
    class_agnostic: bool = False
    device: str = "auto"
    workers: int = 1


def watch(
    config: m.TrainEvalPipelineConfig,
    checkpoint_dir: str | Path,
    model_dir: str | Path,
    settings: WatchSettings,
    heard: Heard,
) -> int:
    """Evaluate the newest checkpoint of a run whenever there is a new one.

    It ends with the checkpoint of `train_config.num_steps`, or when none has come for `timeout` seconds.
    Checkpoints that come while one is evaluated are left out, but for the newest.

    Args:
        config: The configuration.
        checkpoint_dir: The run's folder; it need not exist yet.
        model_dir: Where `eval/` with the events goes.
        settings: How to wait.
        heard: Hears of each step with its evaluation, or, with None, why it waits or ends.

    Returns:
        How many checkpoints were evaluated.

    Raises:
        CheckpointError: Where the time is up and there never was a checkpoint.
        ConfigError: Where there is no such reader.
    """
    if settings.eval_index >= len(config.eval_input_reader):
        raise ConfigError(f"eval_input_reader[{settings.eval_index}] is missing; check eval_index")
    device = usable_device(settings.device)
    folder = evaluation_folder(Path(model_dir), reader_name(config, settings.eval_index))
    last, count, since = -1, 0, time.monotonic()
    opened: EvaluationSet | None = None  # when the first checkpoint says of which classes
    total = config.train_config.num_steps if config.train_config else 0
    with EventFile(folder) as events:
        while True:
            began = time.monotonic()
            newest = _newest_step(Path(checkpoint_dir))
            if newest > last and (found := _restore(Path(checkpoint_dir), config)):
                detector, step = found
                opened = opened or _open(config, settings, detector)
                evaluation = evaluate_detector(
                    detector.to(device), opened.dataset, opened.plan, workers=settings.workers
                )
                write_evaluation_events(events, step, evaluation.metrics, evaluation.pictures)
                heard(step, evaluation, "")
                last, count = newest, count + 1
                if total and step >= total:
                    heard(step, None, f"step {step} of {total} is evaluated: the end")
                    return count
                if settings.timeout:
                    time.sleep(max(began + settings.wait_interval - time.monotonic(), 0.0))
                    since = time.monotonic()  # as in TF, what is slept through does not count
                    continue
            if time.monotonic() - since >= settings.timeout:
                if not count:
                    raise CheckpointError(f"{checkpoint_dir}: no checkpoint in {settings.timeout:g} s")
                heard(last, None, f"no new checkpoint in {settings.timeout:g} s: the end")
                return count
            time.sleep(_POLL_SECONDS)


def _open(config: m.TrainEvalPipelineConfig, settings: WatchSettings, detector: Detector) -> EvaluationSet:
    agnostic = settings.class_agnostic
    return open_evaluation(config, settings.eval_index, detector.categories, class_agnostic=agnostic)


def evaluate_on_training_data(config: m.TrainEvalPipelineConfig, every_nth: int) -> None:
    """Let evaluations use the training data, to see whether a detector learns at all.

    Args:
        config: The configuration; its evaluation readers change.
        every_nth: Only every nth image is used.

    Raises:
        ConfigError: Where there is no training reader.
    """
    if config.train_input_reader is None:
        raise ConfigError("train_input_reader is missing from the configuration")
    reader = config.train_input_reader.model_copy(deep=True)
    reader.name, reader.sample_1_of_n_examples = "eval_on_train", every_nth
    config.eval_input_reader = [reader]


def _newest_step(folder: Path) -> int:
    """Find the newest checkpoint's step; -1 where there is none. One of TF counts as step 0 until it is read."""
    paths = CheckpointStore(folder).paths()
    if paths:
        return int(paths[-1].stem.removeprefix("ckpt-"))
    return 0 if is_tensorflow(folder) else -1


def _restore(folder: Path, config: m.TrainEvalPipelineConfig) -> tuple[Detector, int] | None:
    """Restore the newest checkpoint; None where the run has just replaced it by a newer one."""
    newest = _newest_step(folder)
    try:
        detector, _, step = restore_detector(folder, config=config)
    except CheckpointError:
        if _newest_step(folder) == newest:
            raise
        return None
    return detector, step
