"""`boxwright export`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from boxwright.cli.console import console
from boxwright.cli.paths import require_checkpoint
from boxwright.errors import CheckpointError

__all__ = ["export_command"]


class Format(str, Enum):
    """What weights are written as."""

    SAFETENSORS = "safetensors"
    TENSORFLOW = "tensorflow"


def export_command(
    source: Annotated[
        Path, typer.Argument(help="A run's folder or one of its checkpoints, a TF2 checkpoint or a SavedModel.")
    ],
    target: Annotated[
        Path, typer.Argument(help="What to write: *.safetensors, or the prefix of a TF2 checkpoint, as out/ckpt-1.")
    ],
    format: Annotated[
        Format | None, typer.Option("--format", help="What to write it as; without, what the target's name says.")
    ] = None,
    pipeline_config_path: Annotated[
        Path | None,
        typer.Option("--pipeline_config_path", "--config", help="For weights of TF2: the model's configuration."),
    ] = None,
) -> None:
    """Write a detector's weights for others: safetensors, or a TensorFlow 2 checkpoint with its configuration."""
    require_checkpoint(source)
    from boxwright.checkpoints.export_weights import write_description, write_safetensors, write_tensorflow_checkpoint
    from boxwright.checkpoints.restore import restore_detector
    from boxwright.config.load import load_config

    chosen = format or (Format.SAFETENSORS if target.suffix == ".safetensors" else Format.TENSORFLOW)
    config = load_config(pipeline_config_path) if pipeline_config_path else None
    detector, config, step = restore_detector(source, config=config)
    if target.is_dir():
        raise CheckpointError(f"{target} is a folder; name a checkpoint in it, such as {target}/ckpt-{step}")
    if chosen is Format.SAFETENSORS:
        write_safetensors(detector, target)
    else:
        write_tensorflow_checkpoint(detector, target, step=step)
        write_description(target.parent, config, detector.categories)
    console.print(f"{len(list(detector.network.parameters()))} parameters at step {step}: {target}", markup=False)
