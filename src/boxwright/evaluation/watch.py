"""`boxwright evaluate --watch`: evaluate each checkpoint of a run as it appears, in a separate process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from boxwright.base.device import usable_device
from boxwright.base.errors import CheckpointError
from boxwright.evaluation.data import EvaluationData, reader_name
from boxwright.evaluation.evaluate import OpenEvaluation, evaluate, open_evaluation
from boxwright.evaluation.events import EventFile, evaluation_folder, write_evaluation_events
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.settings import EvaluationSettings, WatchSettings
from boxwright.pipeline import messages as m
from boxwright.pipeline.learning_rate import learning_rates
from boxwright.weights.sources import is_tensorflow
from boxwright.weights.store import CheckpointStore

_POLL_SECONDS = 1.0
Heard = Callable[[int, Evaluation | None, str], None]


def watch(
    config: m.TrainEvalPipelineConfig,
    checkpoint_dir: str | Path,
    model_dir: str | Path,
    settings: EvaluationSettings,
    waiting: WatchSettings,
    heard: Heard,
) -> int:
    """Evaluate the newest checkpoint of a run whenever one appears; return the number of evaluations.

    It ends with the checkpoint of `train_config.num_steps`, or after `timeout` seconds without a new one. Of the
    checkpoints that appear during an evaluation only the newest is evaluated.

    Args:
        checkpoint_dir: The run's folder; it need not exist yet.
        model_dir: The folder that gets `eval/` with the events.
        heard: Called with each step and its evaluation, or with None and the reason for ending.

    Raises:
        CheckpointError: If no checkpoint appeared in time.
        ConfigError: If the reader does not exist.
    """
    folder = evaluation_folder(Path(model_dir), reader_name(config, settings))
    usable_device(settings.device)  # fails before waiting if there is no such device
    rates = learning_rates(config)
    last, evaluated, count, since = -1, -1, 0, time.monotonic()
    data: EvaluationData | None = None  # opened with the classes of the first checkpoint
    total = config.train_config.num_steps if config.train_config else 0
    with EventFile(folder) as events:
        while True:
            began = time.monotonic()
            newest = _newest_step(Path(checkpoint_dir))
            if newest > last and (opened := _open(Path(checkpoint_dir), config, settings, data)):
                step, data = opened.model.step, opened.data
                evaluation = evaluate(opened)
                numbers = evaluation.metrics | ({} if rates is None else {"learning_rate": rates(step)})
                write_evaluation_events(events, step, numbers, evaluation.pictures, evaluated)
                heard(step, evaluation, "")
                # The larger: the newest may be damaged and an older one opened, or a newer one may have appeared.
                last, evaluated, count = max(newest, step), step, count + 1
                if total and step >= total:
                    heard(step, None, f"step {step} of {total} is evaluated: done")
                    return count
                if waiting.timeout:
                    time.sleep(max(began + waiting.wait_interval - time.monotonic(), 0.0))
                    since = time.monotonic()  # as in TF, this sleep does not count
                    continue
            if time.monotonic() - since >= waiting.timeout:
                if not count:
                    raise CheckpointError(f"{checkpoint_dir}: no checkpoint in {waiting.timeout:g} s")
                heard(last, None, f"no new checkpoint in {waiting.timeout:g} s: done")
                return count
            time.sleep(_POLL_SECONDS)


def _newest_step(folder: Path) -> int:
    """Return the newest checkpoint's step; -1 without checkpoints, 0 for TF's, whose step is not known yet."""
    paths = CheckpointStore(folder).paths()
    if paths:
        return int(paths[-1].stem.removeprefix("ckpt-"))
    return 0 if is_tensorflow(folder) else -1


def _open(
    folder: Path, config: m.TrainEvalPipelineConfig, settings: EvaluationSettings, data: EvaluationData | None
) -> OpenEvaluation | None:
    """Return the newest checkpoint, opened with its data; None if the run has just replaced it by a newer one."""
    newest = _newest_step(folder)
    try:
        return open_evaluation(folder, config, settings, data)
    except CheckpointError:
        if _newest_step(folder) == newest:
            raise
        return None
