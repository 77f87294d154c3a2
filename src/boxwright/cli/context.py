"""`boxwright context`: features of other images for Context R-CNN."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boxwright.base.text import counted
from boxwright.cli.console import console
from boxwright.cli.help import PlainCommand, PlainGroup
from boxwright.cli.options import with_quiet, with_settings
from boxwright.inference.settings import ContextSettings

if TYPE_CHECKING:
    from boxwright.base.ray_pool import Work
    from boxwright.base.worker_pools import Engine
    from boxwright.inference.context_memory import ContextFileCounts, ContextJob

app = typer.Typer(
    name="context",
    cls=PlainGroup,
    help="Write records for Context R-CNN: each image with features of the others that its camera took.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    """Keep `build` a word of its own: Typer would drop the name of an only command."""


def build(
    records: Annotated[
        list[str],
        typer.Argument(
            help="TFRecords of tf.train.Example: files, quoted globs, or name@10. Images need image/date_captured "
            "(2015-07-30 18:04:59) and image/location or image/seq_id; others get no context."
        ),
    ],
    checkpoint: Annotated[
        Path,
        typer.Option(
            "--checkpoint",
            "--model_dir",
            help="A run's folder or checkpoint of a Faster R-CNN without context, whose features are remembered.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the records; the same command resumes.")],
    settings: ContextSettings,
) -> None:
    """Compute features of each image's best box, and write records in which each image has its neighbors' features.

    Train on them with a model.faster_rcnn that has context_config, and load_context_features: true (and input_type:
    TF_SEQUENCE_EXAMPLE) in the input readers.
    """
    from boxwright.base.files import unfinished
    from boxwright.base.threads import threads_of_worker
    from boxwright.base.worker_pools import parse_engine
    from boxwright.data.shard_files import expand_paths
    from boxwright.inference import context_memory as memory

    files = tuple(str(path) for path in expand_paths(records))
    engine = parse_engine(settings.engine, settings.device)
    if settings.engine == "local":
        workers = min(settings.workers or _default_workers(settings.device), len(files))
        threads = threads_of_worker(workers)
        engine = engine if workers > 1 else _run_in_process
    else:  # Ray counts what the cluster has, and gives each worker one CPU
        workers, threads = settings.workers, 1
    job = memory.ContextJob(files, checkpoint, out, settings, threads)
    with unfinished(out, "context records"):
        memory.begin(job)
        if missing := memory.missing_outputs(job):
            spread = partial(_run_tasks, engine=engine, workers=workers)
            spread("embed", partial(memory.embedding_worker, job), memory.missing_embeddings(job))
            written = spread("write", partial(memory.record_worker, job), missing)
            if settings.banks:
                count = memory.MemoryBanks(job).write_newest(out / "banks")
                console.print(f"{count} memory banks, one per camera: {out}/banks")
            memory.remove_embeddings(job)
            _report(job, written)
        else:
            console.print(f"complete since an earlier run: {out}")


def _default_workers(device: str) -> int:
    """Return how many processes: one per GPU, or one for every two cores, which share a network's threads."""
    if device != "cpu":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.device_count() if device in ("auto", "cuda") else 1
    return max((os.cpu_count() or 1) // 2, 1)


def _run_in_process(make: Callable[[], Work], tasks: Sequence[Any], workers: int) -> Iterator[Any]:
    """Run tasks in this process."""
    del workers
    if tasks:
        yield from map(make(), tasks)


def _run_tasks(
    title: str, make: Callable[[], Work], tasks: Sequence[int], *, engine: Engine, workers: int
) -> list[Any]:
    """Return the results of tasks, with a progress bar."""
    from boxwright.cli.progress import progress_bar

    results = []
    with progress_bar() as bar:
        task = bar.add_task(title, total=len(tasks))
        for result in engine(make, tasks, workers):
            results.append(result)
            bar.update(task, advance=1)
    return results


def _report(job: ContextJob, written: list[ContextFileCounts]) -> None:
    images, without = sum(unit.images for unit in written), sum(unit.without for unit in written)
    console.print(
        f"{counted(images, 'image')} with context in {counted(len(job.files), 'file')}: {job.out}/context.record-*"
    )
    if without:
        console.print(
            f"{without} of them have none: without image/date_captured or {job.settings.sequence_key}, or nothing was detected "
            "in the images of their camera",
        )


app.command("build", cls=PlainCommand)(with_quiet(with_settings(build)))
