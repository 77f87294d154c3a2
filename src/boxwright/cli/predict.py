"""`boxwright predict`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boxwright.cli.console import console, progress_bar
from boxwright.cli.options import CheckpointOption
from boxwright.cli.paths import require_checkpoint
from boxwright.errors import DataError, ExportError
from boxwright.inference.settings import PredictionSettings
from boxwright.runtime.formats import RUNTIMES

if TYPE_CHECKING:
    from rich.progress import Progress

    from boxwright.inference.predict import Predicted
    from boxwright.inference.sources import Frame, Source
    from boxwright.types import Finder

__all__ = ["predict_command"]

_WINDOW = 30  # pictures over which their rate is taken

Sources = Annotated[
    list[str],
    typer.Argument(
        help="Images and films: files, folders, patterns ('shots/**/*.jpg'), lists (@files.txt); camera:0; rtsp://HOST/PATH"
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for pictures, films and detections.json.")]
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
    sources: Sources,
    model_dir: CheckpointOption,
    out: Out,
    pipeline_config_path: Config = None,
    label_map: LabelMap = None,
    set_: Set = None,
) -> None:
    """Detect objects in images, films and streams: pictures and films of them, and COCO-style JSON."""
    from boxwright.inference.predict import predict
    from boxwright.inference.sources import find_sources

    found = find_sources(sources)
    detect = (
        _exported(model_dir, settings, bool(pipeline_config_path or label_map or set_))
        if model_dir.suffix in RUNTIMES
        else _trained(model_dir, settings, pipeline_config_path, label_map, set_ or [])
    )
    with progress_bar() as bar:
        done = predict(detect, found, out, settings, _shown(bar, _count(found, settings)))
    if done.pictures == 0:
        raise DataError(f"{', '.join(sources)}: gave no picture")
    console.print(f"{done.objects} objects in {done.pictures} images; what was written: {out}", markup=False)
    if done.times.skipped:
        console.print(f"{done.times.skipped} pictures came faster than they could be looked at, and were left out")
    if settings.profile:
        _print_profile(done)


def _count(sources: list[Source], settings: PredictionSettings) -> int | None:
    """Return how many pictures there will be; None where nobody knows."""
    counts = [source.count() for source in sources]
    known = [count for count in counts if count is not None]
    total = sum(known) if len(known) == len(counts) else None
    return total if not settings.frames else min(settings.frames, total or settings.frames)


def _shown(bar: Progress, total: int | None) -> Callable[[Frame], None]:
    """Return what moves a bar, with the pictures of the last seconds a second."""
    task = bar.add_task("predict", total=total, numbers="")
    times: deque[float] = deque(maxlen=_WINDOW)

    def seen(_: Frame) -> None:
        times.append(time.monotonic())
        spent = times[-1] - times[0]
        bar.update(task, advance=1, numbers=f"{(len(times) - 1) / spent:.1f} images/s" if spent else "")

    return seen


def _print_profile(done: Predicted) -> None:
    from rich.table import Column, Table

    right = [Column(name, justify="right") for name in ("busy", "ms an image")]
    table = Table(Column("stage"), *right, box=None, padding=(0, 2, 0, 0))
    for name, seconds in done.times.busy.items():
        table.add_row(name, f"{seconds / done.times.seconds:.0%}", f"{1000 * seconds / max(done.pictures, 1):.1f}")
    console.print(table)
    console.print(f"{done.pictures / done.times.seconds:.1f} images a second")


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
