"""Shared by the commands: the console, progress, tables, log lines."""

from __future__ import annotations

import gc
import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.text import Text

from boxwright.base.text import visible, visible_line, without_secrets

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table

    from boxwright.evaluation.results import Evaluation

# Soft wrapping leaves long lines to the terminal: Rich's own breaks would cut paths that users copy, in files too.


class TextConsole(Console):
    """A console for texts of others: control characters are shown instead of passed on, and words in brackets are words.

    Rich would take such words for styles and links, and end with an error at a class named [/x]. Only on a terminal are
    lines drawn again: FORCE_COLOR, which a notebook's kernel sets, would write every frame of a progress bar into a file.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, soft_wrap=True, emoji=False, markup=False, **options)

    @property
    def is_terminal(self) -> bool:
        """Whether what is printed goes to a terminal."""
        return super().is_terminal and self.file.isatty()

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects, of which a str may have several lines."""
        super().print(*(Text(item) if isinstance(item, str) else item for item in objects), **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a cell of a table in one line: a name of two would look like two rows. A `Text` may have several."""
        return super().render_str(visible_line(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield what is printed, also of the cells of tables; Rich's own controls, as of progress bars, are kept."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


console = TextConsole()
errors = TextConsole(stderr=True)
T = TypeVar("T")


def reset_output() -> None:
    """Print everything to standard output, as a command does without `--json` and `--quiet`."""
    console.stderr, console.quiet = False, False


def print_json_only(value: bool) -> bool:  # noqa: FBT001  # an option's value, as Typer hands it over
    """Leave standard output to JSON if `--json` is given: everything else goes to standard error."""
    console.stderr = value
    return value


def print_problems_only(value: bool) -> bool:  # noqa: FBT001  # as above
    """Print nothing but warnings, errors and JSON if `--quiet` is given."""
    console.quiet = value
    return value


@contextmanager
def only_problems() -> Iterator[None]:
    """Print nothing but warnings, errors and JSON within the block, as a command does with `--quiet`."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before


def print_json(content: Any) -> None:
    """Print a command's result for programs to standard output."""
    print_document(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def print_document(text: str) -> None:
    r"""Print a whole JSON or text file to standard output, with what a terminal would obey as \uXXXX."""
    print(visible(text), end="")


def count_progress(title: str) -> Callable[[Iterable[T]], Iterable[T]]:
    """Return a function that wraps a sized iterable to show its progress."""
    from rich.progress import track

    # In a file a bar that is removed would leave an empty line.
    hidden = not console.is_terminal
    return lambda items: track(items, description=title, console=console, transient=True, disable=hidden)


@contextmanager
def importing() -> Iterator[None]:
    """Import with the garbage collector off; where PyTorch was not imported before, exclude what is alive from later runs.

    Thousands of classes are created, and all of them stay: collections took 0.6 to 1 s of a training's start.
    """
    collecting, first = gc.isenabled(), "torch" not in sys.modules
    gc.disable()
    try:
        yield
    finally:
        if first:  # at a later call, objects that can become garbage would be excluded too
            gc.freeze()
        if collecting:
            gc.enable()


def suggest(*words: object, when: str = "") -> None:
    """Print the command, given as words without the program's name, that is useful next."""
    line = " ".join(word if word in _PLACES else shlex.quote(word) for word in map(str, words))
    console.print(f"next{when and f', {when}'}: boxwright {line}")


def suggest_page(path: Path) -> None:
    """Print that a page, which was just written, is to be opened next."""
    console.print(f"next: open {shlex.quote(str(path))}")


# Placeholders that a user replaces.
_PLACES = ("IMAGES",)


def track_progress(what: str, items: Iterable[int]) -> Iterable[int]:
    """Return items that show their progress under a title."""
    return count_progress(what)(items)


def show_progress(items: Iterable[int], title: str) -> Iterable[int]:
    """Return items that show their progress under a title, for callers that name the items first."""
    return track_progress(title, items)


def metrics_table(metrics: dict[str, float]) -> Table:
    """Return metrics as a table, by the names that people use; metrics.json and `--json` have TensorFlow's."""
    from rich.table import Column, Table

    from boxwright.report.metric_words import metric_text, readable_name

    table = Table(Column(overflow="fold"), Column(no_wrap=True), show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in metrics.items():
        table.add_row(readable_name(name), metric_text(value))
    return table


def print_evaluation(evaluation: Evaluation) -> None:
    """Print an evaluation's metrics and notes."""
    print_metrics(evaluation.metrics, evaluation.notes)


def print_metrics(metrics: dict[str, float], notes: Iterable[str]) -> None:
    """Print metrics as a table, and notes on missing values."""
    console.print(metrics_table(metrics))
    for note in notes:
        console.print(note)


class LogLines(logging.Handler):
    """Prints the library's log; warnings are marked."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        text = without_secrets(record.getMessage())
        if record.levelno < logging.WARNING:
            console.print(text)
        else:
            # A quiet console would swallow it.
            (errors if console.quiet else console).print(f"warning: {text}")


def show_log() -> None:
    """Print the library's log to the console."""
    logger = logging.getLogger("boxwright")
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, LogLines) for handler in logger.handlers):
        logger.addHandler(LogLines())
        # It logs what it raises, too, with tracebacks.
        logging.getLogger("gcsfs").addHandler(logging.NullHandler())


def ap_line(metrics: dict[str, float]) -> str:
    """Return "AP 0.xxx AP50 0.xxx" for COCO's metrics, else the first metric."""
    if "DetectionBoxes_Precision/mAP" not in metrics:
        name, value = next(iter(metrics.items()))
        return f"{name} {value:.3f}"
    return f"AP {metrics['DetectionBoxes_Precision/mAP']:.3f} AP50 {metrics['DetectionBoxes_Precision/mAP@.50IOU']:.3f}"
