"""Bodies and headers that are nearly right, sent to a server that listens."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
from PIL import Image

from boxwright.inference.serving.settings import ServerSettings
from tests.exporters.small_detectors import pictures
from tests.fuzz.mutate import mutate
from tests.inference.serving.running import serving

_SECONDS = 60
_DUE = (503, 504)
_PREDICT, _INFER = "/v1/models/detector:predict", "/v2/models/detector/infer"
_LENGTH = "Inference-Header-Content-Length"
_ODD = [b"", b"-1", b"0", b"5", b"9" * 5000, b"1e3", b"\xb2", b"\xff", b"nan", b"x" * 3000, b"null", b"*/*", b"a, b", b'"', b";;", b"boundary="]  # fmt: skip
_HEADERS = ["Content-Type", _LENGTH, "Accept", "Authorization", "Content-Encoding", "Expect", "Origin", "Cookie", "Host", "User-Agent", "Upgrade", "X-Forwarded-For", "X-Forwarded-Proto", "Range"]  # fmt: skip
_QUERIES = ["", "", "", "?min_score=0", "?min_score=x", "?min_score=nan", "?draw=1", "?%ff=%00", "?" + "a=b&" * 300]


@dataclass(frozen=True)
class _Good:
    """A request that is answered."""

    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def _requests() -> list[_Good]:
    image = pictures()[8]
    files = {}
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"):
        file = io.BytesIO()
        Image.fromarray(image).save(file, kind)
        files[kind] = file.getvalue()
    encoded = {"b64": base64.b64encode(files["JPEG"]).decode()}
    tensor = {"name": "input_tensor", "shape": [1], "datatype": "BYTES", "data": [encoded["b64"]]}
    pixels = {"name": "input_tensor", "shape": [1, 2, 2, 3], "datatype": "UINT8", "data": [7] * 12}
    tail = struct.pack("<I", len(files["PNG"])) + files["PNG"]
    binary = {**tensor, "data": None, "parameters": {"binary_data_size": len(tail)}}
    outputs = [{"name": "num_detections", "parameters": {"binary_data": True}}]
    head = json.dumps({"id": "7", "inputs": [binary], "outputs": outputs}).encode()
    form = (
        b'--xyz\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        + files["PNG"]
        + b"\r\n--xyz--\r\n"
    )
    return [
        *(_Good("/detect", data) for data in files.values()),
        _Good("/detect", form, {"Content-Type": "multipart/form-data; boundary=xyz"}),
        _Good(_PREDICT, json.dumps({"instances": [encoded, image[:3, :3].tolist()]}).encode()),
        _Good(
            _PREDICT, json.dumps({"inputs": {"input_tensor": [encoded]}, "output_filter": ["num_detections"]}).encode()
        ),
        _Good(_INFER, json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()),
        _Good(_INFER, json.dumps({"inputs": [pixels]}).encode()),
        _Good(_INFER, head + tail, {_LENGTH: str(len(head))}),
    ]


def fuzz_http(seed: int, seconds: float, count: int, write: Callable[[str, bytes, str], None]) -> Counter[str]:
    """Send changed requests for so many seconds, or so many of them; return what became of them."""
    rng, found = random.Random(f"http {seed}"), Counter[str]()
    goods = _requests()
    bodies = [good.body for good in goods]
    with serving(ServerSettings(max_body_mib=4, max_pixels=4_000_000)) as running:
        address = "http://{}:{}".format(*running.address)
        with httpx.Client(base_url=address, timeout=_SECONDS) as client:
            for good in goods:
                answer = client.post(good.path, content=good.body, headers=good.headers)
                assert answer.status_code == 200, (good, answer.text)
            until = time.monotonic() + seconds
            while time.monotonic() < until and found.total() < count:
                good = rng.choice(goods)
                path, headers = good.path + rng.choice(_QUERIES), _headers(good, rng)
                body = mutate(good.body, rng, bodies) if rng.random() < 0.9 else good.body
                what = _sent(client, path, headers, body, chunked=rng.random() < 0.1)
                if what not in ("read", "refused"):
                    write("http", body, f"{what}\nPOST {path}\n{headers}")
                    what = "FINDING"
                found[what] += 1
    return found


def _headers(good: _Good, rng: random.Random) -> dict[str, bytes]:
    headers = {name: value.encode() for name, value in good.headers.items()}
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        name = rng.choice(_HEADERS)
        value = rng.choice([*_ODD, mutate(headers.get(name, b"application/json"), rng, [b"multipart/form-data"])])
        # What no client can send: it would end the header, or this one (h11) refuses it.
        headers[name] = value.translate(None, b"\r\n\0\v\f").strip()
    return headers


def _sent(client: httpx.Client, path: str, headers: dict[str, bytes], body: bytes, *, chunked: bool) -> str:
    """Return what became of a request: read, refused, or what is wrong with it."""
    try:
        answer = client.post(path, content=iter([body]) if chunked else body, headers=headers)
    except httpx.RequestError as error:
        return f"no answer: {type(error).__name__}: {error}"
    if "Traceback" in answer.text or "site-packages" in answer.text:
        return f"a traceback: {answer.text[:2000]}"
    if answer.status_code == 200:
        return "read"
    if len(answer.content) > 5000:
        return f"an error of {len(answer.content)} bytes"
    if 400 <= answer.status_code < 500 or answer.status_code in _DUE:
        return "refused"
    return f"status {answer.status_code}: {answer.text[:2000]}"
