"""`boxwright benchmark`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boxwright.cli.console import console, count_progress
from boxwright.cli.paths import require_checkpoint
from boxwright.errors import ConfigError
from boxwright.runtime.formats import EXPORTS
from boxwright.settings import setting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from boxwright.models.detector import Detector
    from boxwright.runtime.measure import Timing
    from boxwright.training.contenders import Facts

    Pictures = list[NDArray[np.uint8]]

__all__ = ["benchmark_command"]

_TORCHVISION = "torchvision:"
_PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """How contenders are measured."""

    device: str = setting("auto", "Where PyTorch's models run: cpu, cuda, or auto for a GPU where there is one.")
    threads: int = setting(0, "Threads of every backend; 0 for its own choice.", least=0)
    rounds: int = setting(15, "Calls of each, one a round, in turn.", least=3)
    train: bool = setting(False, "Measure training steps, on pictures with eight made-up boxes each.")
    compile: bool = setting(False, "Measure PyTorch's networks compiled, too; a minute or more each.")
    precision: str = setting("float32", "With bfloat16, measure PyTorch's networks in that, too.")


_DEFAULTS = BenchmarkSettings()


@dataclass(frozen=True, eq=False)
class _Contender:
    """What is measured.

    Attributes:
        prepare: Makes of pictures what is called once a round.
        network: What PyTorch runs, whose operations and memory can be counted; None for an exported file.
        look: Makes of pictures an inference by it, in which operations are counted.
    """

    prepare: Callable[[Pictures], Callable[[], Any]]
    network: nn.Module | None = None
    look: Callable[[Pictures], Callable[[], Any]] | None = None


def benchmark_command(
    models: Annotated[
        list[str],
        typer.Argument(
            help="What to measure, the first being what others are compared with: runs' folders, checkpoints, exported "
            ".onnx, .xml, .tflite or .pt2 files, or configurations (with fresh weights, whose suppression is not a "
            "trained one's)."
        ),
    ],
    batch: Annotated[
        list[int] | None, typer.Option("--batch", min=1, help="Pictures of a call; may be repeated.")
    ] = None,
    settings: BenchmarkSettings = _DEFAULTS,
    images: Annotated[
        list[Path] | None,
        typer.Option("--images", help="Pictures, or folders of them; without, made-up shapes, 640×480."),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            help="Another, such as torchvision:retinanet_resnet50_fpn, or with @640 behind it, at inputs of that side; "
            "with fresh weights. May be repeated.",
        ),
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where to write all numbers.")] = None,
) -> None:
    """Measure latency and pictures a second, from pictures to detections; in interleaved rounds of one process."""
    from boxwright.runtime.measure import load

    names = [*models, *(compare or [])]
    if len(set(names)) < len(names):
        raise ConfigError("a model is named twice")
    contenders = _contenders(names, settings)
    sizes = batch or [1, 8]
    before, busy = load()
    timings, counted = _measured(contenders, _pictures(images or []), sizes, settings.rounds)
    after, busy_after = load()
    _print(timings, counted, sizes[0])
    threads = settings.threads or "any"
    console.print(f"{max(before, after):.1f} processes ran on each core, {threads} threads, {settings.rounds} rounds")
    if busy or busy_after:
        console.print("the machine is busy: trust ratios and processor time, not milliseconds")
    if json_path is not None:
        _write(json_path, timings, counted, settings.threads, (before, after))


def _contenders(names: Sequence[str], settings: BenchmarkSettings) -> dict[str, _Contender]:
    if settings.precision not in _PRECISIONS:
        raise ConfigError(f"--precision {settings.precision}: expected {' or '.join(_PRECISIONS)}")
    if settings.threads:
        _limit_threads(settings.threads, names)
    found: dict[str, _Contender] = {}
    for name in names:
        found |= _training(name, settings) if settings.train else _inference(name, settings)
    return found


def _measured(
    contenders: dict[str, _Contender], pictures: Pictures, sizes: Sequence[int], rounds: int
) -> tuple[list[Timing], dict[str, Facts]]:
    """Time all contenders at all batch sizes; count operations and memory at the first."""
    from boxwright.runtime.measure import measure

    timings: list[Timing] = []
    counted: dict[str, Facts] = {}
    for size in count_progress("measure")(sizes):
        given = [pictures[number % len(pictures)] for number in range(size)]
        calls = {name: one.prepare(given) for name, one in contenders.items()}
        timings += measure(calls, size, rounds)
        for name, one in contenders.items():
            if one.network is not None and name not in counted:
                counted[name] = _facts(one.network, calls[name], (one.look or one.prepare)(given))
    return timings, counted


def _facts(network: nn.Module, run: Callable[[], Any], look: Callable[[], Any]) -> Facts:
    from boxwright.training.contenders import facts

    return facts(network, run, look)


def _limit_threads(threads: int, names: Sequence[str]) -> None:
    if any(Path(name).suffix not in EXPORTS for name in names):
        import torch

        torch.set_num_threads(threads)


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


def _inference(name: str, settings: BenchmarkSettings) -> dict[str, _Contender]:
    """Return a model's contenders by name: as it is, compiled, in another precision."""
    if Path(name).suffix in EXPORTS:
        from boxwright.inference.finders import open_export

        find = open_export(Path(name), settings.threads).detect
        return {name: _Contender(lambda given: lambda: find(given))}
    if name.startswith(_TORCHVISION):
        from boxwright.models.detector import usable_device
        from boxwright.training.contenders import their_detection, torchvision_detector

        model = torchvision_detector(name.removeprefix(_TORCHVISION)).to(usable_device(settings.device))
        return {name: _Contender(lambda given: their_detection(model, given), model)}
    import torch

    plain = _detector(name, settings.device)
    found = {name: _ours(_detector(name, settings.device).optimize(), plain)}
    if settings.compile:
        found[f"{name}, compiled"] = _ours(_detector(name, settings.device).optimize(compile=True))
    if settings.precision == "bfloat16":
        found[f"{name}, bfloat16"] = _ours(_detector(name, settings.device).optimize(dtype=torch.bfloat16), plain)
    return found


