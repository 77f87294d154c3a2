"""What strangers send to freeze the server, fill its memory or make it look broken."""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from boxwright.inference.serving.settings import ServerSettings
from tests.exporters.exported import exported_detector
from tests.exporters.small_detectors import pictures
from tests.inference.serving.running import serving, status
from tests.inference.serving.test_decoders import children_of, resident_mib, slow_jpeg
from tests.inference.serving.test_server import b64, client_of, png

PREDICT, INFER = "/v1/models/detector:predict", "/v2/models/detector/infer"
PICTURE = pictures()[0]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    yield from client_of(exported_detector().file, ServerSettings(timeout_s=120))


def tensor(**more: Any) -> dict[str, Any]:
    return {"name": "input_tensor", "shape": [1, 1, 1, 3], "datatype": "UINT8", "data": [1, 2, 3], **more}


def infer(client: TestClient, content: Any, **headers: str) -> httpx.Response:
    return client.post(INFER, content=json.dumps(content), headers=headers)


def test_a_shape_of_very_many_very_large_numbers(client: TestClient) -> None:
    """Its product has 12 million digits: 111 s of multiplying, in which nobody was answered."""
    answer = infer(client, {"inputs": [tensor(shape=[2**62] * 200_000)]})
    assert answer.status_code == 400
    assert len(answer.text) < 500


@pytest.mark.parametrize("kind", ["UINT8", "BYTES"])
@pytest.mark.parametrize(
    "shape",
    [[10] * 5001, [1, 2**62, 2**62, 3], [2**62], [1, 1, 1, 1, 1], [1, True, 1, 3], [1, 1.0, 1, 3], [], [0], [[1]], "1", 1, None],
)  # fmt: skip
def test_shapes(client: TestClient, shape: Any, kind: str) -> None:
    answer = infer(client, {"inputs": [tensor(shape=shape, datatype=kind)]})
    assert answer.status_code == 400, answer.text
    assert len(answer.text) < 500


@pytest.mark.parametrize("where", ["instances", "v2"])
def test_lists_that_would_be_padded(client: TestClient, where: str) -> None:
    """A text of 10,000 letters and 100,000 empty ones: 0.4 MiB that were padded to 4 GB."""
    values = ["a" * 10_000, *[""] * 100_000]
    before = resident_mib(os.getpid())
    if where == "instances":
        answer = client.post(PREDICT, json={"instances": [values]})
    else:
        answer = infer(client, {"inputs": [tensor(data=values)]})
    assert answer.status_code == 400
    assert resident_mib(os.getpid()) - before < 200


def nested_form(depth: int) -> bytes:
    opening = b"".join(
        b"--b%d\r\nContent-Type: multipart/mixed; boundary=b%d\r\n\r\n" % (level, level + 1) for level in range(depth)
    )
    return opening + b"x" * 2**20


@pytest.mark.parametrize(
    "body", [nested_form(90), b"--b0\r\nContent-Disposition: form-data\r\n\r\n\r\n" * 300_000], ids=["nested", "parts"]
)
def test_forms_that_took_all_day(client: TestClient, body: bytes) -> None:
    answer = client.post("/detect", content=body, headers={"Content-Type": "multipart/form-data; boundary=b0"})
    assert answer.status_code == 400
    assert "form" in answer.json()["error"]


def zeros(height: int, width: int) -> bytes:
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.slow
def test_pixels_of_a_request_are_counted_together() -> None:
    """32 pictures of 50 megapixels, each allowed: refused before any is decoded, so in moments and without memory."""
    many = [b64(zeros(5000, 10000))] * 32
    for client in client_of(exported_detector().file, ServerSettings(timeout_s=120)):
        before = resident_mib(os.getpid())
        answer = client.post(PREDICT, json={"instances": many})
        assert answer.status_code == 413
        assert "1600000000 pixels, more than 100000000" in answer.json()["error"]
        data = [one["b64"] for one in many]
        answer = infer(client, {"inputs": [tensor(shape=[32], datatype="BYTES", data=data)]})
        assert answer.status_code == 413
        flat = {"inputs": [tensor(shape=[3, 5000, 10000, 3], parameters={"binary_data_size": 0}, data=None)]}
        assert infer(client, flat).status_code == 413
        assert resident_mib(os.getpid()) - before < 200


@pytest.mark.slow
def test_bodies_and_pictures_together_take_no_more_memory_than_is_allowed() -> None:
    for client in client_of(exported_detector().file, ServerSettings(timeout_s=120, max_held_mib=1)):
        assert client.post("/detect", content=png(PICTURE)).status_code == 200
        large = client.post("/detect", content=zeros(1000, 1000))
        assert large.status_code == 413, "3 MB of pixels"
        assert "takes more than the 1 MiB allowed for all requests" in large.json()["error"]
        assert client.post("/detect", content=b"x" * 2**21).status_code == 413, "2 MB of body"
        assert "boxwright_held_bytes 0.0" in client.get("/metrics").text
        assert client.post("/detect", content=png(PICTURE)).status_code == 200


