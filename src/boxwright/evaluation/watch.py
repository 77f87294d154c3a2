"""`boxwright evaluate --watch`: evaluate each checkpoint of a run as it appears, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from boxwright.base.errors import CheckpointError
from boxwright.checkpoints.restore import restore_detector
from boxwright.checkpoints.sources import is_tensorflow
from boxwright.checkpoints.store import CheckpointStore
from boxwright.config import messages as m
from boxwright.device import open_device
from boxwright.evaluation.events import EventFile, evaluation_folder, write_evaluation_events
from boxwright.evaluation.optimized import optimized
from boxwright.evaluation.parts import EvaluationSet, check_reader, open_evaluation, reader_name
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.run import evaluate_detector
from boxwright.evaluation.settings import EvaluationSettings, WatchSettings
from boxwright.models.detector import Detector
from boxwright.models.multi_scale import at_scales

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
    """Evaluate the newest checkpoint of a run whenever there is a new one.

    It ends with the checkpoint of `train_config.num_steps`, or when none has come for `timeout` seconds.
    Checkpoints that come while one is evaluated are left out, but for the newest.

    Args:
        checkpoint_dir: The run's folder; it need not exist yet.
        model_dir: Where `eval/` with the events goes.
        heard: Hears of each step with its evaluation, or, with None, why it waits or ends.

    Raises:
        CheckpointError: Where the time is up and there never was a checkpoint.
        ConfigError: Where there is no such reader.
    """
    check_reader(config, settings)
    device = open_device(settings.device, tf32=settings.tf32)
    folder = evaluation_folder(Path(model_dir), reader_name(config, settings))
    last, evaluated, count, since = -1, -1, 0, time.monotonic()
    opened: EvaluationSet | None = None  # when the first checkpoint says of which classes
    total = config.train_config.num_steps if config.train_config else 0
    with EventFile(folder) as events:
        while True:
            began = time.monotonic()
            newest = _newest_step(Path(checkpoint_dir))
            if newest > last and (found := _restore(Path(checkpoint_dir), config)):
                detector, step = found
                opened = opened or open_evaluation(config, settings, detector.categories)
                seeing = at_scales(
                    optimized(detector.to(device), settings.precision, compile=settings.compile), settings.multi_scale
                )
                evaluation = evaluate_detector(seeing, opened.dataset, opened.plan, workers=settings.workers)
                write_evaluation_events(events, step, evaluation.metrics, evaluation.pictures, evaluated)
                heard(step, evaluation, "")
                last, evaluated, count = newest, step, count + 1
                if total and step >= total:
                    heard(step, None, f"step {step} of {total} is evaluated: the end")
                    return count
                if waiting.timeout:
                    time.sleep(max(began + waiting.wait_interval - time.monotonic(), 0.0))
                    since = time.monotonic()  # as in TF, what is slept through does not count
                    continue
            if time.monotonic() - since >= waiting.timeout:
                if not count:
                    raise CheckpointError(f"{checkpoint_dir}: no checkpoint in {waiting.timeout:g} s")
                heard(last, None, f"no new checkpoint in {waiting.timeout:g} s: the end")
                return count
            time.sleep(_POLL_SECONDS)


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
