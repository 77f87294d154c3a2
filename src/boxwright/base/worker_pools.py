"""Distributing work over workers: processes on this machine, or a cluster run by Ray.

A worker is built once, where it runs, and takes task after task. Its factory, tasks and results must be picklable.
Child processes that run a module of ours have this process's import path, but not the working directory in it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from boxwright.base.errors import ConfigError, DataError
from boxwright.base.ray_pool import GiveUp, Work, over_ray


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this interpreter.

    `-P`: `-m` alone puts the working directory first on the import path, where a stray `json.py` would be imported.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """Return the environment in which a child process finds the modules that this process can import."""
    folders = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}


def limit_memory(count: int) -> None:
    """Limit this process to `count` bytes of memory, and disable core dumps."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    # RLIMIT_AS also counts memory that is reserved but unused (thread stacks, mapped libraries); RLIMIT_DATA does not.
    memory = resource.RLIMIT_DATA if sys.platform.startswith("linux") else resource.RLIMIT_AS
    for kind, most in ((memory, count), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # above this process's hard limit
            resource.setrlimit(kind, (most, most))


# The status of a child that came to start processes of its own while it was importing the script; EX_CONFIG.
UNGUARDED = 78


def exit_while_importing() -> None:
    """End a child process that is still importing the script that started it; otherwise do nothing.

    Children that are not forked import the script first. One without a main guard starts there what it started in the
    parent, which would end in a traceback of each child; the parent reports the status once (`missing_guard`).
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.stdout.flush()
        # At once: what a forkserver's child raises becomes status 1.
        os._exit(UNGUARDED)


def missing_guard(what: str) -> str:
    """Return the message about a script without a main guard; `what` imports it again."""
    return (
        f"{what} imports the script again, as processes are not forked here, and must not start anything there: put "
        'the script\'s work under `if __name__ == "__main__":`'
    )


# An engine takes a worker's factory, the tasks and the largest number of workers, and yields results as they arrive.
Engine = Callable[[Callable[[], Work], Sequence[Any], int], Iterator[Any]]


def over_processes(
    make: Callable[[], Work], tasks: Sequence[Any], workers: int, gpus: Sequence[str] = ()
) -> Iterator[Any]:
    """Run tasks in processes on this machine.

    Args:
        gpus: The GPUs as CUDA_VISIBLE_DEVICES names them, of which each worker sees one, in turn; empty for all.
    """
    exit_while_importing()
    before = set(multiprocessing.active_children())
    # A forked child would inherit locks of threads that do not exist in it, such as PyTorch's.
    context = multiprocessing.get_context("spawn")
    started = context.Value("i", 0)
    pool = ProcessPoolExecutor(max(workers, 1), context, _make_worker, (make, started, tuple(gpus)))
    try:
        futures = [pool.submit(_run_task, task) for task in tasks]
        children = set(multiprocessing.active_children()) - before
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        pool.shutdown()  # a process's pipe closes before its status is known, for which this waits
        if any(child.exitcode == UNGUARDED for child in children):
            raise DataError(missing_guard("each worker")) from None
        raise DataError(
            "a worker died, possibly out of memory; files written so far are complete: run the same command to resume"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


# This process's worker: a pool's initializer has nowhere else to keep it.
_worker: list[Work] = []


def _make_worker(make: Callable[[], Work], started: Any, gpus: Sequence[str]) -> None:
    if gpus:
        with started:
            number, started.value = started.value, started.value + 1
        # Before CUDA starts in this process, which counts the GPUs once.
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    _worker[:] = [make()]


def _run_task(task: Any) -> Any:
    return _worker[0](task)


def visible_gpus(device: str) -> list[str]:
    """Return the GPUs that workers of this machine share, as CUDA_VISIBLE_DEVICES names them; empty if they do not.

    Args:
        device: As the command takes it; a GPU by its number, or the CPU, is all workers' device.
    """
    if device not in ("auto", "cuda"):
        return []
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    # NVIDIA's driver lists them without PyTorch, which an exported detector does without.
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(number) for number in range(sum(1 for _ in folder.iterdir()))] if folder.is_dir() else []


ENGINES = ("local", "ray")


def parse_engine(name: str, device: str = "auto", give_up: GiveUp | None = None) -> Engine:
    """Return the engine of a name, as `--engine` takes it.

    Args:
        give_up: As for `over_ray`.

    Raises:
        ConfigError: For an unknown name, or a GPU number with Ray.
    """
    if name not in ENGINES:
        raise ConfigError(f"--engine {name}: expected {' or '.join(ENGINES)}")
    if name == "ray" and device.startswith("cuda:"):
        raise ConfigError(f"--engine ray --device {device}: Ray assigns each worker its own GPU; use cuda")
    if name == "ray":
        return partial(over_ray, device=device, give_up=give_up)
    return partial(over_processes, gpus=visible_gpus(device))
