"""Files in an export's format that another program wrote: what they say of themselves, read without a runtime.

Boxwright opens only what it wrote, which says what goes in and what comes out. What a foreign file says of itself is in
the error, so that its user knows what runs it.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable

from boxwright.base.errors import shortened
from boxwright.base.files import diagnose_wrong_file
from boxwright.runtime.metadata import KEY
from boxwright.runtime.onnx_wire import described

_RUN_WITH = {".onnx": "ONNX Runtime", ".xml": "OpenVINO", ".tflite": "LiteRT", ".pt2": "torch.export.load"}
_LONGEST = 100
_TFLITE, _DESCRIPTION = b"TFL3", 3  # the identifier of the format, and the number of a model's field
# The files that Ultralytics attaches to a .tflite: a dictionary, as Python or as JSON.
_ATTACHED, _MOST_ATTACHED = ("temp_meta.txt", "metadata.json"), 1 << 20
_TASK = re.compile(r"""["']task["']: ["'](\w{1,40})["']""")


def foreign_file(data: bytes, suffix: str) -> str:
    """Return that another program wrote a file, and what runs it; empty if it may be Boxwright's, even a damaged one.

    Args:
        data: The file's bytes; of two files, the first one's.
        suffix: That of an export, which names the format.
    """
    # OpenVINO's files are XML, which elsewhere is a server's error.
    if suffix != ".xml" and (instead := diagnose_wrong_file(data)):
        return f"is {instead}"
    try:
        said = _READERS[suffix](data)
    except (ValueError, struct.error, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        return ""
    if said is None:
        return ""
    words = "; ".join(plain for text in said if (plain := _plain(text)))
    about = f" ({words})" if words else ""
    return f"was not written by Boxwright: run it with {_RUN_WITH[suffix]}, or with the program that wrote it{about}"


def _plain(text: str) -> str:
    """Return a foreign text as one short line."""
    return shortened(" ".join("".join(c if c.isprintable() else " " for c in text).split()), _LONGEST)


# Each returns what a file says of itself: its producer, a description, its task; None if it may be Boxwright's.
def _onnx(data: bytes) -> Iterable[str] | None:
    producer, metadata = described(data)
    if KEY in metadata:
        return None
    task = metadata.get("task", "")
    return [producer, metadata.get("description", ""), f"task {task}" if task else ""]


def _tflite(data: bytes) -> Iterable[str] | None:
    if data[4:8] != _TFLITE:
        raise ValueError("not a .tflite")
    if KEY.upper().encode() in data:
        return None
    task = _attached_task(data)
    return [_tflite_description(data), f"task {task}" if task else ""]


def _tflite_description(data: bytes) -> str:
    """Return a model's description, a string in a flatbuffer (https://flatbuffers.dev/internals); empty if none."""
    (model,) = struct.unpack_from("<I", data, 0)
    (back,) = struct.unpack_from("<i", data, model)
    table = model - back
    if table < 0 or model > len(data):
        raise ValueError("a table outside the file")
    (size,) = struct.unpack_from("<H", data, table)
    entry = 4 + 2 * _DESCRIPTION
    place = struct.unpack_from("<H", data, table + entry)[0] if entry + 2 <= size else 0
    if not place:
        return ""
    start = model + place + struct.unpack_from("<I", data, model + place)[0]
    (length,) = struct.unpack_from("<I", data, start)
    return data[start + 4 : start + 4 + min(length, 4 * _LONGEST)].decode("utf-8", "replace")


def _attached_task(data: bytes) -> str:
    """Return the task in what Ultralytics attaches to a .tflite; empty if nothing is attached."""
    stream = io.BytesIO(data)
    if not zipfile.is_zipfile(stream):
        return ""
    with zipfile.ZipFile(stream) as archive:
        infos = [info for info in archive.infolist() if info.filename in _ATTACHED and info.file_size <= _MOST_ATTACHED]
        texts = [archive.read(info).decode("utf-8", "replace") for info in infos]
    return next((match[1] for text in texts if (match := _TASK.search(text))), "")


def _openvino(data: bytes) -> Iterable[str] | None:
    if not data.lstrip().startswith((b"<?xml", b"<net")) or b"<net" not in data:
        raise ValueError("not an OpenVINO model")
    return None if KEY.encode() in data else []


def _pt2(data: bytes) -> Iterable[str] | None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
    return None if any(KEY in name for name in names) else []


_READERS: dict[str, Callable[[bytes], Iterable[str] | None]] = {
    ".onnx": _onnx,
    ".tflite": _tflite,
    ".xml": _openvino,
    ".pt2": _pt2,
}
