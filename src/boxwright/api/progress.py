"""A bar that shows how far training is, for whoever calls it from Python in a terminal or a notebook."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from boxwright.training.log import Evaluated, Event, Scalars

_AP = "DetectionBoxes_Precision/mAP"


def is_watched(console: Console) -> bool:
    """Tell whether somebody sees a bar: in a terminal or a notebook, and not in a file."""
    return console.is_terminal or console.is_jupyter


class ProgressBar:
    """Shows steps, time left and loss, and a line for each evaluation."""

    def __init__(self, total: int, console: Console) -> None:
        """Remember how far it goes.

        Args:
            total: Steps in all.
            console: Where it is shown.
        """
        columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[loss]}"))
        self._progress = Progress(TextColumn("train"), *columns, console=console, transient=True)
        self._total = total
        self._task: TaskID | None = None  # begins with the first step, so that an error before it leaves no bar

    def hear(self, step: int, event: Event) -> None:
        """Move the bar, or print what an evaluation found."""
        if isinstance(event, Scalars) and "steps_per_sec" in event.values:
            loss = event.values.get("Loss/total_loss")
            told = "" if loss is None else f"loss {loss:.3f}"
            if self._task is None:
                self._task = self._progress.add_task("train", total=self._total, loss=told)
                self._progress.start()
            self._progress.update(self._task, completed=step, loss=told)
        elif isinstance(event, Evaluated) and event.metrics:
            name = _AP if _AP in event.metrics else next(iter(event.metrics))
            self._progress.console.print(
                f"step {step}: {name} {event.metrics[name]:.4f}", markup=False, highlight=False
            )

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()
