"""A bar that fits its line: what matters most first, and of the rest what there is room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from boxwright.cli.console import console

_LEAST_BAR, _MOST_BAR = 6, 24
_ESSENTIAL = 5  # count, rate, time gone by, time left, loss
_REMEMBERED_S = 600.0  # a log line of a slow run comes every few minutes


class _Numbers(ProgressColumn):
    """Count, rate, time gone by, time left, then a task's own numbers, as many as a width has room for."""

    max_refresh = None

    def __init__(self, width: int) -> None:
        super().__init__(Column(no_wrap=True))
        self._width = width

    def render(self, task: Task) -> Text:
        """Return them in one line."""
        count = f"{task.completed:.0f}/{'…' if task.total is None else format(task.total, '.0f')}"
        rate, numbers = task.fields.get("rate", ""), task.fields.get("numbers", ())
        gone, left = _clock(task.elapsed), _clock(task.fields.get("left", task.time_remaining))
        spelled = [count, rate, gone, f"{left} left", *numbers]
        if len(" ".join(filter(None, spelled[:_ESSENTIAL]))) > self._width:
            spelled = [count, rate.replace("images/s", "img/s"), f"{gone}<{left}", *numbers]
        return Text(_fitting(spelled, self._width))


def _fitting(parts: Sequence[str], width: int) -> str:
    """Join parts until there is no more room: by one blank, where two leave no room for what matters most."""
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
    """Show a bar whose tasks have fields `rate`, a text; `numbers`, texts; and `left`, seconds, where they are known."""
    bar = min(max(on.width // 8, _LEAST_BAR), _MOST_BAR)
    columns = (BarColumn(bar_width=bar), _Numbers(on.width - bar - 1))
    with Progress(*columns, console=on, transient=True, speed_estimate_period=_REMEMBERED_S) as progress:
        yield progress
