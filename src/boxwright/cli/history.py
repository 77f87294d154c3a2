"""`boxwright history`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from boxwright.cli.console import console, suggest

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder; its training may still be going on.")]
Out = Annotated[Path | None, typer.Option("--out", help="The .png or .jpg to write; default: RUN/history.png.")]


def history_command(run: RunFolder, out: Out = None) -> None:
    """Write a picture of a run's curves: its loss, and average precision where it was evaluated, over the steps."""
    from boxwright.api.run import Run

    path = out or run / "history.png"
    # The log alone is read, and is there before the first checkpoint, by which the step would be known.
    Run(run, step=0).plot_history(path)
    console.print(f"history: {path}")
    suggest("monitor", run)
