"""`boxwright benchmark`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boxwright.cli.console import console, count_progress
from boxwright.cli.paths import require_checkpoint
from boxwright.errors import ConfigError
from boxwright.runtime.formats import EXPORTS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from boxwright.runtime.measure import Timing

    Pictures = list[NDArray[np.uint8]]
    Finder = Callable[[Pictures], Any]

__all__ = ["benchmark_command"]


def benchmark_command(
    models: Annotated[
        list[Path],
        typer.Argument(
            help="What to measure, the first being what others are compared with: runs' folders, checkpoints, exported "
            ".onnx, .xml or .pt2 files, or configurations (with fresh weights, whose suppression is not a trained one's)."
        ),
    ],
    batch: Annotated[
        list[int] | None, typer.Option("--batch", min=1, help="Pictures of a call; may be repeated.")
    ] = None,
    threads: Annotated[
        int, typer.Option("--threads", min=0, help="Threads of every backend; 0 for its own choice.")
    ] = 0,
    rounds: Annotated[int, typer.Option("--rounds", min=3, help="Calls of each, one a round, in turn.")] = 15,
    images: Annotated[
        list[Path] | None,
        typer.Option("--images", help="Pictures, or folders of them; without, made-up shapes, 640×480."),
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where to write all numbers.")] = None,
) -> None:
    """Measure latency and pictures a second, from pictures to detections; in interleaved rounds of one process."""
    from boxwright.runtime.measure import load, measure

    pictures = _pictures(images or [])
    finders = {str(path): _finder(path, threads) for path in models}
    if len(finders) < len(models):
        raise ConfigError("a model is named twice")
    before, busy = load()
    timings: list[Timing] = []
    for size in count_progress("measure")(batch or [1, 8]):
        given = [pictures[number % len(pictures)] for number in range(size)]
        calls = {name: _call(find, given) for name, find in finders.items()}
        timings += measure(calls, size, rounds)
    after, busy_after = load()
    _print(timings)
    console.print(f"{max(before, after):.1f} processes ran on each core, {threads or 'any'} threads, {rounds} rounds")
    if busy or busy_after:
        console.print("the machine is busy: trust ratios and processor time, not milliseconds")
    if json_path is not None:
        _write(json_path, timings, threads, (before, after))


def _call(find: Finder, given: Pictures) -> Callable[[], Any]:
    return lambda: find(given)


def _pictures(paths: list[Path]) -> Pictures:
    """Return pictures of one size, so that they share a batch."""
    from boxwright.data.image_io import read_image

    if not paths:
        from boxwright.data.shapes import ShapesDataset

        shapes = ShapesDataset(8, size=(480, 640))
        return [shapes[number].image for number in range(8)]
    from boxwright.inference.files import find_images

    read = [read_image(file, upright=True) for file in find_images(paths)[:64]]
    return [image for image in read if image.shape == read[0].shape]


def _finder(path: Path, threads: int) -> Finder:
    if path.suffix in EXPORTS:
        from boxwright.inference.finders import open_export

        return open_export(path, threads).detect
    import torch

    if threads:
        torch.set_num_threads(threads)
    if path.suffix == ".config":
        from boxwright.builders.detector import build_detector
        from boxwright.config.load import load_config

        fresh = build_detector(load_config(path)).eval()
        return lambda images: fresh.detect(images)
    require_checkpoint(path)
    from boxwright.checkpoints.restore import restore_detector

    detector, _, _ = restore_detector(path)
    return lambda images: detector.detect(images)


def _print(timings: Sequence[Timing]) -> None:
    from rich.table import Column, Table

    names = ("batch", "least", "median", "p95 ms", "CPU ms", "images/s", "ratio", "(least)")
    columns = [Column(name, justify="right") for name in names]
    table = Table(Column("model", overflow="fold"), *columns, box=None, padding=(0, 2, 0, 0))
    for one in timings:
        numbers = (one.least_ms, one.median_ms, one.p95_ms, one.cpu_ms, one.images_per_s)
        shares = (f"{one.ratio:.2f}", f"({one.ratio_least:.2f})")
        table.add_row(one.name, str(one.batch), *(f"{number:.1f}" for number in numbers), *shares)
    console.print(table)


def _write(path: Path, timings: Sequence[Timing], threads: int, loads: tuple[float, float]) -> None:
    import platform

    from boxwright.files import write_whole
    from boxwright.runtime.optional import installed_versions

    content = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "versions": installed_versions("boxwright", "torch", "onnxruntime", "openvino", "ai-edge-litert"),
        "threads": threads,
        "load of a core, before and after": loads,
        "timings": [one.to_dict() for one in timings],
    }
    write_whole(path, json.dumps(content, indent=1) + "\n")
    console.print(f"all numbers: {path}", markup=False)
