"""The process that parses untrusted input: JSON, forms and pictures. `boxwright.inference.serving.decoders` starts it.

    python -m boxwright.inference.serving.decoder_child SOCKET FILE SETTINGS

SOCKET and FILE are inherited descriptors, SETTINGS is JSON. A request is a line of JSON on the socket, with its body in
the file; the answer is a line of JSON, with the pictures concatenated in the file. The process ends when the socket is
closed, so also when the server dies.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boxwright.base.errors import BoxwrightError
from boxwright.base.signals import end_signals
from boxwright.base.worker_pools import limit_memory
from boxwright.inference.serving import open_inference_protocol as v2
from boxwright.inference.serving import tensorflow_protocol as tf
from boxwright.inference.serving.pictures import picture_of_upload
from boxwright.inference.serving.requests import BadRequest, parsed_json
from boxwright.inference.serving.settings import ServerSettings

LENGTH = struct.Struct("<I")
# A process larger than this after a request is replaced.
_GROWN_BYTES = 256 * 2**20
# Only after requests larger than this is the process's size checked.
_LARGE_BYTES = 48 * 2**20
# The server kills this process after a request's time limit; if the server is gone, SIGALRM does.
_ALARM_S = 30.0


def _read_upload(body: bytes, head: str | None, settings: ServerSettings) -> tuple[list[NDArray[np.uint8]], Any]:
    return [picture_of_upload(body, head or "", settings)], {}


def _read_tensorflow(body: bytes, _: str | None, settings: ServerSettings) -> tuple[list[NDArray[np.uint8]], Any]:
    asked = tf.parse_request(parsed_json(body), settings)
    return asked.images, {"by_row": asked.by_row, "wanted": asked.wanted}


def _read_open_inference(
    body: bytes, head: str | None, settings: ServerSettings
) -> tuple[list[NDArray[np.uint8]], Any]:
    asked = v2.parse_request(body, head, settings)
    return asked.images, {"outputs": asked.outputs, "binary": asked.binary, "id": asked.id}


_READERS: dict[str, Callable[[bytes, str | None, ServerSettings], tuple[list[NDArray[np.uint8]], Any]]] = {
    "upload": _read_upload,
    "tensorflow": _read_tensorflow,
    "open_inference": _read_open_inference,
}


def answered(question: dict[str, Any], file: int, settings: ServerSettings) -> bytes:
    """Return the answer to a request, whose body is read from a file and whose pictures are written to it.

    Args:
        question: `kind`, which protocol; `head`, one of its headers; `size` of the body; the pictures' `white_level`.

    Returns:
        JSON: the pictures' `sizes` and the request's `fields`, or a `status` and a `reason`.
    """
    try:
        body = os.pread(file, question["size"], 0)
        settings = replace(settings, white_level=question["white_level"])
        pictures, fields = _READERS[question["kind"]](body, question["head"], settings)
        place = 0
        for picture in pictures:
            write_all(file, np.ascontiguousarray(picture).data.cast("B"), place)
            place += picture.nbytes
        return orjson.dumps({"sizes": [picture.shape[:2] for picture in pictures], "fields": fields})
    except BadRequest as error:
        refusal = {"status": error.status, "reason": error.reason}
    except BoxwrightError as error:
        refusal = {"status": 400, "reason": str(error)[:300]}
    except MemoryError:
        reason = f"reading the request takes more than {settings.decoder_mib:g} MiB of memory"
        refusal = {"status": 413, "reason": reason}
    except Exception as error:  # noqa: BLE001  # the server logs it and answers 500
        refusal = {"status": 500, "reason": f"{type(error).__name__}: {str(error)[:1000]}"}
    return json.dumps(refusal).encode()


def write_all(file: int, data: memoryview, place: int = 0) -> None:
    """Write bytes to a place in a file; the kernel writes at most 2 GiB per call."""
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], place + done)


def _resident_bytes() -> int:
    """Return this process's resident memory; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _has_grown() -> bool:
    """Return freed memory to the system, and return whether the process is still large."""
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
    """Answer requests until the server ends."""
    # Ctrl-C and service managers signal the whole process group; accepted requests are still decoded.
    for number in (signal.SIGINT, *end_signals()):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    connection, file = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    settings = ServerSettings(**json.loads(arguments[2]))
    limit_memory(int(settings.decoder_mib * 2**20))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # image libraries' warnings about untrusted input
    _send(connection, orjson.dumps({"ready": True}))
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
    """Send an answer, preceded by its length and whether it is this process's last."""
    connection.sendall(LENGTH.pack(len(answer)) + (b"\1" if last else b"\0") + answer)


if __name__ == "__main__":
    main(sys.argv[1:])
