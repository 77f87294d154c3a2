"""Downloading a file over HTTPS: whole or not at all, resumed after a cut, within bounds of size and time.

The hub's own client resumes and caches what is on the hub; `pooch`, the usual one elsewhere, starts again after a cut.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from boxwright.base.errors import CheckpointError, OutputError, first_line
from boxwright.base.files import cause, is_file, shown
from boxwright.base.limits import CHECKPOINT_BYTES

# Bytes done and, where it is known, their number in the end.
Progress = Callable[[int, int | None], None]
_CHUNK = 1 << 18
_PAUSES = (1.0, 3.0, 9.0, 27.0)
_PARTIAL, _UNSATISFIABLE, _TOO_MANY, _SERVER = 206, 416, 429, 500
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class UnreachableError(CheckpointError):
    """Nothing answers at an address, or it does not give the file; the message is the reason alone."""


class _CutError(Exception):
    """The connection ended, or stalled, before the file did: worth another attempt."""


@dataclass(frozen=True)
class Connection:
    """How servers are reached.

    Attributes:
        timeout: Seconds without a byte after which a connection counts as cut.
        context: Which certificates are trusted; None for the platform's.
        pauses: Seconds before each further attempt without progress.
        sleep: Waits.
    """

    timeout: float = 60.0
    context: ssl.SSLContext | None = None
    pauses: tuple[float, ...] = _PAUSES
    sleep: Callable[[float], None] = time.sleep


def download(
    address: str, target: Path, size: int | None, progress: Progress, connection: Connection | None = None
) -> str:
    """Download a file; `target` appears when it is complete.

    An earlier attempt's bytes, in a file of the same name that ends in .partial, are kept if the server still has the
    same file and sends the rest.

    Args:
        address: https://…; plain http only of this machine.
        size: How many bytes the file has; None if that is not known.
        progress: Called with bytes done and their number.

    Returns:
        The file's SHA-256.

    Raises:
        UnreachableError: If the server cannot be reached or has no such file.
        CheckpointError: If what it sends is another file than the one expected.
        OutputError: If the disk is full, or the folder cannot be written.
    """
    connection = connection or Connection()
    _require_secure(address)
    partial = target.with_name(f"{target.name}.partial")
    pauses = iter(connection.pauses)
    while True:
        before = _length(partial)
        try:
            _receive(address, partial, size, progress, connection)
            break
        except _CutError as cut:
            if _length(partial) > before:
                pauses = iter(connection.pauses)
            pause = next(pauses, None)
            if pause is None:
                raise UnreachableError(
                    f"{cut}; {_length(partial):,} bytes are kept, and the next attempt goes on there"
                ) from None
            connection.sleep(pause)
        except OSError as error:
            raise OutputError(f"{shown(partial)}: could not be written: {cause(error)}") from None
    digest = _digest(partial)
    try:
        partial.replace(target)
    except OSError as error:
        raise OutputError(f"{shown(target)}: could not be written: {cause(error)}") from None
    _validator_file(partial).unlink(missing_ok=True)
    return digest


def discard_partial(target: Path) -> None:
    """Remove what an attempt left."""
    partial = target.with_name(f"{target.name}.partial")
    for path in (partial, _validator_file(partial)):
        path.unlink(missing_ok=True)


def _receive(address: str, partial: Path, size: int | None, progress: Progress, connection: Connection) -> None:
    """Append what is missing to a partial file; a `_CutError` if the connection ends before the file does."""
    done, validator = _length(partial), _read_validator(partial)
    if done and not validator:
        done = 0
    headers = {"User-Agent": f"boxwright/{version('boxwright')}", "Accept-Encoding": "identity"}
    if done:
        headers |= {"Range": f"bytes={done}-", "If-Range": validator}
    with _opened(urllib.request.Request(address, headers=headers), connection, partial) as reply:
        if reply.status != _PARTIAL or not reply.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            done = 0  # the server begins again: it has no ranges, or another file
        total = _expected_size(reply, done, size, address)
        _require_room(partial, total - done if total is not None else 0)
        _write_validator(partial, reply)
        with partial.open("ab" if done else "wb") as file:
            _copy(reply, file, done, total, progress)
            file.flush()
            os.fsync(file.fileno())


def _copy(reply: Any, file: IO[bytes], done: int, total: int | None, progress: Progress) -> None:
    most = CHECKPOINT_BYTES.value if total is None else total
    while True:
        try:
            chunk = reply.read(_CHUNK)
        except (TimeoutError, ConnectionError, http.client.HTTPException, ssl.SSLError) as error:
            raise _CutError(f"the connection was cut ({first_line(error) or type(error).__name__})") from None
        if not chunk:
            break
        done += len(chunk)
        if done > most:
            raise CheckpointError(f"the server sends more than the {most:,} bytes expected")
        file.write(chunk)
        progress(done, total)
    if total is not None and done < total:
        raise _CutError(f"the connection ended after {done:,} of {total:,} bytes")


def _expected_size(reply: Any, done: int, size: int | None, address: str) -> int | None:
    """Return the size of the whole file, after checking what the reply says of it."""
    if reply.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
        raise UnreachableError(
            f"{urlsplit(address).hostname} answers with a web page in place of the file, as it does when a quota of "
            "downloads is used up: try later, or fetch it by hand"
        )
    announced = reply.headers.get("Content-Length")
    total = done + int(announced) if announced is not None and announced.isdecimal() else None
    if size is not None and total is not None and total != size:
        raise CheckpointError(f"the server has a file of {total:,} bytes, not of {size:,}")
    total = size if total is None else total
    if total is not None and (problem := CHECKPOINT_BYTES.exceeded(total)):
        raise CheckpointError(problem)
    return total


class _SecureRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to other HTTPS addresses alone."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _require_secure(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opened(request: urllib.request.Request, connection: Connection, partial: Path) -> Any:
    context = connection.context or ssl.create_default_context()
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _SecureRedirects())
    try:
        return opener.open(request, timeout=connection.timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _UNSATISFIABLE:  # the server's file is no longer than what is here: it is another one
            partial.unlink(missing_ok=True)
            raise _CutError("the server's file has become shorter") from None
        if error.code >= _SERVER or error.code == _TOO_MANY:
            raise _CutError(f"the server answers {error.code} {error.reason}") from None
        raise UnreachableError(f"the server answers {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        reason = error.reason if isinstance(error.reason, Exception) else error
        if isinstance(reason, TimeoutError | ConnectionResetError | http.client.HTTPException):
            raise _CutError(f"no answer ({first_line(reason) or type(reason).__name__})") from None
        raise UnreachableError(_reason(reason)) from None
    except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise _CutError(f"no answer ({first_line(error) or type(error).__name__})") from None


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "its host's address cannot be found: there is no connection, or a proxy is needed (HTTPS_PROXY)"
    return first_line(error) or type(error).__name__


def _require_secure(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _THIS_MACHINE):
        return
    raise UnreachableError(f"{address[:200]} is not an https address")


def _require_room(partial: Path, wanted: int) -> None:
    free = shutil.disk_usage(partial.parent).free
    if wanted > free:
        raise OSError(errno.ENOSPC, f"{wanted:,} bytes are to come, and {free:,} are free")


def _length(path: Path) -> int:
    return path.stat().st_size if is_file(path) else 0


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# What identifies the server's file beside the partial one, so that two versions are never joined.
def _validator_file(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def _read_validator(partial: Path) -> str:
    try:
        value = json.loads(_validator_file(partial).read_text("utf-8"))
    except (OSError, ValueError):
        return ""
    return value if isinstance(value, str) else ""


def _write_validator(partial: Path, reply: Any) -> None:
    etag = reply.headers.get("ETag", "")
    # A weak tag does not say that bytes are the same.
    value = reply.headers.get("Last-Modified", "") if not etag or etag.startswith("W/") else etag
    _validator_file(partial).write_text(json.dumps(value), "utf-8")
