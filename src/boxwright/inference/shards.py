"""Detecting in millions of images: the work in units, each unit's results in Parquet files written atomically.

A folder of results holds

    _plan.json              the input and the detector; a resumed run must have the same
    part-00017-00003.parquet  the fourth part of unit 17
    _done-00017             unit 17 has no more parts

However a run ends, the same command resumes it: existing parts are not recomputed. Readers of Parquet folders ignore
files whose names begin with an underscore.

The Parquet files have one row per image:

| column          | type               | content                                                           |
|-----------------|--------------------|-------------------------------------------------------------------|
| `id`            | text               | the image's path or address; in a container `file#place`          |
| `width`, `height` | int32            | in pixels, upright; null if the image could not be read           |
| `boxes`         | list of 4 float32  | x_min, y_min, x_max, y_max in pixels, best first                  |
| `scores`        | list of float32    | one per box                                                       |
| `class_ids`     | list of int32      | ids of the label map                                              |
| `classes`       | list of text       | their names                                                       |
| `segmentations` | list of text       | masks as COCO's compressed run lengths; null without masks        |
| `keypoints`     | lists of float32   | x, y, score of each point of each box; null without keypoints     |
| `embeddings`    | lists of float32   | what tells each object from others; null without                  |
| `surfaces`      | list of binary     | PNG: DensePose's part, u and v, spanning the box; null without    |
| `error`         | text               | why the image could not be read; null if it was                   |
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, make_folder, read_file, write_whole
from boxwright.data.image_io import decode_image
from boxwright.evaluation.results import keypoints_of_classes, surface_picture
from boxwright.inference.collections import Item, Unit, read_items
from boxwright.inference.detect_functions import ImageDetector, ModelSource, apply_settings
from boxwright.inference.stages import Stages, ThreadCounts
from boxwright.inference.stores import Store, open_parquet
from boxwright.nn.ops.pasted_masks import mask_run_lengths
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.runtime.formats import CHECKPOINT_NAME
from boxwright.types import Array, DetectFunction, Detections
from boxwright.types.categories import ids

Row = dict[str, Any]


def to_row(id: str, detections: Detections[Array] | None, error: str = "") -> Row:
    """Return an image's row; `detections` is None if the image could not be read."""
    if detections is None:
        return {"id": id, "error": error}
    return {
        "id": id,
        "width": detections.image_size[1],
        "height": detections.image_size[0],
        "boxes": detections.boxes.tolist(),
        "scores": detections.scores.tolist(),
        "class_ids": ids(detections.categories, detections.labels.tolist()),
        "classes": detections.names(),
        "keypoints": None if detections.keypoints is None else _flat_keypoints(detections),
        "segmentations": None
        if detections.masks is None
        else [code["counts"] for code in mask_run_lengths(detections)],
        "embeddings": None if detections.embeddings is None else detections.embeddings.tolist(),
        "surfaces": _surfaces(detections),
    }


def _flat_keypoints(detections: Detections[Array]) -> list[list[float]]:
    return [points.flatten().tolist() for points in keypoints_of_classes(detections, detections.categories)]


def _surfaces(detections: Detections[Array]) -> list[bytes] | None:
    if detections.surface_parts is None or detections.surface_coordinates is None:
        return None
    return [
        surface_picture(*surface)
        for surface in zip(detections.surface_parts, detections.surface_coordinates, strict=True)
    ]


