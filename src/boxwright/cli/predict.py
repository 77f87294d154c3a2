"""`boxwright predict`."""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boxwright.base.errors import ConfigError, DataError
from boxwright.base.outputs import check_output, local_output
from boxwright.base.text import counted, is_count
from boxwright.cli.console import console, errors, importing, print_document, print_json_only, suggest
from boxwright.cli.options import CheckpointOption, require_checkpoint
from boxwright.cli.process import prepare_inference
from boxwright.inference.settings import CollectionSettings, PredictionSettings
from boxwright.runtime.devices import CPU
from boxwright.runtime.formats import is_export

if TYPE_CHECKING:
    from rich.progress import Progress

    from boxwright.inference.detect_functions import ModelSource
    from boxwright.inference.predict import PredictionCounts
    from boxwright.inference.shards import Job, Part
    from boxwright.inference.sources import Frame, Source

_WINDOW = 30  # images over which the rate is averaged
_MANY_IMAGES = 50  # from which on an export's speed is worth a line
_FASTER = "a file that detects faster on a CPU with small networks"

_OUT = "--out, unless it ends in .parquet"

Sources = Annotated[
    list[str],
    typer.Argument(
        help="Images and video: files, folders, patterns ('shots/**/*.jpg'), lists (@files.txt), https://HOST/a.jpg; a webcam "
        "(camera:0); a stream (rtsp://HOST/PATH)."
    ),
]
Out = Annotated[
    str,
    typer.Option(
        "--out",
        help="Folder for images, video and detections.json, here or at s3:// or gs://; or results.parquet, for very "
        "many images.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--pipeline_config_path",
        "--config",
        help="The model's configuration; TensorFlow's checkpoints need it unless pipeline.config is in their folder or its parent.",
    ),
]
LabelMap = Annotated[
    Path | None,
    typer.Option("--label_map", help="Class names (.pbtxt), if the checkpoint's configuration finds none."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change the configuration, as in --set model.ssd.post_processing.score_converter=SIGMOID."
    ),
]


def predict_command(
    settings: PredictionSettings,
    many: CollectionSettings,
    sources: Sources,
    model_dir: CheckpointOption,
    out: Out = "predictions",
    pipeline_config_path: Config = None,
    label_map: LabelMap = None,
    set_: Set = None,
) -> None:
    """Detect objects in images, video, webcam and RTSP streams; write images, video and COCO-style JSON.

    Tracking (--track) numbers the objects of a video; tiling (--tile) finds small objects in large images.
    """
    from boxwright.inference.detect_functions import ModelSource

    print_json_only(settings.as_json)
    model = ModelSource(model_dir, settings, pipeline_config_path, label_map, tuple(set_ or ()))
    if out.rstrip("/").endswith(".parquet"):
        _predict_many(sources, model, out, many)
        return
    check_output(out, _OUT)
    from boxwright.cli.progress import progress_bar
    from boxwright.inference.predict import predict
    from boxwright.inference.sources import ArraySource, find_sources, read_by_white_level, reconnecting
    from boxwright.weights.demo_model import model_name

    # Before the model is opened, which takes seconds: a missing image is named at once.
    opened = reconnecting(find_sources(sources)) if settings.reconnect else find_sources(sources)
    require_checkpoint(model_dir)
    _import_pytorch(model_dir)
    count = _count(opened, settings)
    detector = model.open()
    opened = read_by_white_level(opened, detector.white_level)
    if detector.device:
        prepare_inference(tf32=model.settings.tf32)
    for source in opened:
        if not isinstance(source, ArraySource):
            detector.require_colors(source.name)
    if detector.categories is None:
        console.print("no label map: classes are shown as numbers from 1; name one with --label_map")
    with local_output(out, _OUT) as folder:
        with progress_bar() as bar:
            shown = _shown(bar, count)
            done = predict(detector.detect, opened, folder, settings, shown, detector.device, many.batch_size)
        if done.pictures == 0:
            raise DataError(f"{', '.join(sources)}: no image could be read")
        document = (folder / "detections.json").read_text(encoding="utf-8") if settings.as_json else ""
    if document:
        print_document(document)
    _print_predictions(done, out, settings)
    _require_few(len(done.errors), len(opened), settings.max_errors)
    if is_export(model_dir):
        suggest("serve", model_dir)
    else:
        slow = detector.device == CPU and done.pictures > _MANY_IMAGES
        suggest("export", model_name(model_dir), when=f"for {_FASTER}" if slow else "")


def _print_predictions(done: PredictionCounts, out: str, settings: PredictionSettings) -> None:
    """Print how much was detected, and where it is."""
    console.print(f"{counted(done.objects, 'object')} in {counted(done.pictures, 'image')}; written to {out}")
    if done.times.skipped:
        console.print(
            f"skipped, as they arrived faster than they could be processed: {counted(done.times.skipped, 'image')}"
        )
    if settings.profile:
        _print_profile(done)
    for line in done.errors:
        errors.print(f"could not be read: {line}", style="yellow")


def _require_few(unreadable: int, total: int, most: float) -> None:
    """Raise a DataError if a larger share of the files than `most` could not be read."""
    if unreadable > most * total:
        raise DataError(
            f"{unreadable} of {total} files could not be read, more than --max_errors {most:g}; the others are done"
        )


