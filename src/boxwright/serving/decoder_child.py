"""The process that reads what strangers send: JSON, forms and pictures. `boxwright.serving.decoders` starts it.

    python -m boxwright.serving.decoder_child SOCKET FILE SETTINGS

SOCKET and FILE are descriptors that it inherits, SETTINGS is JSON. A request is a line of JSON on the socket, with its
body in the file; the answer is a line of JSON, with the pictures one after another in the file. It ends when the
socket is closed, so also with the server.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boxwright.base.child_process import limit_memory
from boxwright.base.errors import BoxwrightError
from boxwright.serving import open_inference_protocol as v2
from boxwright.serving import tensorflow_protocol as tf
from boxwright.serving.pictures import picture_of_upload
from boxwright.serving.requests import BadRequest, parsed_json
from boxwright.serving.settings import ServerSettings

LENGTH = struct.Struct("<I")
READY = {"ready": True}
# Beyond what one request leaves behind, a new process takes the place of this one.
_GROWN_BYTES = 256 * 2**20
# What a request must have had before it is worth looking.
_LARGE_BYTES = 48 * 2**20
# After the time of a request, the server ends this process; where the server itself is gone, the kernel does.
_ALARM_S = 30.0


def _read_upload(body: bytes, head: str | None, settings: ServerSettings) -> tuple[list[NDArray[np.uint8]], Any]:
    return [picture_of_upload(body, head or "", settings)], {}


def _read_tensorflow(body: bytes, _: str | None, settings: ServerSettings) -> tuple[list[NDArray[np.uint8]], Any]:
    asked = tf.question(parsed_json(body), settings)
    return asked.images, {"by_row": asked.by_row, "wanted": asked.wanted}


def _read_open_inference(
    body: bytes, head: str | None, settings: ServerSettings
) -> tuple[list[NDArray[np.uint8]], Any]:
    asked = v2.question(body, head, settings)
    return asked.images, {"outputs": asked.outputs, "binary": asked.binary, "id": asked.id}


_READERS: dict[str, Callable[[bytes, str | None, ServerSettings], tuple[list[NDArray[np.uint8]], Any]]] = {
    "upload": _read_upload,
    "tensorflow": _read_tensorflow,
    "open_inference": _read_open_inference,
}


def answered(question: dict[str, Any], file: int, settings: ServerSettings) -> bytes:
    """Return the answer to a request, whose body is read from a file and whose pictures are written to it.

    Args:
        question: `kind`, which protocol; `head`, a header of its; `size`, the body's.

    Returns:
        JSON: the `sizes` of the pictures and the `fields` of the question, or a `status` and a `reason`.
    """
    try:
        body = os.pread(file, question["size"], 0)
        pictures, fields = _READERS[question["kind"]](body, question["head"], settings)
        place = 0
        for picture in pictures:
            place += _written(file, picture, place)
        return orjson.dumps({"sizes": [picture.shape[:2] for picture in pictures], "fields": fields})
    except BadRequest as error:
        refusal = {"status": error.status, "reason": error.reason}
    except BoxwrightError as error:
        refusal = {"status": 400, "reason": str(error)[:300]}
    except MemoryError:
        reason = f"reading the request takes more than {settings.decoder_mib:g} MiB of memory"
        refusal = {"status": 413, "reason": reason}
    except Exception as error:  # noqa: BLE001  # the server writes it to its log, and answers 500
        refusal = {"status": 500, "reason": f"{type(error).__name__}: {str(error)[:1000]}"}
    return json.dumps(refusal).encode()


def _written(file: int, picture: NDArray[np.uint8], place: int) -> int:
    """Write a picture, and return how many bytes it has; the kernel writes at most 2 GiB at once."""
    data, done = np.ascontiguousarray(picture).data.cast("B"), 0
    while done < len(data):
        done += os.pwrite(file, data[done:], place + done)
    return done


def _resident_bytes() -> int:
    """Return the memory that this process holds; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _has_grown() -> bool:
    """Give back what was freed, and tell whether much is held all the same."""
    if sys.platform.startswith("linux"):
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
    return _resident_bytes() > _GROWN_BYTES


def _received(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def main(arguments: list[str]) -> None:
    """Answer requests until the server ends.

    Args:
        arguments: The descriptors of the socket and of the file, and the settings.
    """
    # Ctrl-C and a service's end reach every process of a group; requests that were taken are still read.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    connection, file = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    settings = ServerSettings(**json.loads(arguments[2]))
    limit_memory(int(settings.decoder_mib * 2**20))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # decoders' own remarks on what strangers send
    _send(connection, orjson.dumps(READY))
    with suppress(EOFError, ConnectionError):
        while True:
            (size,) = LENGTH.unpack(_received(connection, LENGTH.size))
            question = orjson.loads(_received(connection, size))
            signal.setitimer(signal.ITIMER_REAL, question["seconds"] + _ALARM_S)
            answer = answered(question, file, settings)
            signal.setitimer(signal.ITIMER_REAL, 0)
            large = question["size"] + os.fstat(file).st_size > _LARGE_BYTES
            last = large and _has_grown()
            _send(connection, answer, last=last)
            if last:
                return


def _send(connection: socket.socket, answer: bytes, *, last: bool = False) -> None:
    """Send an answer, behind its length and whether it is the last of this process."""
    connection.sendall(LENGTH.pack(len(answer)) + (b"\1" if last else b"\0") + answer)


def settings_json(settings: ServerSettings) -> str:
    """Return settings as the argument that `main` takes."""
    return json.dumps(dataclasses.asdict(settings))


if __name__ == "__main__":
    main(sys.argv[1:])
