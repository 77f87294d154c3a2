"""TensorBoard's event files, written at once, with TF2's tags and folders; and the pictures in them, read again."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from PIL import Image

from boxwright.base.errors import OutputError, translated
from boxwright.base.files import make_folder
from boxwright.data.image_io import encode_jpeg, encode_png
from boxwright.data.tfrecord import read_new_records, write_records_to

# The histogram edges of TensorBoard's own writers.
_EDGES = [1e-12 * 1.1**power for power in range(774)]
_HISTOGRAM_EDGES = [-edge for edge in reversed(_EDGES)] + [0.0] + _EDGES
_NUMBERS = count()
# Event files only grow: the ratio of successive steps with pictures, and the longest side of a picture.
_GROWTH = 1.25
_SIDE = 1280


def _import_messages() -> tuple[Any, Any]:
    """Return the modules of TensorBoard's messages: events and summaries.

    Imported late, so that a TensorBoard that does not fit its protobuf costs a run its events and not its start.
    """
    with translated(OutputError, "TensorBoard cannot be imported; pip install --force-reinstall tensorboard"):
        from tensorboard.compat.proto import event_pb2, summary_pb2
    return event_pb2, summary_pb2


class EventFile:
    """One event file. A failed write raises in the call, not in a thread."""

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        """Create the file; TensorBoard ignores earlier files' events from `purge_step` on.

        Raises:
            OutputError: If TensorBoard, whose messages are written, is missing or broken.
        """
        self._events, self._summaries = _import_messages()
        make_folder(folder)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        self._file = (folder / name).open("wb")
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._write(step=purge_step, session_log=start)
        self.flush()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Write a number."""
        self._write_value(step, tag=tag, simple_value=value)

    def image(self, tag: str, picture: NDArray[np.uint8], step: int) -> None:
        """Write a picture, uint8 [H, W, 3]: reduced to screen size, as JPEG or PNG, whichever is smaller."""
        shown = Image.fromarray(picture)
        shown.thumbnail((_SIDE, _SIDE))
        encoded = min((encode(np.asarray(shown)) for encode in (encode_jpeg, encode_png)), key=len)
        content = self._summaries.Summary.Image(
            height=shown.height, width=shown.width, colorspace=3, encoded_image_string=encoded
        )
        self._write_value(step, tag=tag, image=content)

    def histogram(self, tag: str, values: NDArray[np.float32], step: int) -> None:
        """Write the distribution of values of any shape."""
        # Imported here, as it takes 0.3 s: TensorBoard imports file systems in the cloud with it.
        from torch.utils.tensorboard import summary

        self._write(step=step, summary=summary.histogram(tag, values, _HISTOGRAM_EDGES))

    def flush(self) -> None:
        """Flush the file's buffer."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write_value(self, step: int, **fields: Any) -> None:
        summary = self._summaries.Summary
        self._write(step=step, summary=summary(value=[summary.Value(**fields)]))

    def _write(self, **fields: Any) -> None:
        event = self._events.Event(wall_time=time.time(), **fields)
        write_records_to(self._file, [event.SerializeToString()])


def draws_pictures(step: int, before: int) -> bool:
    """Whether TensorBoard gets pictures at a step: of 1000 evaluations at most 32 have some, including the first ones.

    Steps fall into intervals, each 1.25 times as long as the one before, and the first evaluation in an interval has
    pictures. So their number grows with the logarithm of a run's length, and does not change when it is resumed.

    Args:
        before: The step of the evaluation before; -1 for none.
    """
    return before < 0 or _interval(step) > _interval(before)


def _interval(step: int) -> int:
    return math.floor(math.log(step, _GROWTH)) if step > 0 else -1


def evaluation_folder(model_dir: Path, name: str) -> Path:
    """Return TF2's folder for the events of an evaluation reader, whose name may be empty."""
    return model_dir / "eval" / name if name else model_dir / "eval"


def write_evaluation_events(
    events: EventFile, step: int, metrics: dict[str, float], pictures: dict[str, NDArray[np.uint8]], before: int = -1
) -> None:
    """Write an evaluation to TensorBoard with TF2's tags, and pictures if `draws_pictures(step, before)`."""
    for tag, value in metrics.items():
        events.scalar(tag, value, step)
    for number, picture in enumerate(pictures.values() if draws_pictures(step, before) else ()):
        events.image(f"eval_side_by_side_{number}_0", picture, step)
    events.flush()


@dataclass(frozen=True)
class LoggedPicture:
    """A picture in an event file: PNG or JPEG, as it was encoded."""

    tag: str
    step: int
    encoded: bytes


class EventFollower:
    """Reads the pictures that were added to one event file since it last looked, while it is being written."""

    def __init__(self, path: Path, *tags: str) -> None:
        """Begin at the start of the file.

        Args:
            path: The event file.
            *tags: How the tags of the wanted pictures begin.
        """
        self._path, self._start, self._tags = path, 0, tags
        self._events, _ = _import_messages()

    def read(self) -> Iterator[LoggedPicture]:
        """Yield the new pictures in order; a record that is not complete yet is left for the next time."""
        wanted = [tag.encode() for tag in self._tags]
        for record, stop in read_new_records(self._path, self._start):
            self._start = stop
            # Most of a file are numbers and histograms, which need not be parsed.
            if not any(tag in record for tag in wanted):
                continue
            try:
                event = self._events.Event.FromString(record)
            except DecodeError:
                continue
            for value in event.summary.value:
                if value.HasField("image") and value.tag.startswith(self._tags):
                    yield LoggedPicture(value.tag, event.step, value.image.encoded_image_string)
