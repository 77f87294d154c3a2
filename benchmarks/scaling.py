"""How data cost as they grow: seconds and peak memory of opening, reading, evaluating and predicting, by size.

    python benchmarks/scaling.py [--only "records: index" …] [--sizes 1000 10000] [--work FOLDER] [--json FILE]

Seconds are processor time of one thread, user's and system's, which other programs change little; what waits for a disk
is not in it. A row is a process of its own, which takes its sizes from the smallest: it prepares, runs two to five
times (once if that takes five seconds), and says the least seconds and the peak of its resident memory. The exponent p
of seconds ~ size^p is the slope, in logarithms, over the last two decades of sizes. Sizes that are in the file are not
measured again.

records: images in TFRecord files (ten shards of one small picture again and again). index: finding the records; start:
opening them again, and the first batch; resume: the first batch in the middle of the third epoch.
archives, Parquet: the same in ten of WebDataset's archives, or of Parquet with 100 rows a group. index: finding the
samples; open: the numbers of rows; read: each sample's picture file and objects, in order, nothing decoded of them;
write: as `boxwright convert` does, from the archives, whose pictures are decoded for it.
annotations: of a COCO file, ten an image, whose pictures are not there. first: read and packed into a table; again:
with the table that is kept beside the file.
files: as many small pictures with annotations beside them, opened and read whole.
evaluation: images with 100 detections of 80 classes, added one by one; computing the metrics is a row of its own.
predictions: images, ten detections each, into Parquet files of 1,024 rows; resume: finding that nothing is missing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]
from evaluation_metrics import CLASSES, as_ours, made_up  # noqa: E402  # a script beside this one

RESULTS = HERE / "results" / "scaling-cpu.json"
_LEAST_S, _MOST_RUNS, _LONG_S = 0.5, 5, 5.0
_SLOPE_OVER = 100
_SHARDS, _TOGETHER = 10, 100
_MIB = 2**20
# Prepares for a size, with a folder for data, and returns what is timed; a number that this returns is taken instead.
Part = Callable[[int, Path], Callable[[], float | None]]


def _categories(count: int) -> Any:
    from boxwright.types import Categories, Category

    return Categories(tuple(Category(n, n + 1, f"class {n}") for n in range(count)))


def _records(size: int, work: Path) -> Path:
    """Return the folder of a data set, which is made at first."""
    from boxwright.data.convert import encode_example
    from boxwright.data.image_io import encode_png
    from boxwright.data.shapes import ShapesDataset
    from boxwright.data.tfrecord import write_records

    folder = work / f"records-{size}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shapes = ShapesDataset(1, seed=0, size=(24, 24))
        example = encode_example(shapes[0], encode_png(shapes[0].image), shapes.categories)
        for shard in range(_SHARDS):
            count = len(range(shard, size, _SHARDS))
            write_records(folder / f"a.record-{shard:05d}-of-{_SHARDS:05d}", (example for _ in range(count)))
        (folder / "complete").touch()
    return folder


def _dataset(folder: Path) -> Any:
    from boxwright.data.shapes import ShapesDataset
    from boxwright.data.tfrecord_dataset import TFRecordDataset

    return TFRecordDataset([folder / f"a.record@{_SHARDS}"], ShapesDataset(1, seed=0).categories)


def records_index(size: int, work: Path) -> Callable[[], None]:
    """Find the records of files that were never opened."""
    folder = _records(size, work)

    def run() -> None:
        for index in folder.glob(".*.index"):
            index.unlink()
        _dataset(folder)

    return run


def records_batch(size: int, work: Path, *, epochs: float) -> Callable[[], None]:
    """Open the records again, and make a batch after so many epochs."""
    import boxwright as bw
    from boxwright.data.augmentation.transform import Chain
    from boxwright.data.loader import TrainingExamples, training_batches
    from boxwright.data.order import StreamSettings

    folder = _records(size, work)
    resizer = bw.build_detector(bw.load_config("preset:ssd_mobilenet_v2_fpn_small")).preprocessor.resizer

    def run() -> None:
        examples = TrainingExamples(_dataset(folder), Chain(), resizer, 0)
        next(iter(training_batches(examples, StreamSettings(8, workers=0), int(epochs * size))))

    return run


def _shards(size: int, work: Path, kind: str) -> Path:
    """Return the folder of archives or of Parquet, which is made at first."""
    import io
    import tarfile

    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    from boxwright.data.image_io import encode_png
    from boxwright.data.shapes import ShapesDataset

    folder = work / f"{kind}-{size}"
    if (folder / "complete").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    picture = encode_png(ShapesDataset(1, seed=0, size=(24, 24))[0].image)
    objects = {"bbox": [[2.0, 3.0, 12.0, 9.0]], "category": [1]}
    text = json.dumps({"objects": objects}).encode()
    for shard in range(_SHARDS):
        count, path = len(range(shard, size, _SHARDS)), folder / f"a-{shard:05d}-of-{_SHARDS:05d}.{kind}"
        if kind == "tar":
            with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
                for number in range(count):
                    for ending, content in (("png", picture), ("json", text)):
                        member = tarfile.TarInfo(f"{shard}/{number:08d}.{ending}")
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
                    archive.members.clear()  # type: ignore[attr-defined]
            continue
        group = pa.Table.from_pylist([{"image": {"bytes": picture, "path": "a.png"}, "objects": objects}] * _TOGETHER)
        with ParquetWriter(path, group.schema) as writer:
            for start in range(0, count, _TOGETHER):
                writer.write_table(group.slice(0, count - start))
    (folder / "complete").touch()
    return folder


def shards(size: int, work: Path, *, kind: str, reading: bool) -> Callable[[], None]:
    """Open archives or Parquet that were never opened, or read all of their samples."""
    from boxwright.data.row_dataset import open_parquet_rows, open_web_dataset
    from boxwright.data.shapes import ShapesDataset

    folder, categories = _shards(size, work, kind), ShapesDataset(1, seed=0).categories
    open_rows: Any = open_web_dataset if kind == "tar" else open_parquet_rows
    paths = [folder / f"a-?????-of-{_SHARDS:05d}.{kind}"]

    def run() -> None:
        for index in folder.glob(".*.index"):
            index.unlink()
        open_rows(paths, categories)

    def read() -> None:
        dataset = open_rows(paths, categories)
        for number in range(len(dataset)):
            dataset.encoded(number)

    return read if reading else run


def shards_written(size: int, work: Path, *, kind: str) -> Callable[[], None]:
    """Convert archives to archives or to Parquet."""
    from boxwright.data.row_dataset import open_web_dataset
    from boxwright.data.shapes import ShapesDataset
    from boxwright.data.write_rows import write_parquet, write_web_dataset

    paths = [_shards(size, work, "tar") / f"a-?????-of-{_SHARDS:05d}.tar"]
    dataset = open_web_dataset(paths, ShapesDataset(1, seed=0).categories)
    write: Any = write_web_dataset if kind == "tar" else write_parquet

    def run() -> None:
        write(dataset, work / f"written-{size}" / f"a.{kind}", num_shards=_SHARDS)

    return run


def files_read(size: int, work: Path, *, kind: str) -> Callable[[], None]:
    """Open annotated pictures, and read all of them."""
    from boxwright.data import coco, convert, voc, yolo
    from boxwright.data.shapes import ShapesDataset

    folder = work / f"{kind}-{size}"
    path = folder / {"voc": "", "coco": "instances.json", "yolo": "data.yaml"}[kind]
    write: Any = {"voc": convert.write_voc, "coco": convert.write_coco, "yolo": convert.write_yolo}[kind]
    read: Any = {"voc": voc.VocDataset, "coco": coco.CocoDataset, "yolo": yolo.YoloDataset}[kind]
    if not path.exists():
        write(ShapesDataset(size, seed=1, size=(32, 48)), path)

    def run() -> None:
        data = read(path)
        for number in range(len(data)):
            data[number]

    return run


def coco_annotations(size: int, work: Path, *, kept: bool) -> Callable[[], None]:
    """Open a COCO file with ten boxes an image, none of whose pictures there is: at first, or with its table kept."""
    from boxwright.data import coco, coco_table

    folder = work / f"annotations-{size}"
    path = folder / "instances.json"
    if not path.exists():
        folder.mkdir()
        rng = np.random.default_rng(0)
        labels, boxes = rng.integers(1, 366, size).tolist(), rng.uniform(1, 300, (size, 4)).round(2).tolist()
        rows = [
            {"id": 900_000 + n, "image_id": 100_000 + n // 10, "category_id": labels[n], "bbox": box, "iscrowd": 0}
            | {"area": round(box[2] * box[3], 4)}
            for n, box in enumerate(boxes)
        ]
        images = [
            {"id": 100_000 + n, "file_name": f"patch{n % 50}/objects365_v2_{n:08d}.jpg", "height": 512, "width": 683}
            for n in range(size // 10)
        ]
        classes = [{"id": n, "name": f"class {n}"} for n in range(1, 366)]
        path.write_text(json.dumps({"images": images, "annotations": rows, "categories": classes}))
    coco_table.KEPT_BYTES = 0

    def run() -> None:
        for table in folder.glob(".*.table") if not kept else ():
            table.unlink()
        dataset = coco.CocoDataset(path, folder)
        dataset.rows(len(dataset) - 1)

    if kept and not list(folder.glob(".*.table")):
        coco.CocoDataset(path, folder)
    return run


def evaluation(size: int, work: Path, *, computing: bool) -> Callable[[], float]:
    """Add images, which are made up between the times that are taken; compute the metrics."""
    from boxwright.evaluation.metrics.coco import CocoMetrics

    del work

    def run() -> float:
        metrics, seconds, images = CocoMetrics(_categories(CLASSES)), 0.0, map(as_ours, made_up(size))
        # Some at a time: reading the clock takes time, too.
        for some in iter(lambda: list(islice(images, _TOGETHER)), []):
            began = time.process_time()
            for sample, detections in some:
                metrics.add(sample, detections)
            seconds += time.process_time() - began
        began = time.process_time()
        metrics.compute()
        return time.process_time() - began if computing else seconds

    return run


def predictions(size: int, work: Path, *, resuming: bool) -> Callable[[], None]:
    """Detect in the images of records, by a detector that takes no time, and write the rows; or find them there."""
    from boxwright.inference.collections import list_units
    from boxwright.inference.detect_functions import ImageDetector, ModelSource
    from boxwright.inference.settings import PredictionSettings
    from boxwright.inference.shards import Job, begin, run_unit, unfinished_units
    from boxwright.types import Detections

    boxes = np.tile(np.array([2, 2, 12, 12], np.float32), (10, 1))
    scores, labels = np.linspace(0.9, 0.6, 10, dtype=np.float32), np.zeros(10, np.int64)

    def detect(images: Sequence[Any]) -> list[Any]:
        return [Detections(boxes, scores, labels, image.shape[:2], _categories(1)) for image in images]

    folder, out = _records(size, work), work / f"predictions-{size}"
    model = ImageDetector(detect, _categories(1), "made up")

    def write() -> None:
        job = Job(ModelSource(Path("run"), PredictionSettings()), str(out))
        units = list_units([f"{folder}/a.record-*"], 1024)
        begin(job, units, "made up")
        for unit in unfinished_units(job, units):
            for _ in run_unit(unit, job, model):
                pass

    def write_anew() -> None:
        shutil.rmtree(out, ignore_errors=True)
        write()

    if resuming:
        write()
    return write if resuming else write_anew


# Row → what its sizes count, the sizes, and what is measured.
_DECADES = (1_000, 10_000, 100_000, 1_000_000)
ROWS: dict[str, tuple[str, Sequence[int], Part]] = {
    "records: index": ("images", _DECADES, records_index),
    "records: start": ("images", _DECADES, partial(records_batch, epochs=0)),
    "records: resume": ("images", _DECADES, partial(records_batch, epochs=2.5)),
    "archives: index": ("images", _DECADES, partial(shards, kind="tar", reading=False)),
    "archives: read": ("images", _DECADES[:3], partial(shards, kind="tar", reading=True)),
    "archives: write": ("images", _DECADES[:2], partial(shards_written, kind="tar")),
    "Parquet: open": ("images", _DECADES, partial(shards, kind="parquet", reading=False)),
    "Parquet: read": ("images", _DECADES[:3], partial(shards, kind="parquet", reading=True)),
    "Parquet: write": ("images", _DECADES[:2], partial(shards_written, kind="parquet")),
    "files: VOC": ("images", _DECADES[:2], partial(files_read, kind="voc")),
    "files: COCO": ("images", _DECADES[:2], partial(files_read, kind="coco")),
    "files: YOLO": ("images", _DECADES[:2], partial(files_read, kind="yolo")),
    "annotations: first": ("annotations", _DECADES[1:], partial(coco_annotations, kept=False)),
    "annotations: again": ("annotations", _DECADES[1:], partial(coco_annotations, kept=True)),
    "evaluation: add": ("images", _DECADES[:3], partial(evaluation, computing=False)),
    "evaluation: compute": ("images", _DECADES[:3], partial(evaluation, computing=True)),
    "predictions: write": ("images", _DECADES, partial(predictions, resuming=False)),
    "predictions: resume": ("images", _DECADES, partial(predictions, resuming=True)),
}


def measure(row: str, sizes: Sequence[int], work: Path) -> None:
    """Print seconds, and resident memory in MiB before the runs and at their peak, a line for each size."""
    for size in sizes:
        run = ROWS[row][2](size, work)
        before = _memory("VmRSS")
        # Preparing may have taken more memory than the runs will.
        Path("/proc/self/clear_refs").write_text("5")
        taken: list[float] = []
        # The first run also imports and allocates; it counts where it takes long.
        while len(taken) < 2 or (sum(taken) < _LEAST_S and len(taken) < _MOST_RUNS):
            began = time.process_time()
            own = run()
            taken.append(time.process_time() - began if own is None else own)
            if taken[0] > _LONG_S:
                break
        peak = _memory("VmHWM")
        print(json.dumps({"size": size, "seconds": min(taken), "before_mib": before, "peak_mib": peak}), flush=True)
        del run
        gc.collect()


def _memory(name: str) -> float:
    """Return what Linux says of this process's memory, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / _MIB


