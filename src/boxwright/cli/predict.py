"""`boxwright predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from boxwright.cli.console import console, count_progress

__all__ = ["predict_command"]


def predict_command(
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    model_dir: Annotated[
        Path,
        typer.Option(
            "--model_dir",
            "--checkpoint",
            help="A run's folder, one of its checkpoints, or a TF2 checkpoint or SavedModel.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for pictures and detections.json.")],
    pipeline_config_path: Annotated[
        Path | None,
        typer.Option(
            "--pipeline_config_path",
            "--config",
            help="The model's configuration; a TF2 checkpoint needs it unless pipeline.config lies beside or above it.",
        ),
    ] = None,
    min_score: Annotated[
        float, typer.Option("--min_score", min=0.0, max=1.0, help="Leave out what scores less.")
    ] = 0.5,
    multi_scale: Annotated[
        str, typer.Option("--multi_scale", help="Look at many sizes and mirror images, and vote: as refinedet320-voc.")
    ] = "",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, or auto for a GPU where there is one.")] = "auto",
) -> None:
    """Detect objects in images: a picture of each, and COCO-style JSON."""
    from boxwright.checkpoints.restore import restore_detector
    from boxwright.config.load import load_config
    from boxwright.inference.predict import find_images, predict_files
    from boxwright.models.detector import usable_device
    from boxwright.models.multi_scale import at_scales

    config = load_config(pipeline_config_path) if pipeline_config_path else None
    detector, _, _ = restore_detector(model_dir, config=config)
    detector.to(usable_device(device))
    files = find_images(images)
    rows = predict_files(
        at_scales(detector, multi_scale), files, out, min_score=min_score, progress=count_progress("predict")
    )
    console.print(f"{len(rows)} objects in {len(files)} images; pictures and detections.json: {out}", markup=False)
