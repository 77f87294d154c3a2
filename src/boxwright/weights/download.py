"""Downloading a file over HTTPS: whole or not at all, resumed after a cut, within bounds of size and time.

`pooch`, the usual library for this, starts again after a cut; the hub's client writes where names from
the server lead.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from boxwright.base.errors import CheckpointError, OutputError, first_line
from boxwright.base.files import cause, file_sha256, is_file, shown, sync_folder
from boxwright.base.limits import CHECKPOINT_BYTES
from boxwright.base.redirects import CheckedRedirects

# Bytes done and, where it is known, their number in the end.
Progress = Callable[[int, int | None], None]
# Looks at a complete file, given its path and its SHA-256, before it gets its name.
Verify = Callable[[Path, str], None]
_CHUNK = 1 << 18
# An attempt that brings fewer bytes counts as one without progress, as a server could otherwise go on for days.
_LEAST_PROGRESS = 1 << 16
# Of an answer that is no file: a hub's list of a repository with tens of thousands of files.
_MOST_ANSWER, _MOST_ANSWER_SECONDS = 1 << 24, 120.0
_PAUSES = (1.0, 3.0, 9.0, 27.0)
_OK, _PARTIAL, _UNSATISFIABLE, _TOO_MANY, _SERVER = 200, 206, 416, 429, 500
_REDIRECTS = range(300, 400)
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_CONTENT_RANGE = re.compile(r"bytes (?:(?P<start>\d+)-\d+|\*)/(?P<total>\d+|\*)")


class UnreachableError(CheckpointError):
    """Nothing answers at an address, or it does not give the file; the message is the reason alone.

    Attributes:
        status: Of the server's answer; 0 if there is none, or if it may be another one later.
        headers: Of that answer.
    """

    def __init__(self, reason: str, status: int = 0, headers: Message | None = None) -> None:
        """State the reason, and what the server answered."""
        super().__init__(reason)
        self.status = status
        self.headers = headers or Message()


class _CutError(Exception):
    """The connection ended, or stalled, before the file did: worth another attempt."""


class _NoConnectionError(_CutError):
    """No connection could be made: worth another attempt only after one that could."""


class _CompleteError(Exception):
    """The server has no more than what is here already."""


@dataclass(frozen=True)
class Connection:
    """How servers are reached.

    Attributes:
        timeout: Seconds without a byte after which a connection counts as cut.
        context: Which certificates are trusted; None for the platform's, and those that SSL_CERT_FILE names.
        pauses: Seconds before each further attempt without progress.
        sleep: Waits.
        authorization: What is sent to the server of the address, and to no other that it redirects to; may be empty.
    """

    timeout: float = 60.0
    context: ssl.SSLContext | None = None
    pauses: tuple[float, ...] = _PAUSES
    sleep: Callable[[float], None] = time.sleep
    authorization: str = field(default="", repr=False)


class _Request(NamedTuple):
    """What is to be downloaded, and how."""

    address: str
    partial: Path
    size: int | None
    progress: Progress
    connection: Connection


def download(
    address: str,
    target: Path,
    size: int | None,
    progress: Progress,
    connection: Connection | None = None,
    verify: Verify = lambda path, digest: None,
) -> str:
    """Download a file; `target` appears, or is replaced, when it is complete and verified.

    An earlier attempt's bytes, in a file of the same name that ends in .partial, are kept if the server still has the
    same file and sends the rest. A file that is refused is removed.

    Args:
        address: https://…; plain http only of this machine.
        size: How many bytes the file has; None if that is not known.
        progress: Called with bytes done and their number.
        verify: Raises a CheckpointError for a file that is not the one expected.

    Returns:
        The file's SHA-256.

    Raises:
        UnreachableError: If the server cannot be reached or has no such file.
        CheckpointError: If what it sends is another file than the one expected.
        OutputError: If the disk is full, or the folder cannot be written.
    """
    require_secure(address)
    partial = partial_path(target)
    try:
        _complete(_Request(address, partial, size, progress, connection or Connection()))
        digest = file_sha256(partial)
        verify(partial, digest)
        partial.replace(target)
        sync_folder(target.parent)
        _validator_file(partial).unlink(missing_ok=True)
    except UnreachableError:
        raise
    except CheckpointError:
        discard_partial(target)
        raise
    except OSError as error:
        raise OutputError(f"{shown(target)}: could not be written: {cause(error)}") from None
    return digest


def read_answer(address: str, connection: Connection) -> bytes:
    """Return what a server answers, of at most `_MOST_ANSWER` bytes.

    Raises:
        UnreachableError: If it cannot be reached, or answers with an error.
        CheckpointError: If the answer is too long, or takes too long.
    """
    require_secure(address)
    pauses, deadline = iter(connection.pauses), time.monotonic() + _MOST_ANSWER_SECONDS
    while True:
        try:
            with _opened(address, {}, connection) as reply:
                return _read_answer(reply, deadline)
        except _CutError as cut:
            pause = None if isinstance(cut, _NoConnectionError) else next(pauses, None)
            if pause is None:
                raise UnreachableError(str(cut)) from None
            connection.sleep(pause)


def _read_answer(reply: Any, deadline: float) -> bytes:
    answer = b""
    try:
        while chunk := reply.read1(_CHUNK):
            answer += chunk
            if len(answer) > _MOST_ANSWER or time.monotonic() > deadline:
                raise CheckpointError(
                    f"the server's answer is longer than {_MOST_ANSWER:,} bytes or {_MOST_ANSWER_SECONDS:.0f} seconds"
                )
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(f"the connection was cut ({_reason(error)})") from None
    if reply.length:
        raise _CutError("the connection was cut")
    return answer


def partial_path(target: Path) -> Path:
    """Return where the bytes of a file are until it is complete."""
    return target.with_name(f"{target.name}.partial")


def discard_partial(target: Path) -> None:
    """Remove what an attempt left."""
    partial = partial_path(target)
    for path in (partial, _validator_file(partial)):
        path.unlink(missing_ok=True)


def require_secure(address: str, *, plain: bool = True) -> None:
    """Raise an UnreachableError unless an address is https, or plain http of this machine where `plain` allows it."""
    try:
        parts = urlsplit(address)
        secure = parts.scheme == "https" and bool(parts.hostname)
        allowed = secure or (plain and parts.scheme == "http" and parts.hostname in _THIS_MACHINE)
    except ValueError:
        allowed = False
    if not allowed:
        raise UnreachableError(f"{address[:200]} is not an https address")


def _complete(request: _Request) -> None:
    """Fill a partial file to its end, in as many attempts as bring it forward."""
    partial, connection = request.partial, request.connection
    pauses, furthest, connected = iter(connection.pauses), _length(partial), False
    if furthest and furthest == request.size and _read_validator(partial):
        return
    while True:
        try:
            _receive(request)
            return
        except _CompleteError:
            return
        except _CutError as cut:
            connected = connected or not isinstance(cut, _NoConnectionError)
            arrived = _length(partial)
            if arrived >= furthest + _LEAST_PROGRESS:
                pauses, furthest = iter(connection.pauses), arrived
            pause = next(pauses, None) if connected else None
            if pause is None:
                kept = f"; {arrived:,} bytes are kept, and the next attempt goes on there" if arrived else ""
                raise UnreachableError(f"{cut}{kept}") from None
            connection.sleep(pause)


def _receive(request: _Request) -> None:
    """Append what is missing to a partial file; a `_CutError` if the connection ends before the file does."""
    partial = request.partial
    done, validator = _length(partial), _read_validator(partial)
    if not validator or (request.size is not None and done > request.size):
        done = 0
    headers = {"Range": f"bytes={done}-", "If-Range": validator} if done else {}
    try:
        opened = _opened(request.address, headers, request.connection)
    except UnreachableError as error:
        if error.status == _UNSATISFIABLE and done:
            _refuse_range(error, partial, done, validator)
        raise
    with opened as reply:
        done = _first_byte(reply, done, validator, partial)
        total = _expected_size(reply, done, request)
        # The longer partial file of another version is overwritten, and so makes room.
        _require_room(partial, (total or 0) - _length(partial))
        with partial.open("ab" if done else "wb") as file:
            if not done:  # after the old bytes are gone, so that it never vouches for those
                _write_validator(partial, reply)
            _copy(reply, file, done, total, request.progress)
            file.flush()
            os.fsync(file.fileno())


def _copy(reply: Any, file: IO[bytes], done: int, total: int | None, progress: Progress) -> None:
    most = CHECKPOINT_BYTES.value if total is None else total
    while True:
        try:
            chunk = reply.read1(_CHUNK)  # what has arrived, so that a cut loses nothing of it
        except (OSError, http.client.HTTPException) as error:
            raise _CutError(f"the connection was cut ({_reason(error)})") from None
        if not chunk:
            break
        done += len(chunk)
        if done > most:
            raise CheckpointError(f"the server sends more than the {most:,} bytes expected")
        file.write(chunk)
        progress(done, total)
    if total is not None and done < total:
        raise _CutError(f"the connection ended after {done:,} of {total:,} bytes")


def _first_byte(reply: Any, done: int, validator: str, partial: Path) -> int:
    """Return where in the file a reply begins: after the bytes that are here, or at 0."""
    if reply.status == _OK:
        return 0  # the server begins again: it has no ranges, or another file
    if reply.status != _PARTIAL or not done:
        raise UnreachableError(f"the server answers {_status(reply.status)}, which nobody asked for")
    start, _ = _content_range(reply)
    if start != done or not _is_same_version(reply, validator):
        partial.unlink()
        raise _CutError("the server's file has changed, and is fetched from its beginning")
    return done


def _expected_size(reply: Any, done: int, request: _Request) -> int | None:
    """Return the size of the whole file, after checking what the reply says of it."""
    if reply.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
        raise UnreachableError(
            f"{urlsplit(reply.url).hostname} answers with a web page in place of the file, as it does when a quota of "
            "downloads is used up: try later, or fetch it by hand"
        )
    _, total = _content_range(reply) if done else (None, None)
    if total is None and reply.length is not None:
        total = done + reply.length
    size = request.size
    if size is not None and total is not None and total != size:
        raise CheckpointError(f"the server has a file of {total:,} bytes, not of {size:,}")
    if size is None and total is None and not reply.chunked:
        raise CheckpointError("the server does not say how long the file is, so that a cut would not be noticed")
    total = size if total is None else total
    if total is not None and (problem := CHECKPOINT_BYTES.exceeded(total)):
        raise CheckpointError(problem)
    return total


def _check_redirect(request: Any, address: str) -> None:
    """Raise unless a redirect leads to HTTPS; from a plain address of this machine to another of it, too."""
    require_secure(address, plain=request.type == "http")


def _opened(address: str, headers: dict[str, str], connection: Connection) -> Any:
    """Return a server's reply; raise _CutError if another attempt may get one, UnreachableError otherwise."""
    web = urllib.request.Request(address, headers=headers)
    web.add_header("User-Agent", f"boxwright/{version('boxwright')}")
    web.add_header("Accept-Encoding", "identity")
    if connection.authorization:
        web.add_unredirected_header("Authorization", connection.authorization)
    context = connection.context or ssl.create_default_context()
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), CheckedRedirects(_check_redirect)
    )
    try:
        return opener.open(web, timeout=connection.timeout)
    except urllib.error.HTTPError as error:
        error.close()
        reason = f"the server answers {_status(error.code)}"
        if error.code >= _SERVER or error.code == _TOO_MANY:
            raise _CutError(reason) from None
        raise UnreachableError(reason, error.code, error.headers) from None
    except urllib.error.URLError as error:
        reached = error.reason if isinstance(error.reason, Exception) else error
        if isinstance(reached, ConnectionResetError):
            raise _CutError(f"no answer ({_reason(reached)})") from None
        raise _NoConnectionError(_reason(reached)) from None
    except (ValueError, http.client.InvalidURL) as error:  # a host's name that is none
        raise UnreachableError(_reason(error)) from None
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(f"no answer ({_reason(error)})") from None


