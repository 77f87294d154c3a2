"""A model that is served: its file, opened, behind a batcher; and its successor when the file changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ExportError
from boxwright.runtime import sessions
from boxwright.runtime.export_file import ExportFile, check_seal, export_paths, read_export_file
from boxwright.runtime.exported import ExportedDetector, checked_outputs
from boxwright.runtime.trial import try_in_child
from boxwright.serving.batcher import Batcher
from boxwright.serving.settings import ServerSettings

_WARM_UP = (64, 64, 3)


@dataclass(frozen=True)
class Served:
    """One version of a model.

    Attributes:
        version: 1, and one more for each file that took its place.
        detector: The opened file.
        batcher: Runs it.
        sha256: Of its files.
        shapes: The shape of each output for one picture, without the batch.
    """

    version: int
    detector: ExportedDetector
    batcher: Batcher
    sha256: str
    shapes: dict[str, tuple[int, ...]]


class ServedModel:
    """The newest version of a model's file; requests that were taken are answered by the version that took them."""

    def __init__(
        self,
        path: str | Path,
        name: str,
        settings: ServerSettings,
        observe: Callable[[int, float], Any] = lambda size, seconds: None,
        opener: str = sessions.__name__,
        *,
        allow_edited: bool = False,
    ) -> None:
        """Read the file, try it in a process of its own, open what was read, and run it once.

        Args:
            observe: Is told the size of each batch, and the seconds it took.
            opener: The module whose `session_of` opens a file's bytes.
            allow_edited: Whether a file is served that is not as it was written.

        Raises:
            ExportError: Where the file is damaged, edited or not ours, or was written although it differs from its
                detector.
        """
        self.path, self.name, self._settings, self._observe = Path(path), name, settings, observe
        self._opener, self._allow_edited = opener, allow_edited
        self._swap, self._closing = threading.Lock(), threading.Event()
        self.current = self._open(read_export_file(self.path), 1)

    def _open(self, file: ExportFile, version: int) -> Served:
        if not self._allow_edited:
            check_seal(file)
        try_in_child(file, self._opener, self._closing.is_set)
        session = import_module(self._opener).session_of(file, self._settings.threads)
        verdict = session.metadata.parity.get("verdict")
        if verdict != "passed":
            raise ExportError(f"{self.path} was written although it differs from its detector; it is not served")
        if "num_detections" not in session.output_names:
            raise ExportError(f"{self.path} ends before suppression (--nms none); it is not served")
        probe = checked_outputs(session.run(np.zeros((1, *_WARM_UP), np.uint8)), 1)

        def run(images: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
            return checked_outputs(session.run(images), len(images))

        batcher = Batcher(
            run,
            most=self._settings.max_batch,
            wait_s=self._settings.batch_wait_ms / 1000,
            queue=self._settings.queue,
            observe=self._observe,
        )
        shapes = {name: value.shape[1:] for name, value in probe.items()}
        return Served(version, ExportedDetector(session), batcher, file.sha256(), shapes)

    def stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return what shows that the model's files were replaced or changed.

        Returns:
            Of each file its number, size and time; None where it is gone.
        """
        return tuple(_stamp_of(one) for one in export_paths(self.path))

    def reload(self) -> bool:
        """Take up the file anew where it has changed; the old version finishes what it took.

        Raises:
            ExportError: Where the new file cannot be served; the old version goes on.
        """
        with self._swap:
            old, file = self.current, read_export_file(self.path)
            if file.sha256() == old.sha256:
                return False
            self.current = self._open(file, old.version + 1)
        old.batcher.close()
        return True

    def close(self) -> None:
        """Take no more; return once what waits is answered. A file that is being tried is given up."""
        self._closing.set()
        self.current.batcher.close()


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