def test_health_is_answered_while_a_picture_takes_too_long() -> None:
    with serving(ServerSettings(timeout_s=2, decoders=2)) as running:
        address = "http://{}:{}".format(*running.address)
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(httpx.post(f"{address}/detect", content=slow_jpeg(), timeout=120).status_code)

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for one in asking:
            one.start()
        while any(one.is_alive() for one in asking):
            assert httpx.get(f"{address}/healthz", timeout=60).status_code == 200
            time.sleep(0.05)
        assert statuses == [504] * 3
        # Those that were late are ended and replaced, and pictures are read again.
        while httpx.post(f"{address}/detect", content=png(PICTURE), timeout=120).status_code != 200:
            time.sleep(0.1)


FAULTS: dict[str, Any] = {
    "parameters": {"inputs": [tensor()], "parameters": [1]},
    "an input's parameters": {"inputs": [tensor(parameters=[1])]},
    "parameters as text": {"inputs": [tensor()], "parameters": "x"},
    "an output's parameters": {"inputs": [tensor()], "outputs": [{"name": "detection_scores", "parameters": [1]}]},
    "a flag": {"inputs": [tensor()], "parameters": {"binary_data_output": 1}},
    "an output's flag": {"inputs": [tensor()], "outputs": [{"name": "detection_scores", "parameters": {"binary_data": "x"}}]},
    "outputs": {"inputs": [tensor()], "outputs": {"name": "x"}},
    "an output's name": {"inputs": [tensor()], "outputs": [{"name": ["x"]}]},
    "too many outputs": {"inputs": [tensor()], "outputs": [{"name": "x"}] * 101},
    "an id": {"inputs": [tensor()], "id": ["x"]},
    "a long id": {"inputs": [tensor()], "id": "x" * 2000},
    "a type": {"inputs": [tensor(datatype=["UINT8"])]},
    "a name": {"inputs": [tensor(name={"a": 1})]},
    "a size": {"inputs": [tensor(parameters={"binary_data_size": "3"})]},
    "another size": {"inputs": [tensor(parameters={"binary_data_size": 2**63})]},
    "no data": {"inputs": [tensor(data=None)]},
    "data that is a number": {"inputs": [tensor(data=7)]},
    "data of truths": {"inputs": [tensor(data=[True, False, True])]},
    "data too deep": {"inputs": [tensor(data=[[[[[1, 2, 3]]]]])]},
    "files that are numbers": {"inputs": [tensor(datatype="BYTES", shape=[1], data=[7])]},
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_faults_of_the_client_are_answered_as_such(case: str, client: TestClient) -> None:
    answer = infer(client, FAULTS[case])
    assert answer.status_code == 400, answer.text
    assert len(answer.text) < 500


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "+3", "²", "1_0", "1.0", "", " 3x"])
def test_lengths_of_the_json(length: str, client: TestClient) -> None:
    body = json.dumps({"inputs": [tensor()]}).encode()
    headers = {"Inference-Header-Content-Length": length.encode("latin-1")}
    answer = client.post(INFER, content=body, headers=headers)
    assert answer.status_code == 400, answer.text


ODD = [None, True, -1, 0.5, 2**63, 1e308, "", "x", "ä" * 300, [], [[]], [None], {}, {"b64": 1}, {"b64": "x"}, {"a": {"b": []}}, [[[[1]]]], ["x"] * 200]  # fmt: skip


