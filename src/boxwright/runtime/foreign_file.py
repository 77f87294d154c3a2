"""What a file in an export's format says of itself, read from its bytes before a runtime opens it.

Boxwright opens only what it wrote, which says what goes in and what comes out. What a foreign file says of itself is in
the error, so that its user knows what runs it. An ONNX file may refer to other files: running one does not need the
`onnx` package, so the few messages that can hold a tensor are walked in protobuf's encoding
(https://protobuf.dev/programming-guides/encoding; field numbers from onnx.proto).
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator

from boxwright.base.errors import shortened
from boxwright.base.files import diagnose_wrong_file
from boxwright.base.varint import read_varint
from boxwright.runtime.metadata import KEY

# From message and field number to the message in that field.
_MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
# Fields of a model.
_PRODUCER, _VERSION, _GRAPH, _METADATA = 2, 3, 7, 14
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5
_DEEPEST, _FIELDS = 64, 2**29


def has_external_data(data: bytes) -> bool:
    """Return whether any tensor of an ONNX model has data outside the file.

    A runtime would read it from any path, or at an address in its own memory. Raises ValueError for malformed protobuf.
    """
    waiting: list[tuple[str, int, int, int]] = [("model", 0, len(data), 0)]
    while waiting:
        message, start, end, depth = waiting.pop()
        if depth > _DEEPEST:
            raise ValueError("graphs are nested too deeply")
        for number, kind, value, stop in _fields(data, start, end):
            if message == "tensor" and (number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value != 0)):
                return True
            inner = _MESSAGES[message].get(number)
            if inner and kind == _LENGTH:
                waiting.append((inner, value, stop, depth + 1))
    return False


def described(data: bytes) -> tuple[str, dict[str, str]]:
    """Return an ONNX model's producer with its version, and its metadata.

    Raises:
        ValueError: If it is malformed, or has no graph.
    """
    producer, version, has_graph = "", "", False
    metadata: dict[str, str] = {}
    for number, kind, value, stop in _fields(data, 0, len(data)):
        if kind != _LENGTH:
            continue
        if number == _METADATA:
            pair = {n: _text(data, v, s) for n, k, v, s in _fields(data, value, stop) if k == _LENGTH}
            metadata[pair.get(1, "")] = pair.get(2, "")
        elif number == _PRODUCER:
            producer = _text(data, value, stop)
        elif number == _VERSION:
            version = _text(data, value, stop)
        has_graph = has_graph or number == _GRAPH
    if not has_graph:
        raise ValueError("it has no graph")
    return f"{producer} {version}".strip(), metadata


def _text(data: bytes, start: int, stop: int) -> str:
    return data[start:stop].decode("utf-8", "replace")


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, wire type, value or start of the content, end of the content) of a message's fields."""
    place = start
    while place < end:
        key, place = _number(data, place)
        number, kind, value = key >> 3, key & 7, 0
        if not 1 <= number < _FIELDS:
            raise ValueError("it has a field with an invalid number")
        if kind == _VARINT:
            value, place = _number(data, place)
        elif kind == _LENGTH:
            length, value = _number(data, place)
            place = value + length
        elif kind in (_EIGHT, _FOUR):
            place += 8 if kind == _EIGHT else 4
        else:
            raise ValueError("it has a field of an unknown wire type")
        if place > end:
            raise ValueError("a field extends beyond its message")
        yield number, kind, value, place


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Return a number and where it ends; overlong encodings are refused, as readers truncate them differently."""
    value, end = read_varint(data, place)
    if end - place > 1 and data[end - 1] == 0:
        raise ValueError("a number has an overlong encoding")
    return value, end


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
