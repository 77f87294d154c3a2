from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from boxwright.base.errors import ExportError
from boxwright.exporters.export import ExportDescription, Format, export
from boxwright.exporters.onnx_file import onnx_bytes
from boxwright.inference.serving.app import make_app
from boxwright.inference.serving.guard import Counters
from boxwright.inference.serving.model import ServedModel
from boxwright.inference.serving.settings import ServerSettings
from boxwright.runtime.exported import open_exported
from boxwright.runtime.metadata import UNSEALED
from boxwright.runtime.sessions import read_metadata
from boxwright.weights import exports
from tests.exporters.exported import exported_detector
from tests.exporters.small_detectors import FAMILIES, build, pictures
from tests.inference.serving.running import served_by_command
from tests.without_torch import WITHOUT_TORCH

PICTURES = pictures()
SETTINGS = ServerSettings(max_body_mib=1, max_pixels=300_000, max_images=4, timeout_s=120)


def png(image: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def b64(image: Any) -> dict[str, str]:
    """Return a picture, or an image file's bytes, as JSON has it."""
    data = image if isinstance(image, bytes) else png(image)
    return {"b64": base64.b64encode(data).decode()}


def client_of(path: Path, settings: ServerSettings = SETTINGS, **more: Any) -> Iterator[TestClient]:
    counters = Counters()
    model = ServedModel(path, "detector", settings, counters.observe)
    with TestClient(make_app([model], settings, counters, **more), raise_server_exceptions=False) as client:
        client.app.state.model = model  # type: ignore[attr-defined]
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    yield from client_of(exported_detector().file)


def detections_in(path: Path, least_score: float) -> list[dict[str, Any]]:
    """Return what a server of a file finds in the first picture."""
    counters = Counters()
    model = ServedModel(path, "detector", SETTINGS, counters.observe, exports.__name__)
    with TestClient(make_app([model], SETTINGS, counters)) as client:
        answer = client.post(f"/detect?min_score={least_score}", content=png(PICTURES[0])).json()
    return [*answer["detections"]]


@pytest.mark.slow  # test_what_was_written_opens_… of tests/runtime opens each format as the server does
def test_every_format_is_answered_alike(tmp_path: Path) -> None:
    """Of made-up weights, whose scores spread on every machine: a run's depend on the machine that trained it."""
    detector, about = build(FAMILIES["ssd"]), ExportDescription(config="model { }", source="shapes")
    formats: dict[str, Format] = {"detector.onnx": "onnx", "detector.xml": "openvino", "detector.pt2": "pt2"}
    for name, format in formats.items():
        export(detector, tmp_path / name, format=format, images=pictures(), about=about)
    scores = np.array([one["score"] for one in detections_in(tmp_path / "detector.onnx", 0.0)])
    # Between two scores far apart, so that rounding moves none across.
    last = 10 + int(np.diff(scores[10:30]).argmin())
    least = float(scores[last : last + 2].mean())
    wanted = detections_in(tmp_path / "detector.onnx", least)
    assert len(wanted) == last + 1
    for name in ("detector.xml", "detector.pt2"):
        for one, two in zip(wanted, detections_in(tmp_path / name, least), strict=True):
            assert (one["class"], one["class_id"]) == (two["class"], two["class_id"])
            assert two["box"] == pytest.approx(one["box"], abs=0.05)
            assert two["score"] == pytest.approx(one["score"], abs=1e-4)


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return open_exported(exported_detector().file).detect(PICTURES)


def check(found: dict[str, Any], wanted: Any, size: tuple[int, ...]) -> None:
    count = int(found["num_detections"])
    assert count == len(wanted) > 0
    scale = np.array([size[0], size[1]] * 2)
    boxes = (np.array(found["detection_boxes"][:count]) * scale)[:, [1, 0, 3, 2]]
    np.testing.assert_allclose(boxes, wanted.boxes, atol=1e-3)
    assert found["detection_classes"][:count] == (wanted.labels + 1).tolist()


def test_tensorflow_rows_of_any_sizes(client: TestClient, expected: list[Any]) -> None:
    """As TensorFlow's own example does: `requests.post(URL, json={"instances": …})`."""
    chosen = [0, 6, 8]
    instances: list[Any] = [b64(PICTURES[0]), PICTURES[6].tolist(), {"input_tensor": b64(PICTURES[8])}]
    answer = client.post("/v1/models/detector:predict", json={"instances": instances})
    assert answer.status_code == 200
    for row, number in zip(answer.json()["predictions"], chosen, strict=True):
        check(row, expected[number], PICTURES[number].shape)
        assert not [name for name in row if name.startswith("raw_")]


@pytest.mark.parametrize("where", ["", "/versions/1", "/labels/stable"])
def test_tensorflow_columns(client: TestClient, expected: list[Any], where: str) -> None:
    for inputs in (
        [PICTURES[0].tolist()],
        {"input_tensor": [PICTURES[0].tolist()]},
        b64(PICTURES[0]),
        [b64(PICTURES[0])],
    ):
        answer = client.post(
            f"/v1/models/detector{where}:predict", json={"inputs": inputs, "signature_name": "serving_default"}
        )
        assert answer.status_code == 200, answer.text
        check({name: value[0] for name, value in answer.json()["outputs"].items()}, expected[0], PICTURES[0].shape)


def test_outputs_can_be_chosen(client: TestClient) -> None:
    body = {"instances": [b64(PICTURES[0])], "output_filter": ["num_detections", "raw_detection_scores"]}
    (row,) = client.post("/v1/models/detector:predict", json=body).json()["predictions"]
    assert set(row) == {"num_detections", "raw_detection_scores"}


@pytest.mark.slow
def test_raw_outputs_for_clients_of_the_original() -> None:
    """TensorFlow Serving's answer holds every output of the signature, unless a filter names some."""
    session = open_exported(exported_detector().file).session
    wanted = {name: value[0] for name, value in session.run(PICTURES[0][None]).items()}
    for client in client_of(exported_detector().file, replace(SETTINGS, raw_outputs=True)):
        body: dict[str, Any] = {"instances": [b64(PICTURES[0])]}
        (row,) = client.post("/v1/models/detector:predict", json=body).json()["predictions"]
        assert {"raw_detection_boxes", "raw_detection_scores"} < set(row)
        for name in ("raw_detection_boxes", "raw_detection_scores"):
            np.testing.assert_allclose(np.array(row[name], np.float32), wanted[name], atol=1e-5)
        body["output_filter"] = ["num_detections"]
        assert client.post("/v1/models/detector:predict", json=body).json()["predictions"][0].keys() == {
            "num_detections"
        }


def test_status_and_signature(client: TestClient) -> None:
    status = client.get("/v1/models/detector").json()["model_version_status"]
    assert status == [{"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}]
    signature = client.get("/v1/models/detector/metadata").json()
    assert signature["model_spec"] == {"name": "detector", "signature_name": "", "version": "1"}
    default = signature["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert default["inputs"]["input_tensor"]["dtype"] == "DT_UINT8"
    assert [int(d["size"]) for d in default["outputs"]["detection_boxes"]["tensor_shape"]["dim"]] == [-1, 100, 4]


WRONG: dict[str, tuple[str, Any, int, str]] = {
    "no JSON": ("/v1/models/detector:predict", b"{", 400, "JSON Parse Error"),
    "a list": ("/v1/models/detector:predict", b"[]", 400, "expected a JSON object"),
    "nothing": ("/v1/models/detector:predict", {}, 400, "Missing or duplicate keys"),
    "both": ("/v1/models/detector:predict", {"instances": [1], "inputs": [1]}, 400, "Missing or duplicate keys"),
    "no pictures": ("/v1/models/detector:predict", {"instances": []}, 400, "non-empty"),
    "too many": ("/v1/models/detector:predict", {"instances": [[[[0, 0, 0]]]] * 5}, 400, "5 pictures exceed the limit of 4"),
    "a number": ("/v1/models/detector:predict", {"instances": [3]}, 400, "expected [height, width, 3]"),
    "ragged": ("/v1/models/detector:predict", {"instances": [[[[1, 2, 3]], [[1, 2, 3], [1, 2, 3]]]]}, 400, "different lengths"),
    "text": ("/v1/models/detector:predict", {"instances": [[[["a", "b", "c"]]]]}, 400, "numbers from 0 to 255"),
    "above": ("/v1/models/detector:predict", {"instances": [[[[1, 2, 256]]]]}, 400, "numbers from 0 to 255"),
    "below": ("/v1/models/detector:predict", {"instances": [[[[1, 2, -1]]]]}, 400, "numbers from 0 to 255"),
    "halves": ("/v1/models/detector:predict", {"instances": [[[[1, 2, 0.5]]]]}, 400, "integers"),
    "no base64": ("/v1/models/detector:predict", {"instances": [{"b64": "%%%"}]}, 400, "invalid base64"),
    "no image": ("/v1/models/detector:predict", {"instances": [{"b64": "aGVsbG8="}]}, 400, "not an image"),
    "another signature": ("/v1/models/detector:predict", {"instances": [1], "signature_name": "other"}, 400, "not found in signature def"),
    "another output": ("/v1/models/detector:predict", {"instances": [b64(PICTURES[0])], "output_filter": ["x"]}, 400, "no output 'x'"),
    "another model": ("/v1/models/other:predict", {"instances": [1]}, 404, "Servable not found for request: Latest(other)"),
    "another version": ("/v1/models/detector/versions/9:predict", {}, 404, "Specific(detector, 9)"),
    "a text": ("/detect", b"hello", 400, "not an image"),
    "an empty body": ("/detect", b"", 400, "empty"),
    "half an image": ("/detect", png(PICTURES[0])[:200], 400, "cannot be decoded"),
    "too large a body": ("/detect", b"x" * (2**20 + 1), 413, "larger than 1 MiB"),
    "a score": ("/detect?min_score=2", png(PICTURES[0]), 400, "min_score: expected a number from 0 to 1"),
    "v2: nothing": ("/v2/models/detector/infer", {}, 400, "expected one input"),
    "v2: another input": ("/v2/models/detector/infer", {"inputs": [{"name": "x"}]}, 400, "unexpected input 'x'"),
    "v2: no shape": ("/v2/models/detector/infer", {"inputs": [{"name": "input_tensor"}]}, 400, "expected a shape"),
    "v2: a negative side": ("/v2/models/detector/infer", {"inputs": [{"name": "input_tensor", "shape": [1, -2, 3, 3]}]}, 400, "expected a shape"),
    "v2: another type": ("/v2/models/detector/infer", {"inputs": [{"name": "input_tensor", "shape": [1], "datatype": "FP32", "data": [1]}]}, 400, "UINT8 or BYTES"),
    "v2: too few": ("/v2/models/detector/infer", {"inputs": [{"name": "input_tensor", "shape": [1, 2, 2, 3], "datatype": "UINT8", "data": [1]}]}, 400, "expected 12 numbers"),
    "v2: another model": ("/v2/models/other/infer", {}, 404, "no model 'other'"),
    "nowhere": ("/nowhere", {}, 404, "no such address"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests_are_answered_in_a_line(case: str, client: TestClient) -> None:
    path, body, status, reason = WRONG[case]
    answer = client.post(path, content=body) if isinstance(body, bytes) else client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert reason in answer.json()["error"]


def test_a_bomb_is_refused_before_it_is_decoded(client: TestClient) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 5000, 5000, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(5000 * 15001)))
        + chunk(b"IEND", b"")
    )
    assert len(bomb) < 2**20
    answer = client.post("/detect", content=bomb)
    assert answer.status_code == 400
    assert "5000x5000 exceeds 300000 pixels" in answer.json()["error"]


def test_open_inference(client: TestClient, expected: list[Any]) -> None:
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/models/detector/ready").json()["ready"] is True
    assert client.get("/v2/models/detector").json()["inputs"][0]["datatype"] == "UINT8"
    pixels = np.stack(PICTURES[:2])
    given = {"name": "input_tensor", "shape": list(pixels.shape), "datatype": "UINT8"}
    answer = client.post(
        "/v2/models/detector/infer", json={"id": "7", "inputs": [{**given, "data": pixels.ravel().tolist()}]}
    ).json()
    assert (answer["id"], answer["model_version"]) == ("7", "1")
    found = {one["name"]: np.array(one["data"]).reshape(one["shape"]) for one in answer["outputs"]}
    for number in range(2):
        check({name: value[number].tolist() for name, value in found.items()}, expected[number], pixels.shape[1:])


@pytest.mark.parametrize("kind", ["UINT8", "BYTES"])
def test_open_inference_binary(kind: str, client: TestClient, expected: list[Any]) -> None:
    if kind == "UINT8":
        tail, shape = PICTURES[0].tobytes(), [1, *PICTURES[0].shape]
    else:
        file = png(PICTURES[0])
        tail, shape = struct.pack("<I", len(file)) + file, [1]
    content = {
        "inputs": [
            {"name": "input_tensor", "shape": shape, "datatype": kind, "parameters": {"binary_data_size": len(tail)}}
        ],
        "outputs": [{"name": "detection_scores", "parameters": {"binary_data": True}}, {"name": "num_detections"}],
    }
    head = json.dumps(content).encode()
    answer = client.post(
        "/v2/models/detector/infer", content=head + tail, headers={"Inference-Header-Content-Length": str(len(head))}
    )
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["Inference-Header-Content-Length"])
    described, binary = json.loads(answer.content[:length]), answer.content[length:]
    scores, count = described["outputs"]
    assert scores["parameters"]["binary_data_size"] == len(binary) == 4 * 100
    assert count["data"] == [len(expected[0])]
    np.testing.assert_allclose(np.frombuffer(binary, "<f4")[: len(expected[0])], expected[0].scores, atol=1e-6)


def test_detect_takes_a_file_or_a_form_and_answers_json_or_a_picture(client: TestClient, expected: list[Any]) -> None:
    # Between two scores: what a short training finds depends on the processor.
    least = round(float(expected[0].scores[2:4].mean()), 6)
    wanted = expected[0].above(least)
    assert len(wanted) == 3
    for sent in ({"content": png(PICTURES[0])}, {"files": {"image": ("a.png", png(PICTURES[0]), "image/png")}}):
        answer = client.post(f"/detect?min_score={least}", **sent)  # type: ignore[arg-type]
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["width"], found["height"], found["model"], found["version"]) == (128, 96, "detector", 1)
        assert [one["class"] for one in found["detections"]] == wanted.names()
        assert [one["class_id"] for one in found["detections"]] == (wanted.labels + 1).tolist()
        np.testing.assert_allclose([one["box"] for one in found["detections"]], wanted.boxes, atol=0.006)
    drawn = client.post("/detect", content=png(PICTURES[0]), headers={"Accept": "image/png"})
    assert drawn.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(drawn.content)).format == "PNG"
    assert client.post("/detect", files=[("a", ("a", b"1")), ("b", ("b", b"2"))]).status_code == 400


