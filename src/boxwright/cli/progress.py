"""A progress bar that fits its line: the most important numbers first, others if there is room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from boxwright.cli.console import console

_LEAST_BAR, _MOST_BAR = 6, 24
_ESSENTIAL = 5  # count, rate, elapsed time, time left, loss
_REMEMBERED_S = 600.0  # a slow run logs a line every few minutes


class _NumbersColumn(ProgressColumn):
    """Count, rate, elapsed time, time left, then a task's own numbers, as many as fit a width."""

    max_refresh = None

    def __init__(self, width: int) -> None:
        super().__init__(Column(no_wrap=True))
        self._width = width

    def render(self, task: Task) -> Text:
        """Return the numbers in one line."""
        count = f"{task.completed:.0f}/{'…' if task.total is None else format(task.total, '.0f')}"
        rate, numbers = task.fields.get("rate", ""), task.fields.get("numbers", ())
        elapsed, left = _clock(task.elapsed), _clock(task.fields.get("left", task.time_remaining))
        parts = [count, rate, elapsed, f"{left} left", *numbers]
        if len(" ".join(filter(None, parts[:_ESSENTIAL]))) > self._width:
            parts = [count, rate.replace("images/s", "img/s"), f"{elapsed}<{left}", *numbers]
        return Text(_fitting(parts, self._width))


def _fitting(parts: Sequence[str], width: int) -> str:
    """Join the parts that fit: with two spaces, or one if the essential parts would not fit with two."""
    parts = [part for part in parts if part]
    gap = "  " if len("  ".join(parts[:_ESSENTIAL])) <= width else " "
    while len(gap.join(parts)) > width and parts:
        parts = parts[:-1]
    return gap.join(parts)


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


@contextmanager
def progress_bar(on: Console = console) -> Iterator[Progress]:
    """Show a bar; its tasks' fields are `rate` (text), `numbers` (texts) and, if known, `left` (seconds)."""
    bar = min(max(on.width // 8, _LEAST_BAR), _MOST_BAR)
    columns = (BarColumn(bar_width=bar), _NumbersColumn(on.width - bar - 1))
    # In a file a bar that is removed would leave an empty line.
    hidden = not on.is_terminal
    with Progress(
        *columns, console=on, transient=True, speed_estimate_period=_REMEMBERED_S, disable=hidden
    ) as progress:
        yield progress
