"""`boxwright replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from boxwright.base.errors import CheckpointError
from boxwright.cli.console import console


def replay_command(
    folder: Annotated[Path, typer.Argument(help="The not-finite-STEP folder that training wrote in the run's folder.")],
) -> None:
    """Repeat a training step whose loss or gradient was not finite, and name the first non-finite tensor."""
    if not (folder / "step.pt").exists():
        raise CheckpointError(f"{folder / 'step.pt'}: no such checkpoint")
    from boxwright.training.forensics import replay_step

    replayed = replay_step(folder)
    for number, terms in enumerate(replayed["losses"]):
        text = "  ".join(f"{name} {'not finite' if value is None else f'{value:.4g}'}" for name, value in terms.items())
        console.print(f"process {number}: {text}" if len(replayed["losses"]) > 1 else text)
    for line in replayed["all"][:20]:
        console.print(f"  {line}")
    console.print(f"first: {replayed['first']}")
    console.print(f"images with boxes: {folder / 'images'}")
