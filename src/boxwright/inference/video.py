"""Reading and writing videos, through PyAV."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError, OutputError
from boxwright.base.files import cause, is_file, open_whole
from boxwright.base.limits import IMAGE_PIXELS

# MPEG's clock ticks per second, a multiple of the common frame rates.
_TICKS = 90_000
_OF_SIZES = (errno.EINVAL, errno.ENOMEM)  # decoders' errors for a picture above the pixel limit
_ENCODERS = ("libx264", "mpeg4")
_MOST_FAILURES = 1000  # consecutive unreadable packets
_WAIT_S = (15, 30)  # to open a stream, and between its pictures

# The formats and protocols that FFmpeg may use: by default it follows text files that list other files, file name
# patterns or addresses.
_RAW = "mpegvideo,m4v,h264,hevc,obu,mjpeg,ivf,yuv4mpegpipe"
_MEDIA = f"mov,matroska,avi,asf,flv,live_flv,mpeg,mpegts,mxf,dv,nut,ogg,{_RAW}"
# Video servers send playlists (HLS), whose parts may include audio or subtitles.
_ON_THE_WEB = f"{_MEDIA},hls,mpjpeg,aac,ac3,eac3,mp3,webvtt"
_LIVE = f"{_MEDIA},rtsp,rtp"
_FROM_THE_WEB = "http,https,httpproxy,crypto,tcp,tls"
_FROM_A_STREAM = f"{_FROM_THE_WEB},udp,rtp,srtp,rtsp,rtmp,rtmpe,rtmps,rtmpt,rtmpte,rtmpts,srt"


def read_video(address: str) -> Iterator[tuple[NDArray[np.uint8], float]]:
    """Yield a video's pictures as displayed, with its rotation applied.

    Damaged parts are skipped, as players do.

    Args:
        address: A file, or a URL that FFmpeg opens: rtsp://…, http://….

    Yields:
        uint8 [H, W, 3] in RGB, and seconds since the first.

    Raises:
        DataError: If it is not a video, or no picture can be decoded.
    """
    first: float | None = None
    with closing(_opened(address)) as container:
        for frame in _decoded(container, address):
            _check_size(frame, address)
            image = frame.to_ndarray(format="rgb24")
            seconds = float(frame.time or 0.0)
            first = seconds if first is None else first
            yield np.ascontiguousarray(np.rot90(image, frame.rotation // 90)), seconds - first
    if first is None:
        raise DataError(f"{address}: no picture of this video can be decoded")


def _opened(address: str) -> Any:
    av = _library()
    local = "://" not in address
    if local and not is_file(address):
        raise DataError(f"{address}: no such file")
    try:
        # `file:` keeps names from being parsed as a protocol or an address.
        container = av.open(f"file:{address}" if local else address, options=_options(address), timeout=_WAIT_S)
    except (av.FFmpegError, OSError, ValueError) as error:
        refused = getattr(error, "errno", None) == errno.EINVAL
        reason = "unsupported kind of video" if refused else cause(error)
        raise DataError(f"{address}: cannot be opened as a video: {reason}") from None
    if not container.streams.video:
        container.close()
        raise DataError(f"{address}: has no video stream, only audio or text")
    stream = container.streams.video[0]
    try:
        _check_size(stream, address)
    except DataError:
        container.close()
        raise
    stream.codec_context.options = {"max_pixels": _most_decoded()}
    return container


def _options(address: str) -> dict[str, str]:
    """Return what FFmpeg may open at an address, and the largest picture."""
    kind = address.split("://", 1)[0].lower() if "://" in address else ""
    formats, protocols = _LIVE, _FROM_A_STREAM
    if not kind:
        formats, protocols = _MEDIA, "file"
    elif kind in ("http", "https"):
        formats, protocols = _ON_THE_WEB, _FROM_THE_WEB
    # Over UDP, a lost packet would damage all pictures up to the next key frame.
    transport = {"rtsp_transport": "tcp"} if kind.startswith("rtsp") else {}
    return {
        "format_whitelist": formats,
        "protocol_whitelist": protocols,
        "max_pixels": _most_decoded(),
        **transport,
    }


def _most_decoded() -> str:
    """Return the decoders' pixel limit, above the limit on the declared size, as they add a border to each picture."""
    return str(2 * IMAGE_PIXELS.value + 2**16)


def _check_size(video: Any, address: str) -> None:
    if problem := IMAGE_PIXELS.exceeded(video.width * video.height):
        raise DataError(f"{address}: {video.width}×{video.height}: {problem}")


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
        except (av.InvalidDataError, IndexError):  # IndexError: a packet of a nonexistent stream, from damage
            _check_size(stream.codec_context, address)  # an oversized picture is reported as such
            failures += 1
        except (av.FFmpegError, OSError) as error:
            reason = cause(error)
            if getattr(error, "errno", None) in _OF_SIZES:
                _check_size(stream.codec_context, address)
                most = f"{IMAGE_PIXELS.value:,} {IMAGE_PIXELS.what}"
                reason = (
                    f"a picture is damaged, or larger than the {most} allowed ({IMAGE_PIXELS.variable} raises that)"
                )
            raise DataError(f"{address}: the video broke off: {reason}") from None
        else:
            return


def frame_count(address: str) -> int | None:
    """Return a video's declared number of pictures; None if unknown or unreadable."""
    if not is_file(address):
        return None
    try:
        container = _opened(address)
    except DataError:  # reading it says why
        return None
    with closing(container):
        stream = container.streams.video[0]
        if stream.frames:
            return int(stream.frames)
        if stream.duration and stream.average_rate:
            return round(float(stream.duration * stream.time_base * stream.average_rate))
    return None


class VideoWriter:
    """Writes pictures with their times as H.264, which browsers and players support."""

    def __init__(self, container: Any, path: Path) -> None:
        """Wrap an opened file."""
        self._container, self._path = container, path
        self._stream: Any = None
        self._last = -1

    def write(self, image: NDArray[np.uint8], seconds: float) -> None:
        """Append a picture.

        Args:
            image: uint8 [H, W, 3], of the first one's size; an odd side is padded by a pixel.

        Raises:
            OutputError: If the size differs from the first picture's.
        """
        even = np.pad(image, ((0, image.shape[0] % 2), (0, image.shape[1] % 2), (0, 0)), mode="edge")
        if self._stream is None:
            self._stream = self._begin(even.shape[1], even.shape[0])
        if (self._stream.height, self._stream.width) != even.shape[:2]:
            raise OutputError(f"{self._path}: pictures change their size from one to the next; a video cannot")
        frame = _library().VideoFrame.from_ndarray(even, format="rgb24")
        # Times must increase, or the file cannot be written: streams repeat them, and rounding may, too.
        self._last = max(self._last + 1, round(seconds * _TICKS))
        frame.pts, frame.time_base = self._last, Fraction(1, _TICKS)
        self._container.mux(self._stream.encode(frame))

    def end(self) -> None:
        """Flush the encoder."""
        if self._stream is not None:
            self._container.mux(self._stream.encode())

    def _begin(self, width: int, height: int) -> Any:
        name = next(name for name in _ENCODERS if name in _library().codecs_available)
        # The rate is nominal: each picture has its own time.
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
    """Open an .mp4 for writing, which appears under its name when complete; OutputError if it cannot be written."""
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
