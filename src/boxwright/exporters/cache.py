"""Exports kept beside other caches, so that a checkpoint is detected with by the fastest runtime that is installed.

A folder for each export, named by what determines it: the weights, configuration and classes, the runtime, and the
versions of what writes and runs it. A detector that cannot be exported exactly is remembered too, with the reason.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ExportError
from boxwright.base.files import cache_folder, make_folder, write_whole
from boxwright.base.locks import lock
from boxwright.config.load import dump_message
from boxwright.exporters.export import FORMATS, About, export
from boxwright.loading.exports import open_export
from boxwright.loading.open_model import OpenModel
from boxwright.runtime.exported import ExportedDetector
from boxwright.runtime.formats import CACHED_EXPORTS
from boxwright.runtime.optional import installed_versions

_LOG = logging.getLogger("boxwright")
# A runtime's name for users → the export's format; the first that is installed is the default. ONNX Runtime took 0.26
# of eager PyTorch's time and OpenVINO 0.43 (FPNLite-320, one image, two cores).
RUNTIMES = {"onnxruntime": "onnx", "openvino": "openvino"}
_MOST_EXPORTS = 16
_MOST_BYTES = 4 << 30
_REASON = "not-exact.txt"

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
    for runtime, format in RUNTIMES.items():
        libraries = FORMATS[format].libraries
        if len(installed_versions(*libraries)) == len(libraries):
            return runtime
    return None


def find_export(model: OpenModel, runtime: str, threads: int = 0) -> CachedExport | None:
    """Return the cached export of a detector for a runtime, opened; None if there is none, or it is damaged."""
    folder = _folder(model, runtime)
    path = folder / f"detector{FORMATS[RUNTIMES[runtime]].suffix}"
    if not path.is_file():
        return None
    try:
        opened = open_export(path, threads)
    except ExportError as error:
        _LOG.warning("%s; it is made again", error)
        shutil.rmtree(folder, ignore_errors=True)
        return None
    os.utime(folder)  # for the order of removal
    return CachedExport(path, runtime, opened)


def make_export(model: OpenModel, runtime: str, sample: Sample, threads: int = 0) -> CachedExport:
    """Return the export of a detector for a runtime, opened: the cached one, or a new one.

    Args:
        model: A detector on the CPU, not yet optimized.
        runtime: A key of `RUNTIMES`.
        sample: Called if there is no cached export.

    Raises:
        ExportError: If the runtime is not installed, or its results differ from the detector's.
        OutputError: If the cache cannot be written.
    """
    folder = _folder(model, runtime)
    with _alone(folder):
        found = find_export(model, runtime, threads)
        if found is not None:
            return found
        if (folder / _REASON).is_file():
            raise ExportError((folder / _REASON).read_text().strip())
        path = make_folder(folder) / f"detector{FORMATS[RUNTIMES[runtime]].suffix}"
        pictures, source = sample()
        about = About(config=dump_message(model.config), step=model.step, source=source)
        try:
            export(model.detector, path, images=pictures, format=RUNTIMES[runtime], about=about)  # type: ignore[arg-type]
        except ExportError as error:
            write_whole(folder / _REASON, f"{error}\n".encode())
            raise
        _remove_oldest(folder)
    return CachedExport(path, runtime, open_export(path, threads))


def _folder(model: OpenModel, runtime: str) -> Path:
    format = FORMATS[RUNTIMES[runtime]]
    known = {
        "weights": model.weights_sha256(),
        "config": dump_message(model.config),
        "classes": None if model.categories is None else model.categories.to_list(),
        "runtime": runtime,
        "versions": installed_versions("boxwright", "torch", "torchvision", *format.libraries),
    }
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    return cache_folder() / CACHED_EXPORTS / digest[:32]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of an export, so that of two processes one makes it and the other waits for it."""
    path = make_folder(folder.parent) / f"{folder.name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        waited = False
        while True:
            try:
                lock(descriptor)
                break
            except BlockingIOError:
                if not waited:
                    _LOG.info("another process exports this detector; waiting for it")
                waited = True
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def _remove_oldest(newest: Path) -> None:
    """Remove exports that were not used for longest until the cache is within its bounds."""
    folders = sorted(
        (one for one in newest.parent.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime, reverse=True
    )
    held = 0
    for number, folder in enumerate(folders):
        held += sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        if folder != newest and (number >= _MOST_EXPORTS or held > _MOST_BYTES):
            shutil.rmtree(folder, ignore_errors=True)