def changes(content: Any, odd: Any) -> Iterator[Any]:
    """Yield JSON with an odd value in the place of each of its parts, and without it."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield {**content, key: odd}
            yield {name: one for name, one in content.items() if name != key}
            yield from ({**content, key: one} for one in changes(value, odd))
    elif isinstance(content, list):
        for place, value in enumerate(content):
            yield [*content[:place], odd, *content[place + 1 :]]
            yield from ([*content[:place], one, *content[place + 1 :]] for one in changes(value, odd))


GOOD_PREDICT = {"signature_name": "serving_default", "output_filter": ["num_detections"], "instances": [{"input": b64(PICTURE)}, [[[1, 2, 3]]]]}  # fmt: skip
GOOD_INFER = {
    "id": "1",
    "parameters": {"binary_data_output": False},
    "inputs": [tensor(parameters={"content_type": "x"})],
    "outputs": [{"name": "num_detections", "parameters": {"binary_data": True}}],
}


def test_an_output_that_there_is_not(client: TestClient) -> None:
    answer = client.post(INFER, json={**GOOD_INFER, "outputs": [{"name": "nothing"}]})
    assert (answer.status_code, answer.json()) == (400, {"error": "outputs: no output 'nothing'"})


@pytest.mark.slow  # tests/fuzz/test_http.py changes such requests too
@pytest.mark.parametrize(("path", "good"), [(PREDICT, GOOD_PREDICT), (INFER, GOOD_INFER)], ids=["v1", "v2"])
def test_odd_values_in_every_field(path: str, good: Any, client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    assert client.post(path, json=good).status_code == 200
    seen = set()
    for odd in ODD:
        for content in itertools.chain([odd], changes(good, odd)):
            answer = client.post(path, content=json.dumps(content))
            seen.add(answer.status_code)
            assert answer.status_code in (200, 400, 413), (answer.text, content)
            assert len(answer.text) < 2000 or answer.status_code == 200
    assert seen >= {200, 400}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("host", ["[", "[::1", "a b", "http://x"])
def test_a_host_that_is_none(host: str, client: TestClient) -> None:
    answer = client.post("/detect/", content=b"x", headers={"Host": host})
    assert (answer.status_code, answer.json()) == (400, {"error": "the Host header is invalid"})


def test_pages_of_elsewhere_may_not_ask(client: TestClient) -> None:
    from_elsewhere = {"Origin": "https://evil.example", "Host": "127.0.0.1:8501"}
    answer = client.post("/detect", content=png(PICTURE), headers=from_elsewhere)
    assert answer.status_code == 403
    assert "--allow_host" in answer.json()["error"]
    own = {"Origin": "http://127.0.0.1:8501", "Host": "127.0.0.1:8501"}
    assert client.post("/detect", content=png(PICTURE), headers=own).status_code == 200


def test_a_fault_of_the_server_is_a_line_in_its_log(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    model = client.app.state.model  # type: ignore[attr-defined]
    good, batcher = model.current.batcher._run, model.current.batcher

    def fail(_: Any) -> Any:
        raise ZeroDivisionError("two\nlines")

    batcher._run = fail
    answer = client.post("/detect", content=png(PICTURE))
    batcher._run = good
    assert answer.status_code == 500
    assert "ZeroDivisionError" not in answer.text
    (record,) = [
        record for record in caplog.records if record.name == "boxwright.inference.serving" and record.levelno >= 30
    ]
    assert record.getMessage() == "a request failed: ZeroDivisionError: two lines"
    assert record.exc_info is None


def test_a_key_of_any_letters() -> None:
    with serving(ServerSettings(), api_key="schlüssel") as running:
        for key, wanted in (("schlüssel".encode(), 200), ("schlüssel".encode("latin-1"), 401), (b"", 401)):
            request = b"GET /v1/models/detector HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer "
            assert status(running.ask(request + key + b"\r\n\r\n")) == wanted


@pytest.mark.slow
def test_a_drawn_picture_does_not_keep_others_waiting() -> None:
    """Encoding 40 megapixels takes seconds; health is answered all the while."""
    with serving(ServerSettings(timeout_s=120)) as running:
        address = "http://{}:{}".format(*running.address)
        noise = np.random.default_rng(0).integers(0, 256, (1500, 2000, 3), np.uint8)
        statuses: list[int] = []
        image = png(noise)
        asking = threading.Thread(
            target=lambda: statuses.append(
                httpx.post(f"{address}/detect?draw=1", content=image, timeout=120).status_code
            )
        )
        asking.start()
        while asking.is_alive():
            assert httpx.get(f"{address}/healthz", timeout=60).status_code == 200
        assert statuses == [200]


@pytest.mark.slow
def test_a_flood_of_everything_leaves_memory_and_descriptors_as_they_were() -> None:
    from tests.inference.serving.running import post

    hostile = [
        post("/detect", slow_jpeg()),
        post("/detect", nested_form(90), "Content-Type: multipart/form-data; boundary=b0"),
        post("/detect", zeros(7000, 7000)),
        post(PREDICT, json.dumps({"instances": [["a" * 10_000, *[""] * 100_000]]}).encode()),
        post(INFER, json.dumps({"inputs": [tensor(shape=[2**62] * 20_000)]}).encode()),
        b"POST /detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf",
        b"POST /det",
        b"",
    ]
    with serving(ServerSettings(timeout_s=2, idle_s=2, max_connections=50)) as running:
        address = "http://{}:{}".format(*running.address)

        def state() -> tuple[float, int]:
            memory = resident_mib(os.getpid()) + sum(map(resident_mib, children_of(os.getpid())))
            return memory, len(os.listdir("/proc/self/fd"))

        def flood(count: int) -> None:
            for number in range(count):
                one = running.connect()
                one.settimeout(0.05)
                try:
                    one.sendall(hostile[number % len(hostile)])
                    one.recv(1)
                except OSError:
                    pass
                finally:
                    one.close()
            time.sleep(5)
            while httpx.post(f"{address}/detect", content=png(PICTURE), timeout=120).status_code != 200:
                time.sleep(0.2)

        flood(100)
        before = state()
        flood(500)
        after = state()
    assert after[0] - before[0] < 600, (before, after)
    assert after[1] - before[1] < 20, (before, after)
