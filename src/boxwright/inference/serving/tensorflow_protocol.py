"""TensorFlow Serving's REST protocol: rows and columns, nested lists and base64.

https://www.tensorflow.org/tfx/serving/api_rest. Raw outputs, megabytes per picture, are returned only if
`output_filter` or `ServerSettings.raw_outputs` asks for them.

Dimensions: H W picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boxwright.inference.serving.batcher import Row
from boxwright.inference.serving.pictures import decode_base64, decode_pictures
from boxwright.inference.serving.requests import BadRequest
from boxwright.inference.serving.settings import ServerSettings

_INPUT = "input_tensor"
_MOST_OUTPUTS = 100
_ARRAYS = orjson.OPT_SERIALIZE_NUMPY


@dataclass(frozen=True)
class PredictRequest:
    """A parsed request.

    Attributes:
        images: uint8 [H, W, 3] each.
        by_row: Whether the answer has a row per picture, rather than a column per output.
        wanted: The requested outputs; empty for the default ones.
    """

    images: list[NDArray[np.uint8]]
    by_row: bool
    wanted: tuple[str, ...]


def parse_request(content: dict[str, Any], settings: ServerSettings) -> PredictRequest:
    """Parse a request."""
    signature = content.get("signature_name", "serving_default")
    if not isinstance(signature, str):
        raise BadRequest(400, f"signature_name: expected text, found {type(signature).__name__}")
    # TensorFlow Serving's words, by which clients may know the cause.
    if signature not in ("serving_default", ""):
        raise BadRequest(400, f'Serving signature name: "{signature[:60]}" not found in signature def')
    if ("instances" in content) == ("inputs" in content):
        raise BadRequest(400, 'Missing or duplicate keys: a request has either "instances" or "inputs"')
    wanted = content.get("output_filter", [])
    if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted) or len(wanted) > _MOST_OUTPUTS:
        raise BadRequest(400, f"output_filter: expected a list of at most {_MOST_OUTPUTS} names")
    by_row = "instances" in content
    given = content["instances"] if by_row else _column(content["inputs"])
    if not isinstance(given, list) or not given:
        raise BadRequest(400, "expected a non-empty list of pictures")
    if len(given) > settings.max_images:
        raise BadRequest(400, f"{len(given)} pictures exceed the limit of {settings.max_images} per request")
    encoded = [_encoded(instance, number) for number, instance in enumerate(given)]
    return PredictRequest(decode_pictures(encoded, settings), by_row, tuple(wanted))


def _column(inputs: Any) -> Any:
    """Return the pictures of the column format as a list."""
    if isinstance(inputs, dict) and "b64" not in inputs:
        if len(inputs) != 1:
            raise BadRequest(400, f"expected one input, {_INPUT}; found {len(inputs)}")
        (inputs,) = inputs.values()
    return [inputs] if isinstance(inputs, dict) else inputs


def _encoded(given: Any, number: int) -> Any:
    """Return an image file's bytes, or nested lists unchanged."""
    if isinstance(given, dict) and "b64" not in given and len(given) == 1:
        (given,) = given.values()
    return decode_base64(given.get("b64"), f"picture {number}") if isinstance(given, dict) else given


def answer(asked: PredictRequest, rows: Sequence[Row]) -> bytes:
    """Return the answer's JSON, `predictions` by row or `outputs` by column; BadRequest for an unknown output."""
    names = [name for name in rows[0] if not name.startswith("raw_")]
    if asked.wanted:
        missing = [name for name in asked.wanted if name not in rows[0]]
        if missing:
            raise BadRequest(400, f"output_filter: no output {missing[0][:60]!r}")
        names = list(dict.fromkeys(asked.wanted))
    if asked.by_row:
        written = (orjson.dumps({name: _plain(row[name]) for name in names}, option=_ARRAYS) for row in rows)
        return b'{"predictions":[' + b",".join(written) + b"]}"
    columns = (orjson.dumps(name) + b":[" + numbers([row[name] for row in rows]) + b"]" for name in names)
    return b'{"outputs":{' + b",".join(columns) + b"}}"


def numbers(values: Sequence[NDArray[np.float32]]) -> bytes:
    """Return arrays as comma-separated JSON; converted one by one, to let other threads run in between."""
    # orjson takes contiguous arrays with at least one dimension: outputs may be views, and counts scalars.
    return b",".join(orjson.dumps(np.array(value, order="C")[None], option=_ARRAYS)[1:-1] for value in values)


def _plain(value: NDArray[np.float32]) -> Any:
    return np.array(value, order="C") if value.ndim else value.item()


def status(version: int) -> dict[str, Any]:
    """Return the status of an available model."""
    state = {"error_code": "OK", "error_message": ""}
    return {"model_version_status": [{"version": str(version), "state": "AVAILABLE", "status": state}]}


def metadata(name: str, version: int, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return TF Serving's metadata of a model; `shapes` are without the batch dimension."""

    def tensor(name: str, dtype: str, shape: Sequence[int]) -> dict[str, Any]:
        dim = [{"size": str(size), "name": ""} for size in shape]
        return {"dtype": dtype, "tensor_shape": {"dim": dim, "unknown_rank": False}, "name": f"{name}:0"}

    signature = {
        "inputs": {_INPUT: tensor(f"serving_default_{_INPUT}", "DT_UINT8", (-1, -1, -1, 3))},
        "outputs": {key: tensor(key, "DT_FLOAT", (-1, *shape)) for key, shape in shapes.items()},
        "method_name": "tensorflow/serving/predict",
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version)},
        "metadata": {"signature_def": {"signature_def": {"serving_default": signature}}},
    }
