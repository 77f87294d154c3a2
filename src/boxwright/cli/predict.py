"""`boxwright predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boxwright.cli.console import console, count_progress
from boxwright.cli.options import CheckpointOption
from boxwright.cli.paths import require_checkpoint
from boxwright.errors import ExportError
from boxwright.inference.settings import PredictionSettings
from boxwright.runtime.formats import RUNTIMES

if TYPE_CHECKING:
    from boxwright.inference.predict import Finder

__all__ = ["predict_command"]


Images = Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for pictures and detections.json.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--pipeline_config_path",
        "--config",
        help="The model's configuration; TensorFlow's checkpoints need it unless pipeline.config lies beside or above.",
    ),
]
LabelMap = Annotated[
    Path | None,
    typer.Option("--label_map", help="Names of the classes (.pbtxt), where the checkpoint's configuration finds none."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change the configuration first, as in --set model.ssd.post_processing.score_converter=SIGMOID."
    ),
]


def predict_command(
    settings: PredictionSettings,
    images: Images,
    model_dir: CheckpointOption,
    out: Out,
    pipeline_config_path: Config = None,
    label_map: LabelMap = None,
    set_: Set = None,
) -> None:
    """Detect objects in images: a picture of each, and COCO-style JSON."""
    from boxwright.inference.files import find_images
    from boxwright.inference.predict import predict_files

    files = find_images(images)
    detect = (
        _exported(model_dir, settings, bool(pipeline_config_path or label_map or set_))
        if model_dir.suffix in RUNTIMES
        else _trained(model_dir, settings, pipeline_config_path, label_map, set_ or [])
    )
    rows = predict_files(detect, files, out, settings, count_progress("predict"))
    console.print(f"{len(rows)} objects in {len(files)} images; pictures and detections.json: {out}", markup=False)


def _exported(path: Path, settings: PredictionSettings, changed: bool) -> Finder:
    """Open an exported file; it does without PyTorch, and cannot be changed."""
    from boxwright.runtime.exported import open_exported

    if changed or settings.multi_scale:
        raise ExportError(f"{path} is exported: its configuration, classes and scales are fixed; export it anew")
    return open_exported(path).detect


def _trained(
    model_dir: Path, settings: PredictionSettings, config_path: Path | None, label_map: Path | None, changes: list[str]
) -> Finder:
    require_checkpoint(model_dir)
    from boxwright.checkpoints.restore import restore_detector, stored_config
    from boxwright.config.load import load_config
    from boxwright.config.overrides import apply_override
    from boxwright.data.label_map import load_label_map
    from boxwright.models.detector import usable_device
    from boxwright.models.multi_scale import at_scales

    config = load_config(config_path) if config_path else None
    if changes:
        config = config or stored_config(model_dir)
        for change in changes:
            apply_override(config, change)
    names = load_label_map(label_map) if label_map else None
    detector, _, _ = restore_detector(model_dir, config=config, categories=names)
    if detector.categories is None:
        console.print("no label map was found: classes are numbers, counted from 1; name one by --label_map")
    detector.to(usable_device(settings.device))
    seeing = at_scales(detector, settings.multi_scale)
    return lambda images: [found.arrays() for found in seeing.detect(images)]