def _refuse_range(reply: Any, partial: Path, done: int, validator: str) -> None:
    """Raise for a server that has nothing after the bytes that are here: they are all, or of another file."""
    _, total = _content_range(reply)
    if total == done and _is_same_version(reply, validator):
        raise _CompleteError
    partial.unlink(missing_ok=True)
    raise _CutError("the server's file has become shorter")


def _status(code: int) -> str:
    """Return a status for messages; the server's own words could be anything."""
    words = "a redirect without an end, or to nowhere" if code in _REDIRECTS else http.client.responses.get(code, "")
    return f"{code} {words}".strip()


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "its host's address cannot be found: there is no connection, or a proxy is needed (HTTPS_PROXY)"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); SSL_CERT_FILE names further certificates"
    return first_line(error) or type(error).__name__


def _content_range(reply: Any) -> tuple[int | None, int | None]:
    """Return the first byte and the number of all bytes by a reply's Content-Range, each None if it is not said."""
    match = _CONTENT_RANGE.fullmatch(reply.headers.get("Content-Range", ""))
    if match is None:
        return None, None
    start, total = match["start"], match["total"]
    return int(start) if start else None, int(total) if total != "*" else None


def _require_room(partial: Path, wanted: int) -> None:
    free = shutil.disk_usage(partial.parent).free
    if wanted > free:
        raise OSError(errno.ENOSPC, f"{wanted:,} bytes are to come, and {free:,} are free")


def _length(path: Path) -> int:
    return path.stat().st_size if is_file(path) else 0


# What identifies the server's file beside the partial one, so that two versions are never joined.
def _validator_file(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def _read_validator(partial: Path) -> str:
    try:
        value = json.loads(_validator_file(partial).read_text("utf-8"))
    except (OSError, ValueError):
        return ""
    return value if isinstance(value, str) and value.isprintable() else ""


def _write_validator(partial: Path, reply: Any) -> None:
    etag = reply.headers.get("ETag", "")
    # A weak tag does not say that bytes are the same.
    value = reply.headers.get("Last-Modified", "") if not etag.startswith('"') else etag
    _validator_file(partial).write_text(json.dumps(value), "utf-8")


def _is_same_version(reply: Any, validator: str) -> bool:
    """Return whether a reply, to a request with If-Range, does not say that it is of another version."""
    name = "ETag" if validator.startswith('"') else "Last-Modified"
    return bool(reply.headers.get(name, validator) == validator)