def _import_pytorch(model_dir: Path) -> None:
    """Import what opens a checkpoint; an export opens without."""
    if not is_export(model_dir):
        with importing():
            import boxwright.weights.restore  # noqa: F401


def _count(sources: list[Source], settings: PredictionSettings) -> int | None:
    """Return how many images there will be; None if unknown."""
    counts = [source.count() for source in sources]
    known = [count for count in counts if count is not None]
    total = sum(known) if len(known) == len(counts) else None
    return total if not settings.frames else min(settings.frames, total or settings.frames)


def _shown(bar: Progress, total: int | None) -> Callable[[Frame], None]:
    """Return a function that advances a bar and shows the recent rate."""
    task = bar.add_task("predict", total=total)
    times: deque[float] = deque(maxlen=_WINDOW)

    def seen(_: Frame) -> None:
        times.append(time.monotonic())
        spent = times[-1] - times[0]
        bar.update(task, advance=1, rate=f"{(len(times) - 1) / spent:.1f} images/s" if spent else "")

    return seen


def _print_profile(done: PredictionCounts) -> None:
    from rich.table import Column, Table

    right = [Column(name, justify="right") for name in ("busy", "ms per image")]
    table = Table(Column("stage"), *right, box=None, padding=(0, 2, 0, 0))
    for name, seconds in done.times.busy.items():
        table.add_row(name, f"{seconds / done.times.seconds:.0%}", f"{1000 * seconds / max(done.pictures, 1):.1f}")
    console.print(table)
    console.print(f"{done.pictures / done.times.seconds:.1f} images per second")


def _predict_many(words: list[str], model: ModelSource, out: str, many: CollectionSettings) -> None:
    """Detect in very many images; resume where an earlier run stopped."""
    from boxwright.base.threads import threads_of_worker
    from boxwright.base.worker_pools import parse_engine
    from boxwright.inference import shards
    from boxwright.inference.collections import list_units
    from boxwright.inference.stores import absolute, require_pyarrow

    if model.settings.as_json:
        raise ConfigError(f"--json: {out} holds the rows, for pandas or DuckDB to read; remove --json")
    require_pyarrow()
    is_local = many.engine == "local"
    workers = max(many.workers, 1) if is_local else many.workers
    threads = threads_of_worker(workers) if is_local else 1  # Ray gives each one CPU
    if not is_local:  # other machines have other working folders
        words, out = list(map(absolute, words)), absolute(out)
        model = replace(model, path=model.path.absolute())
    job = shards.Job(model, out, many.part_size, many.batch_size, many.column, threads)
    spread = parse_engine(many.engine, model.settings.device, partial(shards.give_up_unit, job))
    units = list_units(words, many.part_size)
    require_checkpoint(model.path)
    _import_pytorch(model.path)
    opened = model.open()
    opened.require_colors(", ".join(words))
    if opened.device:
        prepare_inference(tf32=model.settings.tf32)
    if opened.device == CPU:
        console.print(f"boxwright export {shlex.quote(str(model.path))} writes {_FASTER}")
    shards.begin(job, units, opened.weights)
    todo = [unit for unit in shards.unfinished_units(job, units) if _is_in_shard(unit.number, many.shards)]
    if len(todo) < len(units):
        console.print(f"{len(units) - len(todo)} of {len(units)} units are done, or belong to another shard")
    if is_local and workers == 1:
        parts = (part for unit in todo for part in shards.run_unit(unit, job, opened))
    else:
        files = {} if is_local else shards.model_files(model.path)  # other machines do not have them
        make = partial(shards.worker_with_model, job, files)
        parts = (part for parts in spread(make, todo, workers) for part in parts)
    _watch_parts(parts, len(todo), strict=model.settings.strict)
    _print_result(job, shards.finished(job), model.settings.max_errors)


def _is_in_shard(number: int, shards: str) -> bool:
    """Return whether a unit belongs to the requested shard."""
    if not shards:
        return True
    share, _, count = shards.partition("/")
    if not (is_count(share) and is_count(count) and 1 <= int(share) <= int(count)):
        raise ConfigError(f"--shards {shards}: expected SHARD/SHARDS, such as 3/16")
    return number % int(count) == int(share) - 1


def _watch_parts(parts: Iterator[Part], units: int, *, strict: bool) -> None:
    """Show the progress; with `strict`, raise a DataError at the first part with an image that cannot be read."""
    from boxwright.cli.progress import progress_bar

    with progress_bar() as bar:
        task = bar.add_task("predict", total=units)
        start, images, seen = time.monotonic(), 0, set[str]()
        for part in parts:
            if strict and part.errors:
                raise DataError(
                    f"{part.name}: {counted(part.errors, 'image')} could not be read; column `error` says why"
                )
            images += part.rows
            # part-000017-00003.parquet is of the unit before the last hyphen.
            seen.add(part.name[: part.name.rindex("-")])
            rate = images / max(time.monotonic() - start, 1e-9)
            bar.update(task, completed=len(seen), rate=f"{rate:.1f} images/s", numbers=(counted(images, "image"),))


def _print_result(job: Job, parts: list[Part], most: float) -> None:
    images, unreadable = sum(part.rows for part in parts), sum(part.errors for part in parts)
    console.print(f"{counted(images, 'image')} in {counted(len(parts), 'Parquet file')}: {job.out}")
    if unreadable:
        console.print(f"{unreadable} of them could not be read; column `error` says why")
    _require_few(unreadable, images, most)