def parquet_bytes(rows: Sequence[Row], about: dict[str, Any]) -> bytes:
    """Return a Parquet file of rows, compressed with zstd, deterministic; `about` becomes its metadata `boxwright`."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    schema = _schema().with_metadata({"boxwright": json.dumps(about)})
    table = pa.Table.from_pylist(list(rows), schema=schema)
    buffer = pa.BufferOutputStream()
    write_table(table, buffer, compression="zstd")
    return bytes(buffer.getvalue())


def counts(file: Any) -> tuple[int, int]:
    """Return how many rows our own Parquet file, opened by `stores.open_parquet`, has, and how many have an error."""
    from pyarrow.parquet import ParquetFile

    column = ParquetFile(file).read(columns=["error"]).column(0)
    return len(column), len(column) - int(column.null_count)


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("id", pa.string()),
            ("width", pa.int32()),
            ("height", pa.int32()),
            ("boxes", pa.list_(pa.list_(pa.float32(), 4))),
            ("scores", pa.list_(pa.float32())),
            ("class_ids", pa.list_(pa.int32())),
            ("classes", pa.list_(pa.string())),
            ("segmentations", pa.list_(pa.string())),
            ("keypoints", pa.list_(pa.list_(pa.float32()))),
            ("embeddings", pa.list_(pa.list_(pa.float32()))),
            ("surfaces", pa.list_(pa.binary())),
            ("error", pa.string()),
        ]
    )


PLAN = "_plan.json"
_SCHEMA = 2


@dataclass(frozen=True)
class Job:
    """What every worker needs to know.

    Attributes:
        batch_size: Images that the detector gets at a time.
        threads: Per worker; 0 for its runtime's default.
    """

    model: ModelSource
    out: str
    part_size: int = 1024
    batch_size: int = 8
    column: str = ""
    threads: int = 0


@dataclass(frozen=True)
class Part:
    """A file of results.

    Attributes:
        errors: How many of them could not be read.
    """

    name: str
    rows: int
    errors: int


def begin(job: Job, units: Sequence[Unit], weights: str) -> None:
    """Write the plan, or compare it with that of a resumed run.

    Raises:
        DataError: If the folder has results of something else.
    """
    settings = asdict(job.model.settings)
    plan = {
        "schema": _SCHEMA,
        "images": hashlib.sha256(json.dumps([unit.addresses for unit in units]).encode()).hexdigest(),
        "units": len(units),
        "part_size": job.part_size,
        "column": job.column,
        "weights": weights,
        "settings": {name: settings[name] for name in _RESULT_SETTINGS}
        # Left out where they are not set, as in plans of versions that had no such setting.
        | ({"thresholds": settings["thresholds"]} if settings["thresholds"] else {})
        | ({"classes": list(settings["classes"])} if settings["classes"] else {}),
    }
    store = Store(job.out)
    store.make()
    names = store.names()
    if PLAN not in names:
        if any(name.endswith(".parquet") for name in names):
            raise DataError(f"{job.out}: has Parquet files of something else; choose another folder")
        store.write(PLAN, (json.dumps(plan, indent=1) + "\n").encode())
        return
    with store.open(PLAN) as file:
        before = json.loads(file.read())
    differs = sorted(name for name in plan if before.get(name) != plan[name])
    if differs:
        raise DataError(
            f"{job.out}: cannot be resumed, as it was started with other {', '.join(differs)}; choose another folder"
        )


# What changes the results; a run may be resumed on another device, or in another precision.
_RESULT_SETTINGS = ("min_score", "multi_scale", "tile", "overlap", "merge")


def unfinished_units(job: Job, units: Sequence[Unit]) -> list[Unit]:
    """Return the units that may lack parts."""
    names = set(Store(job.out).names())
    return [unit for unit in units if _done(unit) not in names]


def finished(job: Job) -> list[Part]:
    """Return all existing parts, with their counts."""
    store = Store(job.out)
    return [_counted(store, name) for name in store.names() if name.endswith(".parquet")]


def run_unit(unit: Unit, job: Job, model: ImageDetector) -> Iterator[Part]:
    """Compute the missing parts of a unit, and yield each when it is written; OutputError if one cannot be."""
    store = Store(job.out)
    parts, skipped = _written(unit, store)
    items = itertools.islice(read_items(unit, job.column), skipped, None)
    about = {
        "weights": model.weights,
        "min_score": job.model.settings.least_score,
        "categories": None if model.categories is None else model.categories.to_list(),
    }
    detect = apply_settings(model.detect, job.model.settings)
    with Stages() as stages:
        decode = partial(_decoded, white_level=model.white_level)
        settings = job.model.settings
        threads = ThreadCounts.of(model.device, exclusive=settings.compile or settings.cuda_graphs)
        decoded = stages.spread("decode", decode, stages.ahead("read", items), threads.reading, job.batch_size)
        batches = _batched(decoded, job.batch_size)
        looked = stages.spread("network", partial(_detected, detect=detect), batches, threads.network)
        rows = itertools.chain.from_iterable(looked)
        yield from _write_parts(unit, store, _batched(rows, job.part_size), parts, about)
    store.write(_done(unit), f"{os.getpid()}\n".encode())


def _written(unit: Unit, store: Store) -> tuple[int, int]:
    """Return how many parts of a unit are written, and how many rows: its images have a fixed order."""
    # Asked for one by one: a folder that each unit lists takes time by the square of the units.
    parts = list(itertools.takewhile(store.has, (_part(unit, number) for number in itertools.count())))
    return len(parts), sum(_counted(store, name).rows for name in parts)


def _write_parts(
    unit: Unit, store: Store, parts: Iterable[Sequence[Row]], first: int, about: dict[str, Any]
) -> Iterator[Part]:
    """Write parts of a unit's rows, numbered from `first` on, and yield each when it is written."""
    for number, rows in enumerate(parts, start=first):
        name = _part(unit, number)
        store.write(name, parquet_bytes(rows, about))
        yield Part(name, len(rows), sum("error" in row for row in rows))


