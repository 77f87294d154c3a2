"""Downloading images from web servers."""

from __future__ import annotations

import base64
import http.client
import threading
import time
import urllib.error
import urllib.request
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from boxwright.base.errors import DataError
from boxwright.base.files import cause
from boxwright.base.limits import DOWNLOAD_BYTES, DOWNLOAD_SECONDS
from boxwright.base.redirects import CheckedRedirects
from boxwright.base.text import is_count, visible
from boxwright.inference.files import IMAGES, VIDEOS

_SCHEMES = ("http", "https")
_CHUNK = 1 << 16
_PROBE_S = 10.0
_MOST_WORDS = 200
# Content types of files of unknown kind; the bytes decide then.
_UNSPECIFIED = ("", "application/octet-stream", "binary/octet-stream")


def names_image(url: str) -> bool:
    """Return whether a URL's path has an image file's suffix."""
    return _suffix(url) in IMAGES


def names_video(url: str) -> bool:
    """Return whether a URL's path has a video's suffix."""
    return _suffix(url) in VIDEOS


def _split(url: str) -> SplitResult:
    """Return the parts of a URL; DataError if it is none."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise DataError(f"{url}: not a URL: {error}") from None
    return parts


def _suffix(url: str) -> str:
    return PurePosixPath(unquote(_split(url).path)).suffix.lower()


def sends_image(url: str) -> bool:
    """Return whether a server reports an image at a URL.

    False also if it cannot be reached: the video reader, which supports more protocols, then reports the error.
    """
    try:
        with _opened(url, _PROBE_S) as answer:
            return _kind(answer).startswith("image/")
    except (OSError, http.client.HTTPException, ValueError, DataError):
        return False


def fetch_image(url: str) -> bytes:
    """Return the bytes of an image file on a web server.

    Args:
        url: http://… or https://…. Only redirects to such addresses are followed.

    Raises:
        DataError: If the download fails, is not an image by its content type, or exceeds `limits.DOWNLOAD_BYTES` or
            `limits.DOWNLOAD_SECONDS`.
    """
    # In a thread: a socket's timeout restarts with every byte, so that headers could trickle in forever.
    results: list[bytes | DataError] = []
    fetching = threading.Thread(target=lambda: results.append(_fetched(url)), daemon=True)
    fetching.start()
    fetching.join(DOWNLOAD_SECONDS.value)
    answer = results[0] if results else DataError(f"{url}: {DOWNLOAD_SECONDS.exceeded(DOWNLOAD_SECONDS.value + 1)}")
    if isinstance(answer, DataError):
        raise answer
    return answer


def _fetched(url: str) -> bytes | DataError:
    until = time.monotonic() + DOWNLOAD_SECONDS.value
    try:
        with _opened(url, DOWNLOAD_SECONDS.value) as answer:
            kind = _kind(answer)
            if not kind.startswith("image/") and kind not in _UNSPECIFIED:
                return DataError(f"{url}: expected an image, found {kind}; open it in a browser to see why")
            return _read(answer, url, until)
    except DataError as error:
        return error
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _failed(url, error)


def _check_redirect(request: Any, address: str) -> None:
    """Raise a DataError for a redirect to an address that is not a web's; urllib would also follow to ftp."""
    _require_web(address, f"{request.full_url} leads to {address}")


def _require_web(url: str, what: str) -> None:
    if _split(url).scheme.lower() not in _SCHEMES:
        raise DataError(f"{what}: expected a URL that begins with http:// or https://")


def _opened(url: str, seconds: float) -> Any:
    _require_web(url, url)
    opener = urllib.request.OpenerDirector()  # one without file:// and data:
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        CheckedRedirects(_check_redirect),
    ):
        opener.add_handler(handler)
    parts = _split(url)
    user, _, place = parts.netloc.rpartition("@")
    # Some servers answer 403 to urllib's own name.
    headers = {"User-Agent": "boxwright", "Accept": "image/*, */*;q=0.5"}
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=place)), headers=headers)
    if user:
        # Not sent to where the server redirects.
        token = base64.b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return opener.open(request, timeout=seconds)


def _kind(answer: Any) -> str:
    return str(answer.headers.get("Content-Type", "")).partition(";")[0].strip().lower()


def _read(answer: Any, url: str, until: float) -> bytes:
    """Read the whole response, within the limits on bytes and time."""
    length = answer.headers.get("Content-Length", "")
    expected = int(length) if is_count(length) else None
    data = bytearray()
    if expected is not None and (problem := DOWNLOAD_BYTES.exceeded(expected)):
        raise DataError(f"{url}: {problem}")
    # read1 returns what has arrived, so that the limits are checked even while a server trickles bytes.
    while chunk := answer.read1(_CHUNK):
        data += chunk
        if problem := DOWNLOAD_BYTES.exceeded(len(data)):
            raise DataError(f"{url}: {problem}")
        if time.monotonic() > until:
            raise DataError(f"{url}: {DOWNLOAD_SECONDS.exceeded(DOWNLOAD_SECONDS.value + 1)}")
    if not data:
        raise DataError(f"{url}: the server sent nothing; try again")
    if expected is not None and len(data) < expected:
        raise DataError(f"{url}: the download broke off after {len(data):,} of {expected:,} bytes; try again")
    return bytes(data)


def _failed(url: str, error: Exception) -> DataError:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        # The server's own words could be anything, and be any length.
        return DataError(f"{url}: the server returned {error.code} {visible(str(error.reason))[:_MOST_WORDS]}".rstrip())
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    # An error may quote what the server sent.
    words = (cause(reason) if isinstance(reason, Exception) else str(reason)).strip().partition("\n")[0]
    return DataError(f"{url}: cannot be fetched: {visible(words)[:_MOST_WORDS]}")
