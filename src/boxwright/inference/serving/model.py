"""A served model: its opened file behind a batcher, replaced when the file changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError, ExportError
from boxwright.inference.serving.batcher import Batcher
from boxwright.inference.serving.settings import ServerSettings
from boxwright.runtime import sessions
from boxwright.runtime.export_file import ExportFile, check_seal, export_paths, read_export_file
from boxwright.runtime.exported import ExportedDetector, checked_outputs
from boxwright.runtime.metadata import Metadata
from boxwright.runtime.thresholds import outputs_above, read_thresholds, require_same_model
from boxwright.runtime.trial import try_in_child

# Exports resize pictures of any size; a small one tells the outputs' shapes, and initializes the runtime.
_WARM_UP = (64, 64, 3)


@dataclass(frozen=True)
class ModelVersion:
    """One version of a model.

    Attributes:
        version: 1, plus one for each replacement of the file.
        shapes: The shape of each output for one picture, without the batch dimension.
    """

    version: int
    detector: ExportedDetector
    batcher: Batcher
    sha256: str
    shapes: dict[str, tuple[int, ...]]


class ServedModel:
    """The newest version of a model's file; each request is answered by the version that accepted it."""

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
        """Read the file, try it in a child process, open it, and run it once.

        Args:
            observe: Called with each batch's size and the seconds it took.
            opener: The module whose `open_bytes` opens a file's bytes.
            allow_edited: Whether to serve a file that was modified.

        Raises:
            ExportError: If the file is damaged, modified or not ours, or failed the comparison with its detector.
            DataError: If the settings' thresholds are of another model.
        """
        self.path, self.name, self._settings, self._observe = Path(path), name, settings, observe
        self._opener, self._allow_edited = opener, allow_edited
        self._swap, self._closing = threading.Lock(), threading.Event()
        self.current = self._open(read_export_file(self.path), 1)

    def _open(self, file: ExportFile, version: int) -> ModelVersion:
        # Before any library parses the file.
        if not self._allow_edited:
            check_seal(file)
        try_in_child(file, self._opener, self._closing.is_set)
        session = import_module(self._opener).open_bytes(file, self._settings.threads, self._settings.device)
        verdict = session.metadata.parity.get("verdict")
        if verdict != "passed":
            raise ExportError(f"{self.path} failed the comparison with its detector; it is not served")
        channels = session.metadata.image_channels
        if channels != _WARM_UP[2]:
            raise ExportError(
                f"{self.path} takes images of {channels} channels, and clients send colors; it is not served: "
                "boxwright.load(…) detects in arrays of so many"
            )
        if "num_detections" not in session.output_names:
            raise ExportError(f"{self.path} ends before suppression (--nms none); it is not served")
        if session.metadata.image_size:
            raise ExportError(
                f"{self.path} takes pictures of one size (--image_size), clients send any; it is not served"
            )
        probe = checked_outputs(session.run(np.zeros((1, *_WARM_UP), np.uint8)), 1)

        limits = self._limits(session.metadata)

        def run(images: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
            outputs = checked_outputs(session.run(images), len(images))
            return outputs if limits is None else outputs_above(outputs, limits)

        batcher = Batcher(
            run,
            most=self._settings.max_batch,
            wait_s=self._settings.batch_wait_ms / 1000,
            queue=self._settings.queue,
            observe=self._observe,
        )
        shapes = {name: value.shape[1:] for name, value in probe.items()}
        return ModelVersion(version, ExportedDetector(session), batcher, file.sha256(), shapes)

    def _limits(self, metadata: Metadata) -> NDArray[np.float64] | None:
        """Return the least score of each label; None without thresholds. A DataError for those of another model."""
        path = self._settings.thresholds
        if not path:
            return None
        return require_same_model(read_thresholds(path), path, metadata.weights_sha256, metadata.classes())

    def stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return each file's inode number, size and modification time (None if missing), which change with the file."""
        return tuple(_read_stamp(path) for path in export_paths(self.path))

    def reload(self) -> bool:
        """Reload the file if it has changed, and return whether it has; the old version finishes its requests.

        Raises:
            ExportError: If the new file cannot be served; the old version stays in use.
        """
        with self._swap:
            old, file = self.current, read_export_file(self.path)
            if file.sha256() == old.sha256:
                return False
            self.current = self._open(file, old.version + 1)
        # After the swap: new requests go to the new version while this waits for the old ones.
        old.batcher.close()
        return True

    def close(self) -> None:
        """Refuse new pictures and return once the queued ones are answered; a trial of a new file is aborted."""
        self._closing.set()
        self.current.batcher.close()


class Models:
    """The served models, in order and by name."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Take at least one model; their names must differ."""
        self._named = {model.name: model for model in models}
        if len(self._named) < len(models):
            raise ConfigError(f"two of the served models have one name: {', '.join(model.name for model in models)}")
        self.first = models[0]

    def get(self, name: str) -> ServedModel | None:
        """Return the model of a name; None if there is none."""
        return self._named.get(name)

    def __iter__(self) -> Iterator[ServedModel]:
        """Return an iterator over the models, in order."""
        return iter(self._named.values())


def _read_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
