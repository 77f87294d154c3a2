"""Input for detection: images, videos, cameras and streams, each as frames."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeGuard

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError, DataError
from boxwright.base.files import is_file
from boxwright.base.paths import require_path
from boxwright.base.text import without_secrets
from boxwright.data.image_io import ARRAY_SUFFIX, decode_image, read_array, read_image
from boxwright.inference.fetch import fetch_image, names_image, names_video, sends_image
from boxwright.inference.files import VIDEOS, find_files
from boxwright.inference.video import frame_count, read_video

_CAMERA = re.compile(r"camera(?::([0-9]{1,3}))?|([0-9]{1,3})")
_ADDRESS = re.compile(r"([a-z][a-z0-9]*)://.+", re.IGNORECASE)
_LIVE = {"rtsp", "rtsps", "rtmp", "udp", "tcp", "srt", "rtp"}
_FETCHED = {"http", "https"}
# A camera that restarts is back within a minute, and one that is gone should not be asked more often than that.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_LOG = logging.getLogger("boxwright")


@dataclass(frozen=True, eq=False)
class Frame:
    """One picture.

    Attributes:
        image: uint8 [H, W, 3] in RGB, upright; of any channels from a file of NumPy's.
        number: Its index in the source, from 0.
        time: Seconds since the source's first picture; None for an image file.
    """

    image: NDArray[np.uint8]
    source: str
    number: int = 0
    time: float | None = None


@dataclass(frozen=True, eq=False)
class ImageSource:
    """An image file.

    Attributes:
        white_level: The value that is white in images of more than 8 bits; 0 for that of 16 bits.
    """

    name: str
    white_level: float = field(default=0.0, kw_only=True)
    # Without annotations, these two are attributes of the class, not fields.
    live = False
    moving = False

    def count(self) -> int | None:
        """Return the number of pictures."""
        return 1

    def frames(self) -> Iterator[Frame]:
        """Yield the picture."""
        yield Frame(self.read(), self.name)

    def read(self) -> NDArray[np.uint8]:
        """Return the picture, with its EXIF orientation applied."""
        return read_image(Path(self.name), upright=True, white_level=self.white_level)


class ArraySource(ImageSource):
    """An image that NumPy stored, of any number of channels."""

    def read(self) -> NDArray[np.uint8]:
        """Return the picture; one channel as three that are equal, as of a gray image file."""
        image = read_array(self.name)
        return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image


@dataclass(frozen=True, eq=False)
class WebImageSource(ImageSource):
    """An image on a web server.

    Attributes:
        address: With the user information and the query that its name lacks.
    """

    address: str

    def read(self) -> NDArray[np.uint8]:
        """Return the picture, with its EXIF orientation applied."""
        return decode_image(fetch_image(self.address), self.name, upright=True, white_level=self.white_level)


@dataclass(frozen=True, eq=False)
class VideoSource:
    """A video file or network stream.

    Attributes:
        address: A path, or the stream's address with the user information and the query that its name lacks.
        live: Whether pictures arrive in real time, rather than on request.
    """

    address: str
    live: bool = False
    moving = True

    @property
    def name(self) -> str:
        """The name in results."""
        return without_secrets(self.address)

    def count(self) -> int | None:
        """Return the declared number of pictures; None if unknown."""
        return frame_count(self.address)

    def frames(self) -> Iterator[Frame]:
        """Yield the pictures, upright."""
        for number, (image, seconds) in enumerate(read_video(self.address)):
            yield Frame(image, self.name, number, seconds)


@dataclass(frozen=True, eq=False)
class CameraSource:
    """A camera of this machine, by its index."""

    index: int
    live = True
    moving = True

    @property
    def name(self) -> str:
        """The name in results."""
        return f"camera:{self.index}"

    def count(self) -> int | None:
        """Return None: unknown."""
        return None

    def frames(self) -> Iterator[Frame]:
        """Yield pictures until the camera stops; DataError if it is missing or not accessible."""
        camera = cv2.VideoCapture(self.index)
        try:
            if not camera.isOpened():
                raise DataError(f"{self.name}: no such camera, or another program uses it")
            start, number = cv2.getTickCount(), 0
            while True:
                given, picture = camera.read()
                if not given:
                    return
                seconds = (cv2.getTickCount() - start) / cv2.getTickFrequency()
                # OpenCV's channels are blue, green, red.
                yield Frame(np.ascontiguousarray(picture[..., ::-1]), self.name, number, seconds)
                number += 1
        finally:
            camera.release()


@dataclass(frozen=True, eq=False)
class ReconnectingSource:
    """A stream or camera that is opened again whenever it ends or breaks off.

    Attributes:
        source: What is opened each time.
    """

    source: VideoSource | CameraSource
    # What has no end is watched as it happens, and Ctrl-C ends it.
    live = True
    moving = True

    @property
    def name(self) -> str:
        """The name in results."""
        return self.source.name

    def count(self) -> int | None:
        """Return None: unknown."""
        return None

    def frames(self) -> Iterator[Frame]:
        """Yield pictures without end; numbers and times go on from one connection to the next.

        Raises:
            DataError: If the first connection fails, as the address is then probably wrong.
        """
        start, number, seconds, wait = time.monotonic(), 0, 0.0, _FIRST_WAIT_S
        for connection in itertools.count():
            # A source that sends faster than in real time is ahead of the clock.
            opened, reason = max(seconds, time.monotonic() - start), "it ended"
            try:
                for frame in self.source.frames():
                    seconds = opened + (frame.time or 0.0)
                    yield replace(frame, number=number, time=seconds)
                    number, wait = number + 1, _FIRST_WAIT_S
            except DataError as error:
                if connection == 0 and number == 0:
                    raise
                reason = str(error)
            _LOG.warning("%s: connecting again in %g s: %s", self.name, wait, reason.removeprefix(f"{self.name}: "))
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)


Source = ImageSource | VideoSource | CameraSource | ReconnectingSource


def find_sources(words: Sequence[str]) -> list[Source]:
    """Return the sources that a user names, in order: files, folders, patterns, `@list.txt`, `camera:0`, `rtsp://…`.

    Raises:
        DataError: For a missing file, a folder without images and videos, or an unknown kind of address.
    """
    return [source for word in words for source in _sources(word)]


def read_by_white_level(sources: Sequence[Source], level: float) -> list[Source]:
    """Return sources whose images of more than 8 bits are read by a white level; videos have 8 bits."""
    return [replace(source, white_level=level) if isinstance(source, ImageSource) else source for source in sources]


def reconnecting(sources: Sequence[Source]) -> list[Source]:
    """Return sources of which streams and cameras are opened again when they end; ConfigError if there are none."""
    replaced = [ReconnectingSource(source) if _is_stream(source) else source for source in sources]
    if not any(isinstance(source, ReconnectingSource) for source in replaced):
        raise ConfigError("--reconnect: only streams and cameras can be connected to again, and there are none")
    return replaced


def _is_stream(source: Source) -> TypeGuard[VideoSource | CameraSource]:
    """Return whether a source is a camera, a stream, or an address on the web that names no file with an end."""
    if isinstance(source, VideoSource):
        return source.live or ("://" in source.name and not names_video(source.name))
    return isinstance(source, CameraSource)


def _sources(word: str) -> list[Source]:
    address, camera = _ADDRESS.fullmatch(word), _CAMERA.fullmatch(word)
    if address:
        kind = address.group(1).lower()
        if kind not in _LIVE | _FETCHED:
            raise DataError(
                f"{word}: cannot be read frame by frame; streams begin with {', '.join(sorted(_LIVE | _FETCHED))}; "
                "object stores are supported if --out ends in .parquet"
            )
        return [VideoSource(word, live=True)] if kind in _LIVE else [_on_the_web(word)]
    require_path(word, error=DataError)
    # A file may be named 0.
    if camera and not is_file(word):
        return [CameraSource(int(camera.group(1) or camera.group(2) or 0))]
    return [_source_from_file(path) for path in find_files([word])]


def _on_the_web(url: str) -> Source:
    """Return the source at a URL, by its suffix; without a known suffix, the server is asked."""
    if names_image(url):
        return WebImageSource(without_secrets(url), url)
    if names_video(url) or not sends_image(url):
        return VideoSource(url)
    return WebImageSource(without_secrets(url), url)


def _source_from_file(path: Path) -> Source:
    suffix = path.suffix.lower()
    if suffix == ARRAY_SUFFIX:
        return ArraySource(str(path))
    return VideoSource(str(path)) if suffix in VIDEOS else ImageSource(str(path))