def test_the_page_and_what_watches_a_server(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"(src|href)=.?http", page.text), "nothing is fetched from elsewhere"
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/readyz").text == "ready\n"
    client.post("/detect", content=png(PICTURES[0]))
    numbers = client.get("/metrics").text
    assert 'boxwright_requests_total{route="/detect",status="200"}' in numbers
    assert "boxwright_batch_size_count" in numbers
    assert "boxwright_model_version{" in numbers
    assert client.get("/docs").status_code == client.get("/openapi.json").status_code == 404


def _when_let(entered: threading.Event, gate: threading.Event, run: Any, images: Any) -> Any:
    entered.set()
    gate.wait(60)
    return run(images)


@pytest.mark.parametrize(("timeout_s", "status"), [(0.2, 504), (120.0, 503)])
def test_a_full_queue_is_503_and_a_late_answer_504(timeout_s: float, status: int) -> None:
    settings = ServerSettings(queue=1, max_batch=1, batch_wait_ms=0, timeout_s=timeout_s)
    for client in client_of(exported_detector().file, settings):
        model = client.app.state.model  # type: ignore[attr-defined]
        batcher = model.current.batcher
        entered, gate = threading.Event(), threading.Event()
        batcher._run = partial(_when_let, entered, gate, batcher._run)
        held = batcher.submit([PICTURES[0]], 120)
        assert entered.wait(60)
        if status == 503:
            held += batcher.submit([PICTURES[0]], 120)
        answer = client.post("/detect", content=png(PICTURES[0]))
        assert answer.status_code == status
        if status == 503:
            assert answer.headers["Retry-After"] == "1"
        else:  # it waited in vain and left its place; one that is awaited takes it
            held += batcher.submit([PICTURES[0]], 120)
        gate.set()
        assert all(one.result(60) for one in held)


