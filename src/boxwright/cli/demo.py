"""`boxwright demo`: a first minute that shows a detector at work, and a first training."""

from __future__ import annotations

import math
import shlex
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from boxwright.base.errors import ConfigError
from boxwright.cli.console import console, suggest_page
from boxwright.cli.demo_shapes import MadeUpSettings, run_made_up_demo

_MINUTES = 2.0

Out = Annotated[Path, typer.Option("--out", help="Folder for data, pictures, reports and models; it is created.")]
Train = Annotated[
    bool, typer.Option("--train", help="Train a detector from scratch; evaluate, report, export and compare it.")
]
Minutes = Annotated[
    float | None, typer.Option("--minutes", min=0, help="With --train: minutes of training; default: 2.")
]
OpenPage = Annotated[bool, typer.Option("--open", help="Open the report in a browser.")]
Shapes = Annotated[
    bool, typer.Option("--shapes", help="Train and evaluate on generated images of shapes, written as TFRecords.")
]
Masks = Annotated[bool, typer.Option("--masks", help="The same with masks of the shapes, by a small Mask R-CNN.")]
Keypoints = Annotated[
    bool, typer.Option("--keypoints", help="The same with stick figures and their joints, by a CenterNet.")
]


def demo_command(
    out: Out = Path("demo"),
    *,
    train: Train = False,
    minutes: Minutes = None,
    open_page: OpenPage = False,
    shapes: Shapes = False,
    masks: Masks = False,
    keypoints: Keypoints = False,
    generated: MadeUpSettings,
) -> None:
    """Detect blood cells with the detector in the package, and write a report; or train one.

    The package contains the detector, and pictures to train and to test it; nothing is downloaded.
    """
    demos = (("train", train), ("shapes", shapes), ("masks", masks), ("keypoints", keypoints))
    chosen = [name for name, given in demos if given]
    _refuse_contradictions(chosen, minutes, generated, open_page=open_page)
    if shapes or masks or keypoints:
        from boxwright.cli.demo_data import FIGURES, MASKS, SHAPES

        run_made_up_demo(out, {"shapes": SHAPES, "masks": MASKS, "keypoints": FIGURES}[chosen[0]], generated)
        return
    from boxwright.cli.demo_cells import detect_blood_cells, train_on_blood_cells

    report = train_on_blood_cells(out, minutes or _MINUTES) if train else detect_blood_cells(out)
    if report is None:
        return
    if not train:
        words = () if out == Path("demo") else ("--out", str(out))
        console.print(f"to train such a detector: boxwright {shlex.join(['demo', '--train', *words])}")
    if open_page and not webbrowser.open(report.resolve().as_uri()):
        console.print("no browser could be started here")
    suggest_page(report)


def _refuse_contradictions(
    chosen: list[str], minutes: float | None, generated: MadeUpSettings, *, open_page: bool
) -> None:
    """Raise a ConfigError for options that do not go together."""
    if len(chosen) > 1:
        raise ConfigError(f"--{' and --'.join(chosen)}: each is a demo of its own; choose one")
    if minutes is not None and "train" not in chosen:
        raise ConfigError("--minutes is the length of a training on blood cells: add --train")
    if minutes is not None and not 0 < minutes < math.inf:
        raise ConfigError(f"--minutes {minutes:g}: expected a finite number above 0")
    made_up = chosen and chosen[0] != "train"
    if generated != MadeUpSettings() and not made_up:
        raise ConfigError(
            "--data_only, --num_train_steps, --train_images and --val_images are for generated images: add --shapes, "
            "--masks or --keypoints"
        )
    if open_page and made_up:
        raise ConfigError("--open: the demo of generated images writes no report; remove it")
