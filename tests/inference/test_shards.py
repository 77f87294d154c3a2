"""Very many images: whatever the collection, the kills and the workers, exactly the rows of one run."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
import textwrap
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from boxwright.base.errors import DataError
from boxwright.base.files import make_folder
from boxwright.base.ray_pool import over_ray
from boxwright.base.worker_pools import over_processes
from boxwright.data.convert import encode_example
from boxwright.data.image_io import encode_png
from boxwright.data.tfrecord import write_records
from boxwright.inference.collections import Unit, list_units, read_items
from boxwright.inference.detect_functions import ModelSource
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.shards import (
    PLAN,
    Job,
    Part,
    begin,
    finished,
    give_up_unit,
    model_files,
    run_unit,
    unfinished_units,
    worker,
    worker_with_model,
)
from boxwright.inference.stores import Store, absolute
from boxwright.types import Categories, Category, Sample
from tests.base.test_ray_pool import two_nodes
from tests.inference.blobs import BlobModel, picture_of

COUNT = 23
MODEL = BlobModel(Path("none"), PredictionSettings())


def picture(number: int) -> bytes:
    return encode_png(picture_of([(number, 5, number + 9, 20), (2, 30, 12, 40)][: number % 3], 48, 64))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    for number in range(COUNT):
        (folder / ("deep" if number % 2 else ".") / f"{number:03d}.png").write_bytes(picture(number))
    (folder / "readme.txt").write_text("no image")
    return folder


def job(out: Path | str, **more: Any) -> Job:
    return Job(MODEL, str(out), **{"part_size": 5, "batch_size": 3, **more})


def run(job: Job, words: list[str], workers: int = 1) -> list[dict[str, Any]]:
    units = list_units(words, job.part_size)
    model = job.model.open()
    begin(job, units, model.weights)
    todo = unfinished_units(job, units)
    if workers > 1:
        list(over_processes(partial(worker, job), todo, workers))
    else:
        make(job, todo)
    return rows_of(Path(job.out))


def make(job: Job, units: list[Unit]) -> list[Part]:
    model = job.model.open()
    return [part for unit in units for part in run_unit(unit, job, model)]


def rows_of(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        row for path in sorted(out.glob("*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()
    ]
    return rows


def test_a_folder_gives_one_row_an_image(images: Path, tmp_path: Path) -> None:
    rows = run(job(tmp_path / "out"), [str(images)])
    assert [Path(row["id"]).name for row in rows] == [
        f"{n:03d}.png" for n in [*range(0, COUNT, 2), *range(1, COUNT, 2)]
    ]
    for row in rows:
        number = int(Path(row["id"]).stem)
        boxes = [[number, 5, number + 9, 20], [2, 30, 12, 40]][: number % 3]
        assert sorted(row["boxes"]) == sorted(boxes)
        assert (row["width"], row["height"], row["error"]) == (64, 48, None)
        assert row["scores"] == [1.0] * len(boxes)
        assert (row["class_ids"], row["classes"]) == ([1] * len(boxes), ["class 1"] * len(boxes))
    table = pq.read_table(tmp_path / "out")  # what reads folders of Parquet reads this one
    assert table.num_rows == COUNT
    about = json.loads(pq.ParquetFile(next((tmp_path / "out").glob("*.parquet"))).schema_arrow.metadata[b"boxwright"])
    assert about == {"weights": "blobs", "min_score": 0.5, "categories": None}


def in_records(folder: Path) -> Path:
    categories = Categories((Category(0, 1, "a"),))
    empty = Sample(picture_of([], 48, 64), np.zeros((0, 4), np.float32), np.zeros(0, np.int64), id="x")
    write_records(folder / "a.record", [encode_example(empty, picture(number), categories) for number in range(COUNT)])
    return folder / "a.record"


def in_archive(folder: Path) -> Path:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number in range(COUNT):
            for name, data in ((f"{number:03d}.png", picture(number)), (f"{number:03d}.cls", b"1")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return folder / "a.tar"


def in_parquet(folder: Path) -> Path:
    pq.write_table(
        pa.table({"n": list(range(COUNT)), "jpg": [picture(number) for number in range(COUNT)]}), folder / "a.parquet"
    )
    return folder / "a.parquet"


def in_hugging_face(folder: Path) -> Path:
    cells = [{"bytes": picture(number), "path": f"{number}.png"} for number in range(COUNT)]
    pq.write_table(pa.table({"image": cells}), folder / "h.parquet")
    return folder / "h.parquet"


@pytest.mark.parametrize("write", [in_records, in_archive, in_parquet, in_hugging_face])
def test_containers_give_what_the_files_give(write: Any, tmp_path: Path) -> None:
    rows = run(job(tmp_path / "out"), [str(write(tmp_path))])
    assert len(rows) == COUNT
    assert len(list((tmp_path / "out").glob("*.parquet"))) == -(-COUNT // 5)
    for number, row in enumerate(rows):
        assert "#" in row["id"]
        assert len(row["boxes"]) == number % 3
        assert row["error"] is None


def test_parquet_of_paths_and_columns(images: Path, tmp_path: Path) -> None:
    paths = [str(path) for path in sorted(images.rglob("*.png"))]
    pq.write_table(pa.table({"path": [*paths, "none.png", None], "other": ["x"] * (COUNT + 2)}), tmp_path / "p.parquet")
    rows = run(job(tmp_path / "out"), [str(tmp_path / "p.parquet")])
    assert [row["error"] is None for row in rows] == [True] * COUNT + [False] * 2
    assert "no image in this row" in rows[-1]["error"]
    (item,) = read_items(list_units([str(tmp_path / "p.parquet")], 5)[0], "nothing")
    assert "no column 'nothing'" in item.error
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "n.parquet")
    (item,) = read_items(list_units([str(tmp_path / "n.parquet")], 5)[0])
    assert "no image column found" in item.error


def test_bad_images_and_bad_containers_are_rows(images: Path, tmp_path: Path) -> None:
    """Also an image that claims to be enormous, and half a TFRecord, half an archive and half a Parquet file."""
    (images / "000.png").write_bytes(b"rubbish")
    (images / "002.png").write_bytes(picture(2)[:40])
    bomb = bytearray(picture(4))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    (images / "004.png").write_bytes(bomb)
    halves = []
    for write in (in_records, in_archive, in_parquet):
        path = write(tmp_path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
        halves.append(str(path))
    rows = run(job(tmp_path / "out"), [str(images), *halves])
    errors = [row for row in rows if row["error"]]
    assert [Path(row["id"].split("#")[0]).name for row in errors] == [
        "000.png", "002.png", "004.png", "a.record", "a.tar", "a.parquet",
    ]  # fmt: skip
    assert "not an image" in errors[0]["error"]
    assert "BOXWRIGHT" in errors[2]["error"]
    assert all("cannot be read" in row["error"] for row in errors[3:])
    assert len([row for row in rows if row["id"].startswith(str(tmp_path / "a.tar#"))]) > 5
    parts = finished(job(tmp_path / "out"))
    assert sum(part.errors for part in parts) == 6
    assert sum(part.rows for part in parts) == len(rows)


def test_nothing_and_strange_things(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    for word, message in (
        (str(tmp_path), "no image"),
        (str(tmp_path / "a.txt"), "its name is not that of an image"),
        ("none", "no such"),
    ):
        with pytest.raises(DataError, match=message):
            list_units([word], 5)


def test_workers_make_the_same_rows(images: Path, tmp_path: Path) -> None:
    alone = run(job(tmp_path / "a"), [str(images)])
    assert run(job(tmp_path / "b"), [str(images)], workers=2) == alone


def test_a_unit_does_not_list_the_folder(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many units would list the files of all: by the square of their number."""
    begin(job(tmp_path / "out"), (units := list_units([str(images)], 5)), "")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "names", lambda store: pytest.fail("the folder was listed"))
        made = make(job(tmp_path / "out", part_size=2), units)
    assert sum(part.rows for part in made) == COUNT
    assert Store(str(tmp_path / "out")).has(made[0].name)
    assert not Store(str(tmp_path / "out")).has("part-000009-00000.parquet")
    assert not Store(str(tmp_path / "none")).has(made[0].name)