def worker(job: Job) -> Callable[[Unit], list[Part]]:
    """Return a function that computes a unit's missing parts, with its detector opened."""
    model = job.model.open(job.threads)
    if model.device:
        _set_up_pytorch(job)
    return lambda unit: list(run_unit(unit, job, model))


def model_files(path: Path) -> dict[str, bytes]:
    """Return the files of a model by their names from its parent on.

    Of a run's folder that is the newest checkpoint, of a file of OpenVINO's the weights beside it, too; of another
    folder nothing.
    """
    if is_file(path):
        beside = path.with_suffix(".bin")
        files = [path, *([beside] if path.suffix == ".xml" else [])]
    else:
        steps = {found: int(match[1]) for found in path.glob("*") if (match := CHECKPOINT_NAME.fullmatch(found.name))}
        files = sorted(steps, key=lambda found: steps[found])[-1:]
    return {file.relative_to(path.parent).as_posix(): read_file(file) for file in files}


def worker_with_model(job: Job, files: dict[str, bytes]) -> Callable[[Unit], list[Part]]:
    """Return what `worker` does, on a machine that does not have the model.

    Args:
        files: As `model_files` returns them; without any, the model is opened at its path.
    """
    if not files:
        return worker(job)
    with tempfile.TemporaryDirectory(prefix="boxwright-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            write_whole(make_folder(path.parent) / path.name, content)
        return worker(replace(job, model=replace(job.model, path=Path(folder, job.model.path.name))))


def give_up_unit(job: Job, unit: Unit, problem: str) -> list[Part]:
    """Write a part of rows with an error for the images of a unit that has none yet; of a container, for the rest."""
    store = Store(job.out)
    first, skipped = _written(unit, store)
    missing = unit.addresses[skipped:] if unit.kind == "images" else unit.addresses
    rows = (to_row(address, None, problem) for address in missing)
    about = {"weights": "", "min_score": 0.0, "categories": None}
    parts = list(_write_parts(unit, store, _batched(rows, job.part_size), first, about))
    store.write(_done(unit), b"given up\n")
    return parts


def _set_up_pytorch(job: Job) -> None:
    """Set up a worker's process for detecting with PyTorch."""
    import torch

    from boxwright.base.device import set_tf32

    if job.threads:
        torch.set_num_threads(job.threads)
    set_tf32(products=job.model.settings.tf32)
    keep_freed_memory()


def _part(unit: Unit, number: int) -> str:
    return f"part-{unit.number:06d}-{number:05d}.parquet"


def _done(unit: Unit) -> str:
    return f"_done-{unit.number:06d}"


def _counted(store: Store, name: str) -> Part:
    with open_parquet(f"{store.address}/{name}") as file:
        return Part(name, *counts(file))


def _decoded(item: Item, white_level: float) -> tuple[Item, NDArray[np.uint8] | None, str]:
    if item.error:
        return item, None, item.error
    try:
        return item, decode_image(item.data, item.id, upright=True, white_level=white_level), ""
    except DataError as error:
        return item, None, str(error)


def _detected(batch: list[tuple[Item, NDArray[np.uint8] | None, str]], detect: DetectFunction) -> list[Row]:
    detections = iter(detect([image for _, image, _ in batch if image is not None]))
    return [to_row(item.id, None if image is None else next(detections), error) for item, image, error in batch]


def _batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
