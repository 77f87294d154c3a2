"""Exports kept beside other caches, so that a checkpoint is detected with by the fastest runtime that is installed.

A folder for each export, named by what determines it: the weights, configuration and classes, the runtime and its
device, and the versions of what writes and runs it. Beside an export is kept how its time compares with PyTorch's, and
of a detector that cannot be exported exactly the reason.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ExportError, OutputError
from boxwright.base.files import cache_folder, cause, is_folder, make_folder, shown, size_of, write_whole
from boxwright.base.locks import lock
from boxwright.config.load import dump_message
from boxwright.runtime.devices import CPU, is_cpu
from boxwright.runtime.exported import ExportedDetector
from boxwright.runtime.formats import CACHED_EXPORTS, EXPORTED_FOR, TORCH
from boxwright.runtime.measure import measure
from boxwright.runtime.optional import installed_versions
from boxwright.weights.exports import open_export
from boxwright.weights.open_model import OpenModel

_LOG = logging.getLogger("boxwright")
_MOST_EXPORTS = 16
_MOST_BYTES = 4 << 30
_REASON = "not-exact.txt"
_SPEED = "speed.json"
_TIMED_ROUNDS = 3

# Returns pictures uint8 [H, W, 3] for the comparison, and where they come from.
Sample = Callable[[], tuple[Sequence[NDArray[np.uint8]], str]]


@dataclass(frozen=True, eq=False)
class CachedExport:
    """An export in the cache, opened."""

    path: Path
    runtime: str
    detector: ExportedDetector


def default_runtime() -> str | None:
    """Return the first runtime that is installed together with what writes its format; None without any."""
    for runtime, format in EXPORTED_FOR.items():
        if len(installed_versions(*format.libraries)) == len(format.libraries):
            return runtime
    return None


def has_exports() -> bool:
    """Return whether there may be an export of any detector, without computing a digest."""
    return is_folder(_root())


def find_export(model: OpenModel, runtime: str, threads: int = 0, device: str = CPU) -> CachedExport | None:
    """Return the cached export of a detector for a runtime, opened; None if there is none, or it is damaged."""
    try:
        return _opened(_folder(model, runtime, device), runtime, threads, device)
    except ExportError as error:
        _LOG.warning("%s; it is not used", error)
        return None


def time_ratio(model: OpenModel, runtime: str) -> float | None:
    """Return the time of a detector's cached export divided by PyTorch's, measured when it was made.

    None if there is no export, or it was not measured. Both ran on the CPU of the machine that made the export.
    """
    path = _folder(model, runtime, CPU) / _SPEED
    with suppress(OSError, ValueError):  # of a process that was killed, or removes it
        known = json.loads(path.read_text())
        ratio = known.get(runtime) if isinstance(known, dict) else None
        return ratio if isinstance(ratio, float) else None
    return None


def make_export(model: OpenModel, runtime: str, sample: Sample, threads: int = 0, device: str = CPU) -> CachedExport:
    """Return the export of a detector for a runtime, opened: the cached one, or a new one.

    Args:
        model: A detector on the CPU, not yet optimized.
        runtime: A key of `EXPORTED_FOR`.
        sample: Called if there is no cached export.
        threads: The runtime's number of threads; 0 for its default.
        device: That of the runtime; on another than the CPU, the export is compared with the detector there too.

    Raises:
        ExportError: If the runtime is not installed, or its results differ from the detector's.
        OutputError: If the cache cannot be written.
    """
    folder = _folder(model, runtime, device)
    with _alone(folder):
        with suppress(ExportError):  # of a damaged file
            found = _opened(folder, runtime, threads, device)
            if found is not None:
                return found
        if (folder / _REASON).is_file():
            raise ExportError((folder / _REASON).read_text().strip())
        pictures, source = sample()
        # What is there is damaged, or of a process that was killed.
        shutil.rmtree(folder, ignore_errors=True)
        path = make_folder(folder) / f"detector{EXPORTED_FOR[runtime].suffix}"
        try:
            _export(model, runtime, path, pictures, source)
            if not is_cpu(device):
                _require_same(model, path, pictures, device)
        except ExportError as error:
            path.unlink(missing_ok=True)
            write_whole(folder / _REASON, f"{error}\n")
            raise
        finally:
            _remove_oldest(folder)
        opened = open_export(path, threads, device)
        if is_cpu(device):
            ratio = _measured_ratio(model, opened, pictures[0])
            write_whole(folder / _SPEED, json.dumps({TORCH: 1.0, runtime: ratio}) + "\n")
        return CachedExport(path, runtime, opened)


def _opened(folder: Path, runtime: str, threads: int, device: str) -> CachedExport | None:
    path = folder / f"detector{EXPORTED_FOR[runtime].suffix}"
    if not path.is_file():
        return None
    opened = open_export(path, threads, device)
    # For the order of removal; a cache may be another user's, or be cleaned at this moment.
    with suppress(OSError):
        os.utime(folder)
    return CachedExport(path, runtime, opened)


def _export(model: OpenModel, runtime: str, path: Path, pictures: Sequence[NDArray[np.uint8]], source: str) -> None:
    from boxwright.exporters.export import About, export  # takes seconds to import

    about = About(config=dump_message(model.config), step=model.step, source=source)
    export(model.detector, path, images=pictures, format=EXPORTED_FOR[runtime].format, about=about)  # type: ignore[arg-type]


def _measured_ratio(model: OpenModel, export: ExportedDetector, picture: NDArray[np.uint8]) -> float:
    """Return the time of an export divided by that of the detector, both as `predict` runs them, on one picture."""
    from boxwright.weights.optimized import optimized

    detector = optimized(copy.deepcopy(model.detector), "float32", compile=False)
    contenders = {TORCH: lambda: detector.detect([picture]), "export": lambda: export.detect([picture])}
    return measure(contenders, 1, _TIMED_ROUNDS)[1].ratio


def _require_same(model: OpenModel, path: Path, pictures: Sequence[NDArray[np.uint8]], device: str) -> None:
    """Raise an ExportError if an export's results on a device differ from the detector's."""
    from boxwright.exporters.export import verify

    report = verify(model.detector, path, pictures, device=device)
    if not report.passed:
        raise ExportError(f"on {device}, the export differs from the detector: {report.problem()}")


def _root() -> Path:
    return cache_folder() / CACHED_EXPORTS


def _folder(model: OpenModel, runtime: str, device: str) -> Path:
    # Not of its data: a configuration that evaluates otherwise, or elsewhere, has the same detector.
    config = (model.config.model, model.config.train_config)
    known = {
        "weights": model.weights_sha256(),
        "config": [None if part is None else dump_message(part) for part in config],
        "classes": None if model.categories is None else model.categories.to_list(),
        "runtime": runtime,
        "device": CPU if is_cpu(device) else device.lower(),
        "versions": installed_versions("boxwright", "torch", "torchvision", *EXPORTED_FOR[runtime].libraries),
    }
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    return _root() / digest[:32]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold an export's lock, so that of two processes one makes it and the other waits for it.

    There are 16 locks, of the exports whose names begin alike: files for each would pile up, as removing a lock's file
    lets two processes hold locks of the same name.
    """
    path = make_folder(folder.parent) / f"{folder.name[0]}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise OutputError(f"{shown(path)}: could not be written: {cause(error)}") from None
    try:
        waited = False
        while True:
            try:
                lock(descriptor)
                break
            except BlockingIOError:
                if not waited:
                    _LOG.info("another process is exporting a detector; waiting for it")
                waited = True
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def _remove_oldest(newest: Path) -> None:
    """Remove exports that were not used for longest until the cache is within its bounds."""
    held = 0
    for number, folder in enumerate(_by_use(newest.parent)):
        held += _bytes_in(folder)
        if folder != newest and (number >= _MOST_EXPORTS or held > _MOST_BYTES):
            shutil.rmtree(folder, ignore_errors=True)


def _by_use(root: Path) -> list[Path]:
    """Return the exports' folders, the last used first."""
    times = {}
    for folder in root.iterdir():
        with suppress(OSError):  # another process may remove it
            if folder.is_dir():
                times[folder] = folder.stat().st_mtime
    return sorted(times, key=lambda folder: times[folder], reverse=True)


def _bytes_in(folder: Path) -> int:
    held = 0
    for path, _, names in os.walk(folder):
        held += sum(size_of(os.path.join(path, name)) for name in names)
    return held
