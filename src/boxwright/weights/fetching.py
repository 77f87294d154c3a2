"""How weights are fetched: into which cache, over which connection, and what is shown of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from boxwright.base.files import cache_folder
from boxwright.weights.download import Connection, Progress

_FOLDER, OFFLINE = "BOXWRIGHT_WEIGHTS", "BOXWRIGHT_OFFLINE"


def weights_cache() -> Path:
    """Return the folder of fetched weights, which may not exist yet."""
    return Path(os.environ.get(_FOLDER) or cache_folder() / "weights")


def is_offline() -> bool:
    """Return whether BOXWRIGHT_OFFLINE forbids any connection."""
    return os.environ.get(OFFLINE, "").lower() not in ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Fetching:
    """How weights are fetched.

    Attributes:
        cache: The folder; None for `weights_cache()`. What is on Hugging Face's hub has the hub's.
        connection: How servers are reached.
        again: Whether to fetch a file that is there, and accept another digest than the one recorded.
        console: Where the first fetch's line and progress go.
    """

    cache: Path | None = None
    connection: Connection = field(default_factory=Connection)
    again: bool = False
    console: Console | None = None

    @property
    def folder(self) -> Path:
        """The cache's folder, which may not exist yet."""
        return self.cache or weights_cache()

    def say(self, line: str) -> None:
        """Print a line."""
        self.output().print(line, markup=False, highlight=False, soft_wrap=True)

    def output(self) -> Console:
        """Return where lines and progress go: standard error, unless `console` says otherwise."""
        return self.console or Console(stderr=True)

    @contextmanager
    def bar(self, name: str) -> Iterator[Progress]:
        """Show a bar with rate and time left, on a terminal or in a notebook; yield what advances it."""
        console = self.output()
        columns = (BarColumn(20), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        # Rich draws a notebook's bar with ipywidgets, and warns without them.
        shows = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
        bar = Bar(TextColumn("{task.description}"), *columns, console=console, transient=True, disable=not shows)
        task = bar.add_task(name, total=None)
        with bar:
            yield lambda done, total: bar.update(task, completed=done, total=total)