@pytest.mark.slow
def test_a_new_file_is_taken_up_and_a_bad_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "detector.onnx"
    data = exported_detector().file.read_bytes()
    path.write_bytes(data)
    for client in client_of(path):
        model = client.app.state.model  # type: ignore[attr-defined]
        assert model.reload() is False
        path.write_bytes(data[: len(data) // 2])
        with pytest.raises(ExportError):
            model.reload()
        assert client.post("/detect", content=png(PICTURES[0])).json()["version"] == 1
        import onnx

        later = replace(read_metadata(exported_detector().file), step=8, checksum=UNSEALED)
        path.write_bytes(onnx_bytes(onnx.load_model_from_string(data), later))
        assert model.reload() is True
        assert client.post("/detect", content=png(PICTURES[0])).json()["version"] == 2
        assert client.get("/v1/models/detector/versions/1").status_code == 404


def fuzz(client: TestClient, count: int) -> None:
    generator = np.random.default_rng(0)
    good = png(PICTURES[0])
    bodies = [
        ("/detect", good),
        ("/v1/models/detector:predict", json.dumps({"instances": [b64(PICTURES[8])]}).encode()),
        ("/v1/models/detector:predict", json.dumps({"inputs": PICTURES[8][None, :4, :4].tolist()}).encode()),
        (
            "/v2/models/detector/infer",
            json.dumps(
                {"inputs": [{"name": "input_tensor", "shape": [1, 1, 1, 3], "datatype": "UINT8", "data": [1, 2, 3]}]}
            ).encode(),
        ),
    ]
    kinds = [
        "",
        "multipart/form-data",
        "multipart/form-data; boundary=x",
        "application/json",
        "text/plain; charset=utf-7",
    ]
    seen: dict[int, int] = {}
    for _ in range(count):
        path, body = bodies[generator.integers(len(bodies))]
        changed = bytearray(body)
        for place in generator.integers(0, len(changed), int(generator.integers(1, 20))):
            changed[place] = generator.integers(256)
        if generator.random() < 0.3:
            changed = changed[: int(generator.integers(len(changed)))]
        headers: dict[str, Any] = {"content-type": kinds[generator.integers(len(kinds))]}
        if generator.random() < 0.3:
            lengths = [b"-1", b"x", b"0", b"99999999", b"\xb2", b"5"]
            headers["Inference-Header-Content-Length"] = lengths[generator.integers(len(lengths))]
        answer = client.post(path, content=bytes(changed), headers=headers)
        seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
        assert answer.status_code in (200, 400, 413), answer.text
        assert "Traceback" not in answer.text
        assert "/src/" not in answer.text
        assert "site-packages" not in answer.text
    assert seen[400] > count / 4
    assert client.post("/detect", content=good).status_code == 200


@pytest.mark.slow
def test_ten_thousand_malformed_requests_in_bounded_memory(client: TestClient) -> None:
    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    fuzz(client, 1000)
    before = resident()
    fuzz(client, 10_000)
    assert resident() - before < 150


@pytest.mark.slow
def test_the_command_serves_without_pytorch_and_ends_with_nothing_lost() -> None:
    results: list[int] = []

    def ask() -> None:
        for _ in range(50):
            try:
                results.append(httpx.post(f"{address}/detect", content=png(PICTURES[0]), timeout=120).status_code)
            except (httpx.ConnectError, httpx.ReadError):
                return  # it listens no more: refused, or reset by the kernel before the server was given it

    with served_by_command(program=("-c", WITHOUT_TORCH)) as (process, (host, port)):
        address = f"http://{host}:{port}"
        assert httpx.post(f"{address}/detect", content=png(PICTURES[0]), timeout=120).status_code == 200
        askers = [threading.Thread(target=ask) for _ in range(8)]
        for asker in askers:
            asker.start()
        while not results:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        for asker in askers:
            asker.join(120)
        said, _ = process.communicate(timeout=120)
        assert process.returncode in (0, 143, -signal.SIGTERM)
    assert set(results) == {200}
    read = len(results) + 2  # whether it is healthy, and the first picture
    assert f"{read} of {read} requests were answered" in said.splitlines()
