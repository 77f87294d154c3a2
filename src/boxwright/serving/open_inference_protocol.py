"""The Open Inference Protocol, version 2 (KServe, Triton), with the extension for binary tensors.

Dimensions: B batch, H W picture.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boxwright.serving.batcher import Row
from boxwright.serving.requests import BadRequest, decoded, parsed_json, picture_of_list, unpacked
from boxwright.serving.settings import ServerSettings

__all__ = ["EXTENSIONS", "LENGTH_HEADER", "Asked", "answer", "metadata", "question"]

LENGTH_HEADER = "Inference-Header-Content-Length"
EXTENSIONS = ("binary_tensor_data",)
_INPUT = "input_tensor"
_BATCH = 4
_PREFIX = struct.Struct("<I")


@dataclass(frozen=True)
class Asked:
    """What a client asks.

    Attributes:
        images: uint8 [H, W, 3] each.
        outputs: Each wanted output, and whether it is to be binary; empty for those that are given unasked.
        binary: Whether outputs are binary unless they say otherwise.
        id: The request's.
    """

    images: list[NDArray[np.uint8]]
    outputs: dict[str, bool]
    binary: bool
    id: str


def question(body: bytes, header_length: str | None, settings: ServerSettings) -> Asked:
    """Read a request.

    Args:
        body: JSON, and behind it binary tensors.
        header_length: How long the JSON is; None where it is all.
        settings: The limits.

    Returns:
        What is asked.

    Raises:
        BadRequest: Where it is malformed.
    """
    content, tail = _parts(body, header_length)
    inputs = content.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise BadRequest(400, f"expected one input, {_INPUT}")
    given, parameters = inputs[0], content.get("parameters") or {}
    if given.get("name") != _INPUT:
        raise BadRequest(400, f"unexpected input {str(given.get('name'))[:60]!r}; expected {_INPUT}")
    shape = given.get("shape")
    if not isinstance(shape, list) or not all(type(side) is int and side > 0 for side in shape) or not shape:
        raise BadRequest(400, f"{_INPUT}: expected a shape of positive numbers")
    if shape[0] > settings.max_images:
        raise BadRequest(400, f"{shape[0]} pictures are over the {settings.max_images} of a request")
    size = (given.get("parameters") or {}).get("binary_data_size")
    data = given.get("data")
    if size is not None:
        if type(size) is not int or size != len(tail):
            raise BadRequest(400, f"{_INPUT}: binary_data_size says {str(size)[:20]}, found {len(tail)} bytes")
        data = tail
    read = {"UINT8": _pixels, "BYTES": _files}.get(str(given.get("datatype")))
    if read is None:
        raise BadRequest(400, f"{_INPUT}: expected datatype UINT8 or BYTES, found {str(given.get('datatype'))[:20]!r}")
    binary = _flag(parameters, "binary_data_output", default=False)
    return Asked(read(data, shape, settings), _wanted(content, binary), binary, str(content.get("id", "")))


def _parts(body: bytes, header_length: str | None) -> tuple[dict[str, Any], bytes]:
    if header_length is None:
        return parsed_json(body), b""
    if not header_length.isascii() or not header_length.isdigit() or int(header_length) > len(body):
        raise BadRequest(400, f"{LENGTH_HEADER}: expected the length of the JSON")
    return parsed_json(body[: int(header_length)]), body[int(header_length) :]


def _flag(parameters: Any, name: str, *, default: bool) -> bool:
    return parameters.get(name, default) is True if isinstance(parameters, dict) else default


def _wanted(content: dict[str, Any], binary: bool) -> dict[str, bool]:
    outputs = content.get("outputs") or []
    if not isinstance(outputs, list) or not all(isinstance(one, dict) and "name" in one for one in outputs):
        raise BadRequest(400, "outputs: expected a list of objects with a name")
    return {str(one["name"]): _flag(one.get("parameters"), "binary_data", default=binary) for one in outputs}


def _pixels(data: Any, shape: list[int], settings: ServerSettings) -> list[NDArray[np.uint8]]:
    count = int(np.prod(shape, dtype=object))
    if len(shape) != _BATCH:
        raise BadRequest(400, f"{_INPUT}: expected shape [batch, height, width, 3], found {shape[:8]}")
    if isinstance(data, bytes):
        if len(data) != count:
            raise BadRequest(400, f"{_INPUT}: shape {shape} wants {count} bytes, found {len(data)}")
        values = np.frombuffer(data, np.uint8).reshape(shape)
    else:
        try:
            values = np.asarray(data)
        except (ValueError, TypeError, OverflowError):
            raise BadRequest(400, f"{_INPUT}: rows of unlike lengths") from None
        if values.size != count or values.dtype.kind not in "uif":
            raise BadRequest(400, f"{_INPUT}: expected {count} numbers, found {values.size}")
        values = values.reshape(shape)
    return [picture_of_list(one, settings, f"picture {number}") for number, one in enumerate(values)]


def _files(data: Any, shape: list[int], settings: ServerSettings) -> list[NDArray[np.uint8]]:
    count = int(np.prod(shape, dtype=object))
    if isinstance(data, bytes):
        files: list[bytes] = []
        place = 0
        while place + _PREFIX.size <= len(data) and len(files) <= count:
            (length,) = _PREFIX.unpack_from(data, place)
            files.append(data[place + _PREFIX.size : place + _PREFIX.size + length])
            place += _PREFIX.size + length
        if place != len(data):
            raise BadRequest(400, f"{_INPUT}: lengths within the binary data do not add up")
    elif isinstance(data, list):
        files = [unpacked(one, f"picture {number}") for number, one in enumerate(data[: count + 1])]
    else:
        raise BadRequest(400, f"{_INPUT}: expected data")
    if len(files) != count:
        raise BadRequest(400, f"{_INPUT}: shape {shape} wants {count} pictures, found {len(files)}")
    return [decoded(one, settings, f"picture {number}") for number, one in enumerate(files)]


def answer(asked: Asked, rows: Sequence[Row], name: str, version: int) -> tuple[bytes, int | None]:
    """Return the answer's body.

    Args:
        asked: What was asked.
        rows: What was found in each picture.
        name: The model's.
        version: Its version.

    Returns:
        The body, and how long its JSON is where binary tensors follow.

    Raises:
        BadRequest: For an output that there is not.
    """
    missing = [wanted for wanted in asked.outputs if wanted not in rows[0]]
    if missing:
        raise BadRequest(400, f"outputs: there is no output {missing[0][:60]!r}")
    names = asked.outputs or {name: asked.binary for name in rows[0] if not name.startswith("raw_")}
    outputs, tails = [], []
    for output, binary in names.items():
        values = np.stack([row[output] for row in rows])
        entry: dict[str, Any] = {"name": output, "datatype": "FP32", "shape": list(values.shape)}
        if binary:
            tails.append(values.astype("<f4").tobytes())
            entry["parameters"] = {"binary_data_size": len(tails[-1])}
        else:
            entry["data"] = values.ravel()
        outputs.append(entry)
    content = {"model_name": name, "model_version": str(version), "id": asked.id, "outputs": outputs}
    head = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return head + b"".join(tails), len(head) if tails else None


def metadata(name: str, version: int, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return what the protocol says of a model.

    Args:
        name: The model's.
        version: Its version.
        shapes: The shape of each output for one picture, without the batch.

    Returns:
        The metadata.
    """
    return {
        "name": name,
        "versions": [str(version)],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": _INPUT, "datatype": "UINT8", "shape": [-1, -1, -1, 3]}],
        "outputs": [{"name": key, "datatype": "FP32", "shape": [-1, *shape]} for key, shape in shapes.items()],
    }
