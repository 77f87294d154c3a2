"""The Open Inference Protocol, version 2 (KServe, Triton), with the extension for binary tensors.

Dimensions: B batch, H W picture.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boxwright.base.text import is_count
from boxwright.inference.serving.batcher import Row
from boxwright.inference.serving.pictures import (
    check_sizes,
    decode_base64,
    decode_pictures,
    flat_numbers,
    parse_bytes,
    picture_of_numbers,
)
from boxwright.inference.serving.requests import BadRequest, parsed_json
from boxwright.inference.serving.settings import ServerSettings
from boxwright.inference.serving.tensorflow_protocol import numbers

LENGTH_HEADER = "Inference-Header-Content-Length"
EXTENSIONS = ("binary_tensor_data",)
_INPUT = "input_tensor"
_BATCH = 4
_MOST_OUTPUTS, _LONGEST_ID = 100, 1000
_PREFIX = struct.Struct("<I")


@dataclass(frozen=True)
class InferRequest:
    """A parsed request.

    Attributes:
        images: uint8 [H, W, 3] each.
        outputs: Each requested output, and whether it is binary; empty for the default ones.
        binary: Whether outputs are binary by default.
    """

    images: list[NDArray[np.uint8]]
    outputs: dict[str, bool]
    binary: bool
    id: str


def parse_request(body: bytes, header_length: str | None, settings: ServerSettings) -> InferRequest:
    """Parse a request: JSON of `header_length` bytes (None: all of the body), followed by binary tensors."""
    content, tail = _parts(body, header_length)
    inputs = content.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise BadRequest(400, f"expected one input, {_INPUT}")
    (given,) = inputs
    if given.get("name") != _INPUT:
        raise BadRequest(400, f"unexpected input {_shown(given.get('name'))}; expected {_INPUT}")
    shape = _shape(given.get("shape"), settings)
    size = _parameters(given, _INPUT).get("binary_data_size")
    data = given.get("data")
    if size is not None:
        if type(size) is not int or size != len(tail):
            raise BadRequest(400, f"{_INPUT}: binary_data_size says {_shown(size)}, found {len(tail)} bytes")
        data = tail
    kind = given.get("datatype")
    if kind not in ("UINT8", "BYTES"):
        raise BadRequest(400, f"{_INPUT}: expected datatype UINT8 or BYTES, found {_shown(kind)}")
    images = _pixels(data, shape, settings) if kind == "UINT8" else _files(data, shape, settings)
    binary = _flag(_parameters(content, "the request"), "binary_data_output", default=False)
    return InferRequest(images, _wanted(content, binary=binary), binary, _id(content))


def _shown(value: Any) -> str:
    """Return a short description of an unexpected value."""
    return repr(value[:60]) if isinstance(value, str) else f"{value!r:.20}" if type(value) is int else _kind(value)


def _kind(value: Any) -> str:
    return f"a JSON {type(value).__name__}"


def _parts(body: bytes, header_length: str | None) -> tuple[dict[str, Any], bytes]:
    if header_length is None:
        return parsed_json(body), b""
    if not is_count(header_length) or int(header_length) > len(body):
        raise BadRequest(400, f"{LENGTH_HEADER}: expected the length of the JSON")
    return parsed_json(body[: int(header_length)]), body[int(header_length) :]


def _shape(shape: Any, settings: ServerSettings) -> list[int]:
    """Return a shape with few, bounded dimensions, so that their product is bounded."""
    most = max(settings.max_pixels, settings.max_images)
    if not isinstance(shape, list) or not shape or not all(type(side) is int and side > 0 for side in shape):
        raise BadRequest(400, f"{_INPUT}: expected a shape of positive integers")
    if len(shape) > _BATCH:
        raise BadRequest(400, f"{_INPUT}: expected shape [batch, height, width, 3], found {len(shape)} numbers")
    if shape[0] > settings.max_images:
        raise BadRequest(400, f"{shape[0]} pictures exceed the limit of {settings.max_images} per request")
    if max(shape) > most:
        raise BadRequest(400, f"{_INPUT}: a dimension of {max(shape)} exceeds {most}")
    return shape


def _parameters(holder: dict[str, Any], where: str) -> dict[str, Any]:
    parameters = holder.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise BadRequest(400, f"{where}: expected parameters to be an object, found {_kind(parameters)}")
    return parameters or {}


def _flag(parameters: dict[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise BadRequest(400, f"{name}: expected true or false, found {_shown(value)}")
    return value


def _id(content: dict[str, Any]) -> str:
    request_id = content.get("id", "")
    if type(request_id) not in (str, int) or len(str(request_id)) > _LONGEST_ID:
        raise BadRequest(400, f"id: expected text of at most {_LONGEST_ID} characters")
    return str(request_id)


def _wanted(content: dict[str, Any], *, binary: bool) -> dict[str, bool]:
    outputs = content.get("outputs")
    outputs = [] if outputs is None else outputs
    if not isinstance(outputs, list) or len(outputs) > _MOST_OUTPUTS:
        raise BadRequest(400, f"outputs: expected a list of at most {_MOST_OUTPUTS} objects with a name")
    if not all(isinstance(output, dict) and isinstance(output.get("name"), str) for output in outputs):
        raise BadRequest(400, "outputs: expected a list of objects with a name")
    return {output["name"]: _flag(_parameters(output, "outputs"), "binary_data", default=binary) for output in outputs}


def _pixels(data: Any, shape: list[int], settings: ServerSettings) -> list[NDArray[np.uint8]]:
    if len(shape) != _BATCH:
        raise BadRequest(400, f"{_INPUT}: expected shape [batch, height, width, 3], found {shape}")
    names = [f"picture {number}" for number in range(shape[0])]
    check_sizes([(shape[1], shape[2])] * shape[0], settings, names)
    count = math.prod(shape)
    if isinstance(data, bytes):
        if len(data) != count:
            raise BadRequest(400, f"{_INPUT}: shape {shape} needs {count} bytes, found {len(data)}")
        values = np.frombuffer(data, np.uint8)
    else:
        if not isinstance(data, list):
            raise BadRequest(400, f"{_INPUT}: expected data")
        _, numbers = flat_numbers(data, _BATCH, _INPUT)
        if len(numbers) != count:
            raise BadRequest(400, f"{_INPUT}: expected {count} numbers, found {len(numbers)}")
        values = parse_bytes(numbers, _INPUT)
    return [
        picture_of_numbers(row, shape[1:], name) for row, name in zip(values.reshape(shape[0], -1), names, strict=True)
    ]


def _files(data: Any, shape: list[int], settings: ServerSettings) -> list[NDArray[np.uint8]]:
    count = math.prod(shape)
    if count > settings.max_images:
        raise BadRequest(400, f"{count} pictures exceed the limit of {settings.max_images} per request")
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
        # One more than announced is enough to see that there are too many.
        files = [decode_base64(encoded, f"picture {number}") for number, encoded in enumerate(data[: count + 1])]
    else:
        raise BadRequest(400, f"{_INPUT}: expected data")
    if len(files) != count:
        raise BadRequest(400, f"{_INPUT}: shape {shape} needs {count} pictures, found {len(files)}")
    return decode_pictures(files, settings)


def answer(asked: InferRequest, rows: Sequence[Row], name: str, version: int) -> tuple[bytes, int | None]:
    """Return the answer's body.

    Returns:
        The body, and the length of its JSON if binary tensors follow.
    """
    missing = [wanted for wanted in asked.outputs if wanted not in rows[0]]
    if missing:
        raise BadRequest(400, f"outputs: no output {missing[0][:60]!r}")
    names = asked.outputs or {name: asked.binary for name in rows[0] if not name.startswith("raw_")}
    outputs, tails = [], []
    for output, binary in names.items():
        values = [row[output] for row in rows]
        entry: dict[str, Any] = {"name": output, "datatype": "FP32", "shape": [len(rows), *values[0].shape]}
        if binary:
            tails.append(np.stack(values).astype("<f4").tobytes())
            entry["parameters"] = {"binary_data_size": len(tails[-1])}
            outputs.append(orjson.dumps(entry))
        else:
            flat = b",".join(numbers([value.ravel()])[1:-1] for value in values if value.size)
            outputs.append(orjson.dumps(entry)[:-1] + b',"data":[' + flat + b"]}")
    about = orjson.dumps({"model_name": name, "model_version": str(version), "id": asked.id})
    head = about[:-1] + b',"outputs":[' + b",".join(outputs) + b"]}"
    return head + b"".join(tails), len(head) if tails else None


def metadata(name: str, version: int, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the protocol's description of a model; `shapes` are without the batch dimension."""
    return {
        "name": name,
        "versions": [str(version)],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": _INPUT, "datatype": "UINT8", "shape": [-1, -1, -1, 3]}],
        "outputs": [{"name": key, "datatype": "FP32", "shape": [-1, *shape]} for key, shape in shapes.items()],
    }
