"""`boxwright predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from boxwright.cli.console import console, count_progress
from boxwright.inference.settings import PredictionSettings

__all__ = ["predict_command"]


Images = Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")]
ModelDir = Annotated[
    Path,
    typer.Option(
        "--model_dir", "--checkpoint", help="A run's folder, one of its checkpoints, or a TF2 checkpoint or SavedModel."
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for pictures and detections.json.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--pipeline_config_path",
        "--config",
        help="The model's configuration; a TF2 checkpoint needs it unless pipeline.config lies beside or above it.",
    ),
]


def predict_command(
    settings: PredictionSettings, images: Images, model_dir: ModelDir, out: Out, pipeline_config_path: Config = None
) -> None:
    """Detect objects in images: a picture of each, and COCO-style JSON."""
    from boxwright.checkpoints.restore import restore_detector
    from boxwright.config.load import load_config
    from boxwright.inference.predict import find_images, predict_files
    from boxwright.models.detector import usable_device

    config = load_config(pipeline_config_path) if pipeline_config_path else None
    detector, _, _ = restore_detector(model_dir, config=config)
    detector.to(usable_device(settings.device))
    files = find_images(images)
    rows = predict_files(detector, files, out, settings, count_progress("predict"))
    console.print(f"{len(rows)} objects in {len(files)} images; pictures and detections.json: {out}", markup=False)
