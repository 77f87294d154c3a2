"""Images on web servers."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.request
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from boxwright.base.errors import DataError
from boxwright.base.files import cause
from boxwright.base.limits import DOWNLOAD_BYTES, DOWNLOAD_SECONDS
from boxwright.inference.files import IMAGES, VIDEOS

_SCHEMES = ("http", "https")
_CHUNK = 1 << 16
_ASKED_S = 10.0
# What servers say of files whose kind they do not know; the bytes decide then.
_UNSAID = ("", "application/octet-stream", "binary/octet-stream")


def names_image(url: str) -> bool:
    """Return whether an address's path ends as an image file's name does."""
    return _suffix(url) in IMAGES


def names_video(url: str) -> bool:
    """Return whether an address's path ends as a video's name does."""
    return _suffix(url) in VIDEOS


def _suffix(url: str) -> str:
    return PurePosixPath(unquote(urlsplit(url).path)).suffix.lower()


def sends_image(url: str) -> bool:
    """Return whether a server says that an image is at an address.

    Returns:
        False, too, where it cannot be asked: what reads videos says then what is wrong, and knows more protocols.
    """
    try:
        with _opened(url, _ASKED_S) as answer:
            return _kind(answer).startswith("image/")
    except (OSError, http.client.HTTPException, ValueError, DataError):
        return False


def fetch_image(url: str) -> bytes:
    """Fetch an image file.

    Args:
        url: http://… or https://…. Redirects are followed to such addresses alone.

    Returns:
        The file's bytes, not yet decoded.

    Raises:
        DataError: For another address, what is no image by what the server says, is larger than
            `limits.DOWNLOAD_BYTES`, takes longer than `limits.DOWNLOAD_SECONDS`, or is cut off; and where the server
            does not answer or has no such file.
    """
    # In a thread of its own: a socket's timeout begins anew with every byte, so that headers could trickle for ever.
    found: list[bytes | DataError] = []
    fetching = threading.Thread(target=lambda: found.append(_fetched(url)), daemon=True)
    fetching.start()
    fetching.join(DOWNLOAD_SECONDS.value)
    answer = found[0] if found else DataError(f"{url}: {DOWNLOAD_SECONDS.exceeded(DOWNLOAD_SECONDS.value + 1)}")
    if isinstance(answer, DataError):
        raise answer
    return answer


def _fetched(url: str) -> bytes | DataError:
    until = time.monotonic() + DOWNLOAD_SECONDS.value
    try:
        with _opened(url, DOWNLOAD_SECONDS.value) as answer:
            kind = _kind(answer)
            if not kind.startswith("image/") and kind not in _UNSAID:
                return DataError(f"{url}: expected an image, found {kind}; a browser shows what is there")
            return _read(answer, url, until)
    except DataError as error:
        return error
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _failed(url, error)


class _WebAlone(urllib.request.HTTPRedirectHandler):
    """Follows redirects to other web addresses, and to nothing else (urllib would follow to ftp)."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        try:
            _require_web(newurl, f"{req.full_url} leads to {newurl}")
        except DataError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _require_web(url: str, what: str) -> None:
    if urlsplit(url).scheme.lower() not in _SCHEMES:
        raise DataError(f"{what}: expected an address that begins with http:// or https://")


def _opened(url: str, seconds: float) -> Any:
    _require_web(url, url)
    opener = urllib.request.OpenerDirector()  # one that knows neither file:// nor data:
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        _WebAlone,
    ):
        opener.add_handler(handler())
    request = urllib.request.Request(url, headers={"User-Agent": "boxwright", "Accept": "image/*, */*;q=0.5"})
    return opener.open(request, timeout=seconds)


def _kind(answer: Any) -> str:
    return str(answer.headers.get("Content-Type", "")).partition(";")[0].strip().lower()


def _read(answer: Any, url: str, until: float) -> bytes:
    """Read the whole answer, never more than is allowed, and not for ever where it trickles."""
    length = answer.headers.get("Content-Length", "")
    expected = int(length) if length.isdecimal() else None
    data = bytearray()
    if expected is not None and (problem := DOWNLOAD_BYTES.exceeded(expected)):
        raise DataError(f"{url}: {problem}")
    while chunk := answer.read1(_CHUNK):
        data += chunk
        if problem := DOWNLOAD_BYTES.exceeded(len(data)):
            raise DataError(f"{url}: {problem}")
        if time.monotonic() > until:
            raise DataError(f"{url}: {DOWNLOAD_SECONDS.exceeded(DOWNLOAD_SECONDS.value + 1)}")
    if expected is not None and len(data) < expected:
        raise DataError(f"{url}: the download broke off after {len(data):,} of {expected:,} bytes; try again")
    return bytes(data)


def _failed(url: str, error: Exception) -> DataError:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return DataError(f"{url}: the server answers {error.code} {error.reason}")
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return DataError(f"{url}: cannot be fetched: {cause(reason) if isinstance(reason, Exception) else reason}")
