"""Experiment trackers of others: Weights & Biases, MLflow; each through its own library."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from boxwright.base.errors import TrainingError
from boxwright.base.files import write_whole
from boxwright.evaluation.events import evaluation_folder
from boxwright.training.log import Evaluated, Event, Listener, Scalars


class TrackerListener:
    """Passes numbers to an experiment tracker."""

    def __init__(self, write: Callable[[int, Mapping[str, float]], object], close: Callable[[], None]) -> None:
        """Remember the tracker's functions: one that takes a step and its numbers, and one that ends the run there."""
        self._write, self.close = write, close

    def on_event(self, step: int, event: Event) -> None:
        """Pass the numbers to the tracker."""
        if isinstance(event, Scalars) and event.progress:
            self._write(step, event.values)
        elif isinstance(event, Evaluated):
            folder = evaluation_folder(Path(), event.name)
            self._write(step, {f"{folder}/{tag}": value for tag, value in event.numbers.items()})


def _open_wandb(library: Any, model_dir: Path, config_text: str) -> TrackerListener:
    # Kept beside the checkpoints, so that a resumed run resumes there too.
    note = model_dir / "wandb_run_id"
    if not note.is_file():
        write_whole(note, uuid4().hex)
    run = library.init(
        project="boxwright",
        name=model_dir.resolve().name,
        id=note.read_text(encoding="utf-8"),
        resume="allow",
        dir=str(model_dir),
        config={"pipeline_config": config_text},
    )
    # Its own count of steps never goes back, and evaluations may be known after later steps.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return TrackerListener(lambda step, values: run.log({**values, "step": step}), run.finish)


def _open_mlflow(library: Any, model_dir: Path, config_text: str) -> TrackerListener:
    library.set_experiment("boxwright")
    note = model_dir / "mlflow_run_id"
    known = note.read_text(encoding="utf-8").strip() if note.is_file() else None
    run = library.start_run(run_id=known, run_name=None if known else model_dir.resolve().name)
    write_whole(note, run.info.run_id)
    library.log_text(config_text, "pipeline.config")

    def write(step: int, values: Mapping[str, float]) -> None:
        # What MLflow allows in a metric's name; COCO's have @ and parentheses.
        allowed = {re.sub(r"[^/\w.\- ]", "_", name): value for name, value in values.items()}
        library.log_metrics(allowed, step=step)

    return TrackerListener(write, library.end_run)


_TRACKERS: dict[str, Callable[[Any, Path, str], TrackerListener]] = {"wandb": _open_wandb, "mlflow": _open_mlflow}


def open_tracker(name: str, model_dir: Path, config_text: str) -> Listener:
    """Return a listener that passes numbers to a tracker.

    Args:
        model_dir: The run's folder, whose name the run has there.

    Raises:
        TrainingError: As `check_tracker`.
    """
    return _TRACKERS[name](check_tracker(name), model_dir, config_text)


def check_tracker(name: str) -> Any:
    """Import a tracker's library.

    Raises:
        TrainingError: Where the name is not known or the library is not installed.
    """
    if name not in _TRACKERS:
        raise TrainingError(f"track {name}: not known; known: {', '.join(_TRACKERS)}")
    try:
        return import_module(name)
    except ImportError:
        raise TrainingError(f"track {name}: the library is not installed: pip install 'boxwright[{name}]'") from None
