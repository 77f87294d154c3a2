"""What the verbs share: the console, progress, tables, errors in one line."""

from __future__ import annotations

import gc
import logging
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

if TYPE_CHECKING:
    from rich.table import Table

    from boxwright.evaluation.results import Evaluation

console = Console(highlight=False, soft_wrap=True, emoji=False)
errors = Console(highlight=False, soft_wrap=True, emoji=False, stderr=True)
T = TypeVar("T")


def count_progress(title: str) -> Callable[[Iterable[T]], Iterable[T]]:
    """Return a function that wraps a sized iterable."""
    from rich.progress import track

    return lambda items: track(items, description=title, console=console, transient=True)


@contextmanager
def importing() -> Iterator[None]:
    """Import without collecting garbage: hundreds of classes are made, and all of them stay."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def suggest(*words: object, when: str = "") -> None:
    """Print the command that is useful next.

    Args:
        *words: Of the command, without the program's name.
    """
    line = " ".join(word if word in _PLACES else shlex.quote(word) for word in map(str, words))
    console.print(f"next{when and f', {when}'}: boxwright {line}", markup=False)


# Words that stand for what a user fills in.
_PLACES = ("IMAGES",)


def progress_of(what: str, items: Iterable[int]) -> Iterable[int]:
    """Return items that show how far they are, under a title."""
    return count_progress(what)(items)


def metrics_table(metrics: dict[str, float]) -> Table:
    """Lay metrics out as a table."""
    from rich.table import Column, Table

    table = Table(Column(overflow="fold"), Column(no_wrap=True), show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4f}" if value >= 0 else "none to measure")
    return table


def print_evaluation(evaluation: Evaluation) -> None:
    """Print an evaluation's metrics, and why one is 0 or -1."""
    print_metrics(evaluation.metrics, evaluation.notes)


def print_metrics(metrics: dict[str, float], notes: Iterable[str]) -> None:
    """Print metrics as a table, and why values are absent."""
    console.print(metrics_table(metrics))
    for note in notes:
        console.print(note)


class LogLines(logging.Handler):
    """Prints what the library logs, as it is; warnings are marked as such."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        mark = "warning: " if record.levelno >= logging.WARNING else ""
        console.print(f"{mark}{record.getMessage()}", markup=False)


def show_log() -> None:
    """Let what the library logs be printed."""
    logger = logging.getLogger("boxwright")
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, LogLines) for handler in logger.handlers):
        logger.addHandler(LogLines())


def ap_line(metrics: dict[str, float]) -> str:
    """Return "AP 0.xxx AP50 0.xxx" where COCO's metrics are among them, else the first metric."""
    if "DetectionBoxes_Precision/mAP" not in metrics:
        name, value = next(iter(metrics.items()))
        return f"{name} {value:.3f}"
    return f"AP {metrics['DetectionBoxes_Precision/mAP']:.3f} AP50 {metrics['DetectionBoxes_Precision/mAP@.50IOU']:.3f}"
