"""The server and clients that others wrote: curl, requests, Triton's client."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from PIL import Image

from boxwright.runtime.exported import open_exported
from tests.exporters.exported import exported_detector
from tests.exporters.small_detectors import pictures
from tests.inference.serving.running import served_by_command

TRITON = "BOXWRIGHT_TRITON_PYTHON"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server as a user starts it, on a free port."""
    with served_by_command() as (process, (host, port)):
        yield f"http://{host}:{port}"
        process.terminate()
        assert process.wait(60) in (0, 143)


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "picture.png"
    Image.fromarray(pictures()[0]).save(path)
    return path


@pytest.fixture(scope="module")
def expected() -> Any:
    return open_exported(exported_detector().file).detect(pictures()[:1])[0]


def same(prediction: dict[str, Any], expected: Any) -> None:
    count = int(prediction["num_detections"])
    assert count == len(expected) > 0
    np.testing.assert_allclose(prediction["detection_scores"][:count], expected.scores, atol=1e-5)
    height, width = expected.image_size
    boxes = np.array(prediction["detection_boxes"][:count]) * [height, width, height, width]
    np.testing.assert_allclose(boxes[:, [1, 0, 3, 2]], expected.boxes, atol=1e-3)


def test_curl_as_tensorflow_serving_documents_it(address: str, expected: Any, tmp_path: Path) -> None:
    """`curl -d '{"instances": […]}' -X POST http://localhost:8501/v1/models/NAME:predict`, and the two GETs."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (tmp_path / "request.json").write_text(json.dumps({"instances": [pictures()[0].tolist()]}))

    def curl(*words: str) -> Any:
        return json.loads(subprocess.run(["curl", "-s", *words], capture_output=True, check=True).stdout)

    answer = curl("-d", f"@{tmp_path / 'request.json'}", "-X", "POST", f"{address}/v1/models/detector:predict")
    same(answer["predictions"][0], expected)
    status = curl(f"{address}/v1/models/detector")["model_version_status"][0]
    assert (status["state"], status["status"]["error_code"]) == ("AVAILABLE", "OK")
    assert "signature_def" in curl(f"{address}/v1/models/detector/metadata")["metadata"]
    assert "error" in curl("-d", "{}", "-X", "POST", f"{address}/v1/models/detector:predict")


@pytest.mark.slow
def test_requests_as_tensorflow_serving_documents_it(address: str, expected: Any, picture: Path) -> None:
    """Its `resnet_client.py`: base64 in a text that is put together by hand, `raise_for_status`, `json()`."""
    encoded = base64.b64encode(picture.read_bytes()).decode("utf-8")
    predict_request = f'{{"instances" : [{{"b64": "{encoded}"}}]}}'
    response = requests.post(f"{address}/v1/models/detector:predict", data=predict_request, timeout=60)
    response.raise_for_status()
    same(response.json()["predictions"][0], expected)


SCRIPT = """
import json, sys
import numpy as np
import tritonclient.http as triton
client = triton.InferenceServerClient(sys.argv[1].removeprefix("http://"))
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("detector")
assert client.get_model_metadata("detector")["inputs"][0]["datatype"] == "UINT8"
image = np.load(sys.argv[2])[None]
given = triton.InferInput("input_tensor", list(image.shape), "UINT8")
names = ["num_detections", "detection_scores", "detection_boxes"]
found = []
for binary_in in (True, False):
    given.set_data_from_numpy(image, binary_data=binary_in)
    for binary in (True, False):
        wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in names]
        answer = client.infer("detector", [given], outputs=wanted, request_id="7")
        assert answer.get_response()["id"] == "7"
        found.append({name: answer.as_numpy(name)[0].tolist() for name in names})
everything = client.infer("detector", [given])
found.append({name: everything.as_numpy(name)[0].tolist() for name in names})
for packing in ("gzip", "deflate"):
    answer = client.infer("detector", [given], response_compression_algorithm=packing)
    found.append({name: answer.as_numpy(name)[0].tolist() for name in names})
try:
    client.infer("nothing", [given])
except triton.InferenceServerException as error:
    assert "nothing" in str(error), error
else:
    raise SystemExit("no error")
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(TRITON not in os.environ, reason=f"{TRITON} names no interpreter with tritonclient[http]")
def test_tritons_own_client(address: str, expected: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "picture.npy", pictures()[0])
    words = [os.environ[TRITON], "-c", SCRIPT, address, str(tmp_path / "picture.npy")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == 7
    for answer in answers:
        same(answer, expected)
