"""A model that is served: its file, opened, behind a batcher; and its successor when the file changes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.errors import ExportError
from boxwright.files import read_file
from boxwright.runtime.exported import ExportedDetector, open_exported
from boxwright.serving.batcher import Batcher
from boxwright.serving.settings import ServerSettings

__all__ = ["Served", "ServedModel"]

_WARM_UP = (64, 64, 3)


@dataclass(frozen=True)
class Served:
    """One version of a model.

    Attributes:
        version: 1, and one more for each file that took its place.
        detector: The opened file.
        batcher: Runs it.
        sha256: Of the file.
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
        open_file: Callable[[Path, int], ExportedDetector] = open_exported,
    ) -> None:
        """Open the file, and run it once.

        Args:
            path: The file.
            name: What clients call the model.
            settings: How.
            observe: Is told the size of each batch, and the seconds it took.
            open_file: Opens a file for a number of threads.

        Raises:
            ExportError: Where the file is damaged or not ours, or was written although it differs from its detector.
        """
        self.path, self.name, self._settings, self._observe = Path(path), name, settings, observe
        self._open_file = open_file
        self._swap = threading.Lock()
        self.current = self._open(1)

    def _open(self, version: int) -> Served:
        detector = self._open_file(self.path, self._settings.threads)
        session = detector.session
        verdict = session.metadata.parity.get("verdict")
        if verdict != "passed":
            raise ExportError(f"{self.path} was written although it differs from its detector; it is not served")
        if "num_detections" not in session.output_names:
            raise ExportError(f"{self.path} ends before suppression (--nms none); it is not served")
        probe = session.run(np.zeros((1, *_WARM_UP), np.uint8))

        def run(images: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
            return session.run(images)

        batcher = Batcher(
            run,
            most=self._settings.max_batch,
            wait_s=self._settings.batch_wait_ms / 1000,
            queue=self._settings.queue,
            observe=self._observe,
        )
        sha256 = hashlib.sha256(read_file(self.path)).hexdigest()
        shapes = {name: value.shape[1:] for name, value in probe.items()}
        return Served(version, detector, batcher, sha256, shapes)

    def reload(self) -> bool:
        """Take up the file anew where it has changed; the old version finishes what it took.

        Returns:
            Whether it had changed.

        Raises:
            ExportError: Where the new file cannot be served; the old version goes on.
        """
        with self._swap:
            old = self.current
            if hashlib.sha256(read_file(self.path)).hexdigest() == old.sha256:
                return False
            self.current = self._open(old.version + 1)
        old.batcher.close()
        return True

    def close(self) -> None:
        """Take no more; return once what waits is answered."""
        self.current.batcher.close()