def measured(row: str, sizes: Sequence[int], work: Path) -> Iterator[dict[str, float]]:
    """Yield the measurements of a process of its own."""
    words = [sys.executable, __file__, "--only", row, "--sizes", *map(str, sizes), "--work", str(work), "--measure"]
    alone = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "BOXWRIGHT_CACHE": str(work / "cache")}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **alone}) as child:
        for line in child.stdout or ():
            if line.startswith('{"size"'):
                yield json.loads(line)
    if child.returncode:
        raise SystemExit(f"{row}: failed")


def exponent(row: dict[str, Any]) -> float | None:
    """Return p of seconds ~ size^p over the last two decades; None of fewer than two sizes."""
    sizes = sorted(int(size) for size in row["sizes"])
    last = [size for size in sizes if size * _SLOPE_OVER >= sizes[-1]]
    if len(last) < 2:
        return None
    seconds = [row["sizes"][str(size)]["seconds"] for size in last]
    return float(np.polyfit(np.log(last), np.log(seconds), 1)[0])


def table(results: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| | sizes | at the largest | exponent | peak memory, smallest and largest |", "|---|---|---|---|---|"]
    for title, row in results["rows"].items():
        sizes = sorted(int(size) for size in row["sizes"])
        first, last = (row["sizes"][str(size)] for size in (sizes[0], sizes[-1]))
        slope = "" if row["exponent"] is None else f"{row['exponent']:.2f}"
        lines.append(
            f"| {title} | {sizes[0]:,} to {sizes[-1]:,} {row['unit']} | {last['seconds']:.3g} s | {slope} | "
            f"{first['peak_mib']:.0f} and {last['peak_mib']:.0f} MiB |"
        )
    return lines


def main() -> None:
    """Measure what is missing, write it, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW")
    parser.add_argument("--sizes", nargs="+", type=int, help="instead of a row's own")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "boxwright-scaling", help="for data")
    parser.add_argument("--json", type=Path, default=RESULTS, help="results, read and written")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.measure:
        measure(given.only[0], given.sizes, given.work)
        return
    results = json.loads(given.json.read_text()) if given.json.exists() else {"rows": {}}
    results["versions"] = {name: version(name) for name in ("boxwright", "torch", "numpy")}
    for title in given.only:
        unit, sizes, _ = ROWS[title]
        row = results["rows"].setdefault(title, {"unit": unit, "sizes": {}})
        missing = [size for size in given.sizes or sizes if str(size) not in row["sizes"]]
        for numbers in measured(title, missing, given.work) if missing else ():
            size = int(numbers.pop("size"))
            row["sizes"][str(size)] = {key: float(f"{value:.4g}") for key, value in numbers.items()}
            row["exponent"] = exponent(row)
            print(f"{title}, {size:,}: {numbers['seconds']:.4g} s, {numbers['peak_mib']:.0f} MiB", flush=True)
            given.json.write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
