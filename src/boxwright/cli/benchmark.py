"""`boxwright benchmark`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boxwright.base.errors import ConfigError
from boxwright.cli.benchmarking.settings import BenchmarkSettings
from boxwright.cli.console import console, count_progress, print_json
from boxwright.cli.options import JsonOption, require_checkpoint, source_path
from boxwright.config.preset import PREFIX
from boxwright.runtime.formats import EXPORTS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from boxwright.cli.benchmarking.facts import ModelCosts
    from boxwright.runtime.measure import Timing

    Pictures = list[NDArray[np.uint8]]

_DEFAULTS = BenchmarkSettings()
_WIDTHS = (7, 10, 10, 10, 10, 11, 9, 10)  # of the table's columns: 77 characters in all


def benchmark_command(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Models to measure; the others are compared with the first. Run folders, checkpoints, exported .onnx, "
            ".xml, .tflite or .pt2 files, or configurations (random weights, so suppression costs differ from a "
            "trained model's)."
        ),
    ],
    batch: Annotated[list[int] | None, typer.Option("--batch", min=1, help="Batch size; may be repeated.")] = None,
    settings: BenchmarkSettings = _DEFAULTS,
    images: Annotated[
        list[Path] | None,
        typer.Option("--images", help="Images, or folders of them; default: synthetic shapes, 640×480."),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            help="Another model, such as torchvision:retinanet_resnet50_fpn, or with @640 appended for inputs of that "
            "side; random weights. May be repeated.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also write all numbers to this file, as JSON.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Measure latency and images per second, from images to detections, in interleaved rounds of one process."""
    from boxwright.cli.benchmarking.contenders import open_contenders, time_contenders
    from boxwright.runtime.measure import load

    names = [*models, *(compare or [])]
    # Results are kept by name.
    if len(set(names)) < len(names):
        raise ConfigError("the same model is named twice")
    for name in names:
        if as_json and name.endswith(".json"):
            raise ConfigError(f"--json prints all numbers; to write them to a file: --out {name}")
        if not (name.endswith((".config", *EXPORTS)) or name.startswith(("torchvision:", PREFIX))):
            require_checkpoint(source_path(name))
    contenders = open_contenders(names, settings)
    sizes = batch or [1, 8]
    # At both ends: another program may start, or stop, in between.
    before, busy = load()
    timings, counted = time_contenders(
        contenders, _pictures(images or []), count_progress("measure")(sizes), settings.rounds
    )
    after, busy_after = load()
    _print(timings, counted, sizes[0])
    threads = f"{settings.threads} threads" if settings.threads else "each runtime's own number of threads"
    console.print(f"{max(before, after):.1f} processes per core were running; {threads}; {settings.rounds} rounds")
    if busy or busy_after:
        console.print("the machine is busy: trust ratios and CPU time, not milliseconds")
    numbers = _numbers(timings, counted, settings.threads, (before, after))
    if as_json:
        print_json(numbers)
    if out is not None:
        _write(out, numbers)


def _pictures(paths: list[Path]) -> Pictures:
    """Return images of one size, so that they can share a batch."""
    from boxwright.data.image_io import read_image

    if not paths:
        from boxwright.data.shapes import ShapesDataset

        shapes = ShapesDataset(8, size=(480, 640))
        return [shapes[number].image for number in range(8)]
    from boxwright.inference.files import find_images

    read = [read_image(file, upright=True) for file in find_images(paths)[:64]]
    return [image for image in read if image.shape == read[0].shape]


def _print(timings: Sequence[Timing], counted: dict[str, ModelCosts], counted_at: int) -> None:
    titles = ("batch", "min", "median", "p95 ms", "CPU ms", "images/s", "ratio", "(min)")
    console.print("".join(f"{title:>{width}}" for title, width in zip(titles, _WIDTHS, strict=True)))
    for name in dict.fromkeys(timing.name for timing in timings):
        console.print(name)  # on a separate line: it may be as long as a path
        for timing in (timing for timing in timings if timing.name == name):
            numbers = (timing.least_ms, timing.median_ms, timing.p95_ms, timing.cpu_ms, timing.images_per_s)
            shares = (f"{timing.ratio:.2f}", f"({timing.ratio_least:.2f})")
            cells = (str(timing.batch), *(f"{number:.1f}" for number in numbers), *shares)
            console.print("".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)))
    for name, fact in counted.items():
        console.print(
            f"{name}: {fact.parameters / 1e6:.2f} million parameters; batch {counted_at}: {fact.gflops:.2f} GFLOPs per inference, "
            f"{fact.peak_mib:.0f} MiB peak memory",
        )


def _numbers(
    timings: Sequence[Timing], counted: dict[str, ModelCosts], threads: int, loads: tuple[float, float]
) -> dict[str, Any]:
    """Return all that was measured, and where, for JSON."""
    import platform

    from boxwright.runtime.optional import installed_versions

    return {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "versions": installed_versions("boxwright", "torch", "onnxruntime", "openvino", "ai-edge-litert"),
        "threads": threads,
        "load of a core, before and after": loads,
        "facts": {name: asdict(network_facts) for name, network_facts in counted.items()},
        "timings": [timing.to_dict() for timing in timings],
    }


def _write(path: Path, numbers: dict[str, Any]) -> None:
    from boxwright.base.files import write_whole

    write_whole(path, json.dumps(numbers, indent=1) + "\n")
    console.print(f"all numbers: {path}")
