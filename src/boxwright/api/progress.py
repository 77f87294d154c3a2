"""A progress bar for training from Python in a terminal or a notebook."""

from __future__ import annotations

from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from boxwright.training.log import Evaluated, Event, Scalars

_AP = "DetectionBoxes_Precision/mAP"


def is_watched(console: Console) -> bool:
    """Whether output goes to a terminal or a notebook, not to a file."""
    return console.is_terminal or console.is_jupyter


class ProgressBar:
    """Shows steps, time left, loss, and a line for each evaluation; notebooks without ipywidgets have lines alone."""

    def __init__(self, total: int, console: Console) -> None:
        """Create the bar, hidden until the first step.

        Args:
            total: The number of steps.
            console: Where it is shown.
        """
        columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[loss]}"))
        # Rich draws a notebook's bar with ipywidgets; without them it would warn at every step.
        hidden = console.is_jupyter and find_spec("ipywidgets") is None
        self._progress = Progress(TextColumn("train"), *columns, console=console, transient=True, disable=hidden)
        self._total = total
        self._task: TaskID | None = None  # starts with the first step, so that an earlier error leaves no bar

    def on_event(self, step: int, event: Event) -> None:
        """Advance the bar, or print an evaluation's first metric."""
        if isinstance(event, Scalars) and "steps_per_sec" in event.values:
            loss = event.values.get("Loss/total_loss")
            text = "" if loss is None else f"loss {loss:.3f}"
            if self._task is None:
                self._task = self._progress.add_task("train", total=self._total, loss=text)
                self._progress.start()
            self._progress.update(self._task, completed=step, loss=text)
        elif isinstance(event, Evaluated) and event.metrics:
            name = _AP if _AP in event.metrics else next(iter(event.metrics))
            self._progress.console.print(
                f"step {step}: {name} {event.metrics[name]:.4f}", markup=False, highlight=False
            )

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()
