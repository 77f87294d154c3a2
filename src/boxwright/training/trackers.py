"""Experiment trackers of others: Weights & Biases, MLflow; each through its own library."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from boxwright.base.errors import TrainingError
from boxwright.base.files import write_whole


class Tracker(Protocol):
    """Takes a run's numbers."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers."""
        ...

    def close(self) -> None:
        """End the run there."""
        ...


class _WeightsAndBiases:
    def __init__(self, library: Any, model_dir: Path, config_text: str) -> None:
        # Kept beside the checkpoints, so that a resumed run resumes there too.
        note = model_dir / "wandb_run_id"
        if not note.is_file():
            write_whole(note, uuid4().hex)
        self._run = library.init(
            project="boxwright",
            name=model_dir.resolve().name,
            id=note.read_text(encoding="utf-8"),
            resume="allow",
            dir=str(model_dir),
            config={"pipeline_config": config_text},
        )
        # Its own count of steps never goes back, and evaluations may be known after later steps.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    def __init__(self, library: Any, model_dir: Path, config_text: str) -> None:
        self._library = library
        library.set_experiment("boxwright")
        note = model_dir / "mlflow_run_id"
        known = note.read_text(encoding="utf-8").strip() if note.is_file() else None
        run = library.start_run(run_id=known, run_name=None if known else model_dir.resolve().name)
        write_whole(note, run.info.run_id)
        library.log_text(config_text, "pipeline.config")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        # What MLflow allows in a metric's name; COCO's have @ and parentheses.
        allowed = {re.sub(r"[^/\w.\- ]", "_", name): value for name, value in values.items()}
        self._library.log_metrics(allowed, step=step)

    def close(self) -> None:
        self._library.end_run()


_TRACKERS: dict[str, Callable[[Any, Path, str], Tracker]] = {"wandb": _WeightsAndBiases, "mlflow": _MLflow}


def open_tracker(name: str, model_dir: Path, config_text: str) -> Tracker:
    """Open a tracker.

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
