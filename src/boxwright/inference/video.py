"""Reading and writing videos, by PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.errors import DataError, OutputError
from boxwright.files import cause, is_file, open_whole

__all__ = ["VideoWriter", "frame_count", "open_video_for_writing", "read_video"]

# Ticks a second of times in videos, as MPEG counts them: frame rates of cinema, television and screens divide it.
_TICKS = 90_000
_ENCODERS = ("libx264", "mpeg4")
_MOST_FAILURES = 1000  # packets that cannot be read, one after the other
_WAIT_S = (15, 30)  # until a stream answers, and between its pictures


def read_video(address: str) -> Iterator[tuple[NDArray[np.uint8], float]]:
    """Yield a video's pictures as people see them: a rotation that the file asks for is applied.

    Damaged parts are left out, as players do.

    Args:
        address: A file, or what FFmpeg opens: rtsp://…, http://….

    Yields:
        uint8 [H, W, 3] in RGB, and seconds since the first.

    Raises:
        DataError: For what is no video, has no pictures, or of which none can be decoded.
    """
    first: float | None = None
    with closing(_opened(address)) as container:
        for frame in _decoded(container, address):
            image = frame.to_ndarray(format="rgb24")
            seconds = float(frame.time or 0.0)
            first = seconds if first is None else first
            yield np.ascontiguousarray(np.rot90(image, frame.rotation // 90)), seconds - first
    if first is None:
        raise DataError(f"{address}: no picture of this video can be decoded")


def _opened(address: str) -> Any:
    av = _library()
    if "://" not in address and not is_file(address):
        raise DataError(f"{address}: no such file")
    options = {"rtsp_transport": "tcp"} if address.lower().startswith("rtsp") else {}
    try:
        container = av.open(address, options=options, timeout=_WAIT_S)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise DataError(f"{address}: cannot be opened as a video: {cause(error)}") from None
    if not container.streams.video:
        container.close()
        raise DataError(f"{address}: has no pictures, only sound or text")
    return container


def _decoded(container: Any, address: str) -> Iterator[Any]:
    av = _library()
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    failures = 0
    while failures < _MOST_FAILURES:
        try:
            for packet in container.demux(stream):
                yield from packet.decode()
                failures = 0
        except EOFError:
            return
        except (av.InvalidDataError, IndexError):  # IndexError: a packet of a stream that damage has made up
            failures += 1
        except (av.FFmpegError, OSError) as error:
            raise DataError(f"{address}: the video broke off: {cause(error)}") from None
        else:
            return


def frame_count(address: str) -> int | None:
    """Return how many pictures a video says it has; None where it says nothing, or cannot be read."""
    if not is_file(address):
        return None
    with closing(_opened(address)) as container:
        stream = container.streams.video[0]
        if stream.frames:
            return int(stream.frames)
        if stream.duration and stream.average_rate:
            return round(float(stream.duration * stream.time_base * stream.average_rate))
    return None


class VideoWriter:
    """Writes pictures with their times as H.264, which browsers and players show."""

    def __init__(self, container: Any, path: Path) -> None:
        """Take an opened file.

        Args:
            container: PyAV's, for writing.
            path: What errors name.
        """
        self._container, self._path = container, path
        self._stream: Any = None
        self._last = -1

    def write(self, image: NDArray[np.uint8], seconds: float) -> None:
        """Append a picture.

        Args:
            image: uint8 [H, W, 3]; all of one video have the first one's size. An odd side gets a pixel more.
            seconds: Since the video's beginning; never less than the one before.

        Raises:
            OutputError: For a picture of another size than the first.
        """
        even = np.pad(image, ((0, image.shape[0] % 2), (0, image.shape[1] % 2), (0, 0)), mode="edge")
        if self._stream is None:
            self._stream = self._begin(even.shape[1], even.shape[0])
        if (self._stream.height, self._stream.width) != even.shape[:2]:
            raise OutputError(f"{self._path}: pictures change their size from one to the next; a video cannot")
        frame = _library().VideoFrame.from_ndarray(even, format="rgb24")
        self._last = max(self._last + 1, round(seconds * _TICKS))
        frame.pts, frame.time_base = self._last, Fraction(1, _TICKS)
        self._container.mux(self._stream.encode(frame))

    def end(self) -> None:
        """Write what the encoder still holds."""
        if self._stream is not None:
            self._container.mux(self._stream.encode())

    def _begin(self, width: int, height: int) -> Any:
        name = next(name for name in _ENCODERS if name in _library().codecs_available)
        stream = self._container.add_stream(name, rate=30)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, _TICKS)
        if name == "libx264":
            stream.options = {"crf": "20", "preset": "veryfast"}
        else:
            stream.bit_rate = 8 * width * height
        return stream


@contextmanager
def open_video_for_writing(path: Path) -> Iterator[VideoWriter]:
    """Open an .mp4 for writing; it appears under its name when it is whole.

    Args:
        path: The file; its folder must exist.

    Yields:
        What takes the pictures.

    Raises:
        OutputError: Where it cannot be written.
    """
    av = _library()
    with open_whole(path) as file:
        try:
            with av.open(file, "w", format="mp4") as container:
                writer = VideoWriter(container, path)
                yield writer
                writer.end()
        except av.FFmpegError as error:
            raise OutputError(f"{path}: could not be written: {cause(error)}") from None


def _library() -> Any:
    try:
        import av
    except ImportError:
        raise DataError("videos need PyAV: pip install 'boxwright[video]'") from None
    return av