def _ours(detector: Detector, plain: Detector | None = None) -> _Contender:
    """Return an optimized detector's inference; operations are counted in the plain one."""
    look = None if plain is None else lambda given: lambda: plain.detect(given)
    return _Contender(lambda given: lambda: detector.detect(given), plain, look)


def _training(name: str, settings: BenchmarkSettings) -> dict[str, _Contender]:
    """Return the steps of a model by name, as `_inference`."""
    import torch

    from boxwright.models.detector import usable_device
    from boxwright.training.contenders import our_step, their_detection, their_step, torchvision_detector

    if Path(name).suffix in EXPORTS:
        raise ConfigError(f"{name} is exported, and cannot be trained; without --train it is measured")
    if name.startswith(_TORCHVISION):
        model = torchvision_detector(name.removeprefix(_TORCHVISION)).to(usable_device(settings.device))
        return {
            name: _Contender(lambda given: their_step(model, given), model, lambda given: their_detection(model, given))
        }
    plain = _detector(name, settings.device)
    found = {
        name: _Contender(lambda given: our_step(plain, given), plain, lambda given: lambda: plain.detect(given)),
    }
    if settings.compile:
        compiled = _detector(name, settings.device)
        compiled.network.compile(dynamic=False)
        found[f"{name}, compiled"] = _Contender(lambda given: our_step(compiled, given))
    if settings.precision == "bfloat16":
        rounded = _detector(name, settings.device)
        rounded.dtype = torch.bfloat16
        found[f"{name}, bfloat16"] = _Contender(lambda given: our_step(rounded, given))
    return found


def _detector(name: str, device: str) -> Detector:
    from boxwright.models.detector import usable_device

    return _opened(Path(name)).to(usable_device(device))


def _opened(path: Path) -> Detector:
    if path.suffix == ".config":
        from boxwright.builders.detector import build_detector
        from boxwright.config.load import load_config

        return build_detector(load_config(path)).eval()
    require_checkpoint(path)
    from boxwright.checkpoints.restore import restore_detector

    detector, _, _ = restore_detector(path)
    return detector


def _print(timings: Sequence[Timing], counted: dict[str, Facts], counted_at: int) -> None:
    from rich.table import Column, Table

    titles = ("batch", "least", "median", "p95 ms", "CPU ms", "images/s", "ratio", "(least)")
    columns = [Column(name, justify="right") for name in titles]
    table = Table(Column("model", overflow="fold"), *columns, box=None, padding=(0, 2, 0, 0))
    for one in timings:
        numbers = (one.least_ms, one.median_ms, one.p95_ms, one.cpu_ms, one.images_per_s)
        shares = (f"{one.ratio:.2f}", f"({one.ratio_least:.2f})")
        table.add_row(one.name, str(one.batch), *(f"{number:.1f}" for number in numbers), *shares)
    console.print(table)
    for name, fact in counted.items():
        console.print(
            f"{name}: {fact.parameters / 1e6:.2f} million parameters; batch {counted_at}: {fact.gflops:.2f} GFLOPs to look, "
            f"{fact.peak_mib:.0f} MiB at the peak",
            markup=False,
        )


def _write(
    path: Path, timings: Sequence[Timing], counted: dict[str, Facts], threads: int, loads: tuple[float, float]
) -> None:
    import platform

    from boxwright.files import write_whole
    from boxwright.runtime.optional import installed_versions

    content = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "versions": installed_versions("boxwright", "torch", "onnxruntime", "openvino", "ai-edge-litert"),
        "threads": threads,
        "load of a core, before and after": loads,
        "facts": {name: asdict(one) for name, one in counted.items()},
        "timings": [one.to_dict() for one in timings],
    }
    write_whole(path, json.dumps(content, indent=1) + "\n")
    console.print(f"all numbers: {path}", markup=False)
