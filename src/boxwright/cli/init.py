"""`boxwright init`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boxwright.base.read_settings import ReadSettings
from boxwright.cli.console import console, print_json, suggest, track_progress
from boxwright.cli.options import JsonOption, require_data
from boxwright.training.autoconfig.choices import InitSettings

if TYPE_CHECKING:
    from boxwright.training.autoconfig.choices import Choice


def init_command(
    settings: InitSettings,
    reading: ReadSettings,
    data: Annotated[
        str,
        typer.Argument(
            help="A folder or file of annotated images: YOLO, COCO, Roboflow's exports of both, Pascal VOC, Open Images, "
            "TFRecords, shards of WebDataset or Parquet (also an address)."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Where to write the configuration; its other files go beside it.")
    ] = Path("pipeline.config"),
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Read annotated images and write a configuration that trains a detector on them.

    It recognizes the format, splits data without a split (near-duplicates stay together), and chooses input size,
    anchors, batch, length and augmentation. Nothing is overwritten without --force; a second run writes the same bytes.
    """
    require_data(data)
    from boxwright.training.autoconfig.start import init_config

    settings = replace(settings, reading=reading)
    started = init_config(data, out, settings, force=force, progress=track_progress)
    print_choices(started.choices)
    if as_json:
        choices = [asdict(choice) for choice in started.choices]
        print_json({"files": [str(file) for file in started.files], "choices": choices})
    console.print(f"written: {', '.join(map(str, started.files))}")
    suggest("train", "--config", out, "--model_dir", "model")


def print_choices(choices: Sequence[Choice]) -> None:
    """Print what was chosen and why: two columns, which leave long lines room in narrow terminals."""
    from rich.table import Column, Table

    if not choices:
        return
    columns = (Column(no_wrap=True), Column(overflow="fold"))
    table = Table(*columns, box=None, show_header=False, padding=(0, 2, 0, 0))
    for choice in choices:
        table.add_row(choice.what, "  ".join(filter(None, (choice.chosen, choice.why))))
    # The console's soft wrapping would keep the last column from folding.
    console.print(table, soft_wrap=False)
