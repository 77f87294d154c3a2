"""TensorBoard's event files, written as they come, under TF2's tags and where TF2 writes them."""

from __future__ import annotations

import math
import os
import socket
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import summary

from boxwright.base.files import make_folder
from boxwright.data.image_io import encode_jpeg, encode_png
from boxwright.data.tfrecord import write_records_to

# The edges of histograms as TensorBoard's own writers have them.
_EDGES = [1e-12 * 1.1**power for power in range(774)]
_HISTOGRAM_EDGES = [-edge for edge in reversed(_EDGES)] + [0.0] + _EDGES
_NUMBERS = count()
# Files of events only grow: how many times a step with pictures is the one before, and a picture's longer side.
_GROWTH = 1.25
_SIDE = 1280


class EventFile:
    """One event file. What cannot be written is an error of the call that wrote it, not of a thread's."""

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        """Make the file.

        Args:
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
        """Write a number."""
        self._write(step=step, summary=summary.scalar(tag, value))  # type: ignore[no-untyped-call]

    def image(self, tag: str, picture: NDArray[np.uint8], step: int) -> None:
        """Write a picture: no larger than a screen shows, as JPEG or PNG, whichever is smaller.

        Args:
            picture: uint8 [H, W, 3].
        """
        shown = Image.fromarray(picture)
        shown.thumbnail((_SIDE, _SIDE))
        encoded = min((encode(np.asarray(shown)) for encode in (encode_jpeg, encode_png)), key=len)
        content = Summary.Image(height=shown.height, width=shown.width, colorspace=3, encoded_image_string=encoded)
        self._write(step=step, summary=Summary(value=[Summary.Value(tag=tag, image=content)]))

    def histogram(self, tag: str, values: NDArray[np.float32], step: int) -> None:
        """Write how values are spread.

        Args:
            values: Of any shape.
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


def draws_pictures(step: int, before: int) -> bool:
    """Tell whether TensorBoard gets pictures at a step: of 1000 evaluations 32 at most have some, the first ones all.

    Steps are divided where each is 1.25 times the one before, and the first that comes in a division has pictures.
    So what a run writes grows with the logarithm of its length, and is the same where it was resumed.

    Args:
        before: Where there might have been pictures before; -1 for nowhere.
    """
    return before < 0 or _division(step) > _division(before)


def _division(step: int) -> int:
    return math.floor(math.log(step, _GROWTH)) if step > 0 else -1


def evaluation_folder(model_dir: Path, name: str) -> Path:
    """Name the folder of an evaluation's events, as TF2 does.

    Args:
        name: The evaluation reader's name; may be empty.
    """
    return model_dir / "eval" / name if name else model_dir / "eval"


def write_evaluation_events(
    events: EventFile, step: int, metrics: dict[str, float], pictures: dict[str, NDArray[np.uint8]], before: int = -1
) -> None:
    """Write an evaluation to TensorBoard under TF2's tags.

    Args:
        step: Steps that the detector was trained.
        pictures: Image id to detections beside truth; written where `draws_pictures` says so.
        before: The step of the evaluation before; -1 for none.
    """
    for tag, value in metrics.items():
        events.scalar(tag, value, step)
    for number, picture in enumerate(pictures.values() if draws_pictures(step, before) else ()):
        events.image(f"eval_side_by_side_{number}_0", picture, step)
    events.flush()