def test_another_job_may_not_go_on_in_a_folder(images: Path, tmp_path: Path) -> None:
    run(job(tmp_path / "out"), [str(images)])
    with pytest.raises(DataError, match="started with other .*part_size"):
        run(job(tmp_path / "out", part_size=6), [str(images)])
    with pytest.raises(DataError, match="started with other images"):
        run(job(tmp_path / "out"), [str(images / "deep")])
    (tmp_path / "out" / PLAN).unlink()
    with pytest.raises(DataError, match="Parquet files of something else"):
        run(job(tmp_path / "out"), [str(images)])


KILLED = """
import sys
from pathlib import Path
from tests.inference.test_shards import job
from boxwright.inference.collections import list_units
from boxwright.inference.shards import begin, run_unit, unfinished_units
work = job(sys.argv[1])
units = list_units(sys.argv[2:], 5)
begin(work, units, "blobs")
model = work.model.open()
for unit in unfinished_units(work, units):
    for part in run_unit(unit, work, model):
        print(part.name, flush=True)
        sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_rows_of_one(images: Path, tmp_path: Path) -> None:
    """Each run is killed when it has made one part more, the last one excepted."""
    words = [str(images), str(in_archive(tmp_path))]
    whole = run(job(tmp_path / "whole"), words)
    kills = 0
    while True:
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "out"), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            made = process.stdout.readline()
            if not made:
                assert process.wait() == 0
                break
            process.send_signal(signal.SIGKILL)
            kills += 1
    assert kills == 10  # five parts of each of two
    assert rows_of(tmp_path / "out") == whole
    names = [path.name for path in sorted((tmp_path / "whole").iterdir())]
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == names
    assert len({row["id"] for row in whole}) == len(whole) == 2 * COUNT


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An object store on the loopback address."""
    from moto.server import ThreadedMotoServer
    from pyarrow.fs import S3FileSystem

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    S3FileSystem(region="us-east-1", endpoint_override=f"http://{host}:{port}", allow_bucket_creation=True).create_dir(
        "pictures"
    )
    yield "s3://pictures"
    server.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_object_store_is_read_and_written(bucket: str, images: Path, tmp_path: Path) -> None:
    from pyarrow.fs import FileSystem

    sources = [*sorted(images.rglob("*.png")), in_records(tmp_path), in_archive(tmp_path), in_parquet(tmp_path)]
    for path in sources:
        Store(f"{bucket}/in").write(path.name, path.read_bytes())
    work = job(f"{bucket}/out/results.parquet")
    units = list_units([f"{bucket}/in"], 5)
    model = work.model.open()
    begin(work, units, model.weights)
    make(work, unfinished_units(work, units)[:2])
    assert len(unfinished_units(work, units)) == len(units) - 2
    begin(work, units, model.weights)
    make(work, unfinished_units(work, units))
    parts = finished(work)
    assert (sum(part.rows for part in parts), sum(part.errors for part in parts)) == (4 * COUNT, 0)
    system, path = FileSystem.from_uri(f"{bucket}/out/results.parquet")
    table = pq.read_table(path, filesystem=system)
    assert table.num_rows == 4 * COUNT
    assert len(set(table.column("id").to_pylist())) == 4 * COUNT
    with pytest.raises(DataError, match="no image"):
        list_units([f"{bucket}/nothing"], 5)
    (item,) = read_items(list_units([f"{bucket}/none.png"], 5)[0])
    assert item.error


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own, of what it deprecates
def test_ray_makes_the_same_rows_on_two_nodes(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = run(job(tmp_path / "a"), [str(images)])
    with two_nodes(monkeypatch):
        work = job(tmp_path / "b")
        units = list_units([str(images)], 5)
        model = work.model.open()
        begin(work, units, model.weights)
        parts = list(over_ray(partial(worker, work), units[:2], 2))
        assert len(parts) == 2
        parts += over_ray(partial(worker, work), unfinished_units(work, units), 2)
        assert len(parts) == len(units)
        assert rows_of(tmp_path / "b") == alone


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own, of what it deprecates
def test_a_run_is_put_into_rays_store_once_and_nothing_is_printed_as_an_error(
    images: Path, small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers on two nodes, eight units; workers open what they were sent, as the run has gone by then."""
    import pickle

    from tests.cli.test_commands import train

    train(small_config, tmp_path / "run", 1)
    words = ["predict", str(images), "--model_dir", str(tmp_path / "run"), "--part_size", "3", "--device", "cpu"]

    def command(out: str, *more: str) -> str:
        start = [sys.executable, "-m", "boxwright", *words, "--out", str(tmp_path / out), *more]
        ended = subprocess.run(start, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    command("alone.parquet")
    with two_nodes(monkeypatch):
        output = command("ray.parquet", "--engine", "ray", "--workers", "2")
        assert not [word for word in ("ERROR", "Error", "Traceback", "WARNING") if word in output], output
        assert rows_of(tmp_path / "ray.parquet") == rows_of(tmp_path / "alone.parquet")

        import ray

        work = Job(ModelSource(tmp_path / "run", PredictionSettings(device="cpu")), str(tmp_path / "again"), 3)
        units = list_units([str(images)], 3)
        files = model_files(tmp_path / "run")
        begin(work, units, work.model.open().weights)
        (tmp_path / "run").rename(tmp_path / "gone")
        put, sizes = ray.put, list[int]()

        def counted(value: Any) -> Any:
            sizes.append(len(pickle.dumps(value)))
            return put(value)

        monkeypatch.setattr(ray, "put", counted)
        parts = [*over_ray(partial(worker_with_model, work, files), units, 2)]
        assert (len(parts), len(units)) == (8, 8)
        weights = sum(map(len, files.values()))
        assert len(sizes) == 1
        assert weights <= sizes[0] < weights + 10_000
        # Ray puts arguments of 100 KB and more by itself.
        assert all(len(pickle.dumps(unit)) < 10_000 for unit in units)
        assert rows_of(tmp_path / "again") == rows_of(tmp_path / "alone.parquet")


def test_a_unit_that_is_given_up_has_rows_that_say_so(images: Path, tmp_path: Path) -> None:
    """Also after the parts that were written: here one of two images, of a unit of five."""
    work = job(tmp_path / "r")
    units = list_units([str(images)], 5)
    model = work.model.open()
    begin(work, units, model.weights)
    first = next(run_unit(units[0], work, model))
    parts = give_up_unit(work, units[0], "3 workers ended on it")
    assert sum(part.rows for part in [first, *parts]) == 5
    assert sum(part.errors for part in parts) == 5 - first.rows
    assert unfinished_units(work, units) == list(units[1:])
    for unit in units[1:]:
        list(run_unit(unit, work, model))
    rows = rows_of(tmp_path / "r")
    assert sorted(row["id"] for row in rows) == sorted(address for unit in units for address in unit.addresses)
    assert [row["error"] for row in rows].count("3 workers ended on it") == 5 - first.rows


class FileModel(BlobModel):
    """A model in a file."""

    def open(self, threads: int = 0) -> Any:
        assert self.path.read_bytes() == b"weights"
        return super().open(threads)


def test_a_machine_without_the_model_gets_its_file(images: Path, tmp_path: Path) -> None:
    (tmp_path / "detector.onnx").write_bytes(b"weights")
    files = model_files(tmp_path / "detector.onnx")
    assert files == {"detector.onnx": b"weights"}
    assert model_files(tmp_path) == {}
    for name in ("ckpt-9.pt", "ckpt-10.pt", "best.pt", "metrics.jsonl"):
        make_folder(tmp_path / "run")
        (tmp_path / "run" / name).write_bytes(name.encode())
    assert model_files(tmp_path / "run") == {"run/ckpt-10.pt": b"ckpt-10.pt"}
    alone = run(job(tmp_path / "a"), [str(images)])
    work = replace(job(tmp_path / "b"), model=FileModel(Path("/nowhere/detector.onnx"), MODEL.settings))
    units = list_units([str(images)], 5)
    begin(work, units, MODEL.open().weights)
    detect = worker_with_model(work, files)
    for unit in units:
        detect(unit)
    assert rows_of(tmp_path / "b") == alone


def test_paths_for_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [absolute(word) for word in ("a/*.jpg", "@l.txt", "s3://b/a", "/x")] == [
        *(f"{tmp_path}/a/*.jpg", f"@{tmp_path}/l.txt", "s3://b/a", "/x")
    ]


def test_the_threads_of_pyarrow_hold_nothing_of_pythons(tmp_path: Path, monkeypatch: Any) -> None:
    """One that lets go of an object of Python's while the interpreter ends aborts the process: seen in 7 of 42 runs."""
    opened: list[Any] = []

    class Seen(pq.ParquetFile):  # type: ignore[misc]
        def __init__(self, source: Any, *arguments: Any, **named: Any) -> None:
            opened.append(source)
            super().__init__(source, *arguments, **named)

    monkeypatch.setattr(pq, "ParquetFile", Seen)
    table = pa.table({"image": [picture(number) for number in range(3)]})
    pq.write_table(table, tmp_path / "images.parquet")
    rows = run(job(tmp_path / "r"), [str(tmp_path / "images.parquet")])
    assert [row["error"] for row in rows] == [None] * 3
    assert sum(part.rows for part in finished(job(tmp_path / "r"))) == 3
    ours = [source for source in opened if not isinstance(source, Path)]  # a path: the test's own reading
    assert len(ours) == 2
    assert all(isinstance(source, pa.NativeFile) and not isinstance(source, pa.PythonFile) for source in ours)
