"""`boxwright init`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boxwright.autoconfig.wishes import Wishes
from boxwright.cli.console import console, count_progress
from boxwright.cli.paths import require_data

if TYPE_CHECKING:
    from boxwright.autoconfig.start import Started

__all__ = ["init_command", "print_started"]


def init_command(
    wishes: Wishes,
    data: Annotated[
        str,
        typer.Argument(
            help="A folder or file of annotated pictures: YOLO, COCO, Roboflow's exports of both, Pascal VOC, Open Images, "
            "TFRecords."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The configuration; its other files lie beside it.")] = Path(
        "pipeline.config"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there already.")] = False,
) -> None:
    """Look at annotated pictures and write a configuration that trains a detector on them.

    It recognizes the format, splits what comes unsplit (pictures that are nearly the same stay together), and chooses
    input size, anchors, batch, length and augmentation. Nothing is overwritten without --force; run twice, it writes
    the same bytes.
    """
    require_data(data)
    from boxwright.autoconfig.start import init_config

    def progress(what: str, items: Iterable[int]) -> Iterable[int]:
        return count_progress(what)(items)

    started = init_config(data, out, wishes, force=force, progress=progress)
    print_started(started)
    console.print(f"next: boxwright train --config {out} --model_dir model", markup=False)


def print_started(started: Started) -> None:
    """Print what was chosen and why, and what was written."""
    from rich.table import Column, Table

    table = Table(Column(no_wrap=True), Column(no_wrap=True), Column(overflow="fold"), box=None, show_header=False)
    for choice in started.choices:
        table.add_row(choice.what, choice.chosen, choice.why)
    console.print(table, markup=False, soft_wrap=False)
    console.print(f"written: {', '.join(map(str, started.files))}", markup=False)
