"""Detecting references to other files in an ONNX file, from its bytes, before a runtime opens it.

Running a file does not need the `onnx` package, so the few messages that can hold a tensor are walked in protobuf's
encoding (https://protobuf.dev/programming-guides/encoding; field numbers from onnx.proto).
"""

from __future__ import annotations

from collections.abc import Iterator

from boxwright.base.varint import read_varint

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
