"""TensorBoard's event files, written as they come, under TF2's tags and where TF2 writes them."""

from __future__ import annotations

import os
import socket
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard import summary

from boxwright.data.tfrecord import write_records_to
from boxwright.files import make_folder

__all__ = ["EventFile", "evaluation_folder", "write_evaluation_events"]

# The edges of histograms as TensorBoard's own writers have them.
_EDGES = [1e-12 * 1.1**power for power in range(774)]
_HISTOGRAM_EDGES = [-edge for edge in reversed(_EDGES)] + [0.0] + _EDGES
_NUMBERS = count()


class EventFile:
    """One event file. What cannot be written is an error of the call that wrote it, not of a thread's."""

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        """Make the file.

        Args:
            folder: Where; it is made.
            purge_step: The step from which on TensorBoard is to forget what earlier files of the folder say.

        Raises:
            OutputError: Where the folder cannot be made.
            OSError: Where the file cannot be written.
        """
        make_folder(folder)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        self._file = (folder / name).open("wb")
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            self._write(step=purge_step, session_log=SessionLog(status=SessionLog.START))
        self.flush()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Write a number.

        Args:
            tag: Its name.
            value: The number.
            step: Steps done.
        """
        self._write(step=step, summary=summary.scalar(tag, value))  # type: ignore[no-untyped-call]

    def image(self, tag: str, picture: NDArray[np.uint8], step: int) -> None:
        """Write a picture.

        Args:
            tag: Its name.
            picture: uint8 [H, W, 3].
            step: Steps done.
        """
        self._write(step=step, summary=summary.image(tag, picture, dataformats="HWC"))  # type: ignore[no-untyped-call]

    def histogram(self, tag: str, values: NDArray[np.float32], step: int) -> None:
        """Write how values are spread.

        Args:
            tag: Its name.
            values: Of any shape.
            step: Steps done.
        """
        self._write(step=step, summary=summary.histogram(tag, values, _HISTOGRAM_EDGES))  # type: ignore[no-untyped-call]

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _write(self, **fields: Any) -> None:
        event = Event(wall_time=time.time(), **fields)
        write_records_to(self._file, [event.SerializeToString()])


def evaluation_folder(model_dir: Path, name: str) -> Path:
    """Name the folder of an evaluation's events, as TF2 does.

    Args:
        model_dir: The run's folder.
        name: The evaluation reader's name; may be empty.

    Returns:
        The folder.
    """
    return model_dir / "eval" / name if name else model_dir / "eval"


def write_evaluation_events(
    events: EventFile, step: int, metrics: dict[str, float], pictures: dict[str, NDArray[np.uint8]]
) -> None:
    """Write an evaluation to TensorBoard under TF2's tags.

    Args:
        events: The folder's file.
        step: Steps that the detector was trained.
        metrics: Metric name to value.
        pictures: Image id to detections beside truth.
    """
    for tag, value in metrics.items():
        events.scalar(tag, value, step)
    for number, picture in enumerate(pictures.values()):
        events.image(f"eval_side_by_side_{number}_0", picture, step)
    events.flush()
