"""The page's files, what it asks, and several models in one server."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from boxwright.base.errors import ConfigError
from boxwright.inference.serving.app import make_app
from boxwright.inference.serving.guard import Counters
from boxwright.inference.serving.model import Models, ServedModel
from boxwright.inference.serving.settings import SamplePicture, ServerSettings
from tests.exporters.exported import exported_detector
from tests.inference.serving.test_server import PICTURES, b64, png

FOLDER = files("boxwright.inference.serving").joinpath("page")
SETTINGS = ServerSettings(batch_wait_ms=0, timeout_s=120)
OWN = ["page/page.css", "page/icon.svg", "page/main.js"]


SAMPLES = (SamplePicture("street.png", b"one"), SamplePicture("<b>yard</b>.jpg", b"two"))


def served(*names: str, settings: ServerSettings = SETTINGS, api_key: str = "") -> Iterator[TestClient]:
    counters = Counters()
    models = [ServedModel(exported_detector().file, name, settings, counters.observe) for name in names]
    app = make_app(models, settings, counters, api_key=api_key, samples=SAMPLES)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    yield from served("first", "second")


def test_the_page_runs_its_own_files_alone(client: TestClient) -> None:
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert set(re.findall(r'(?:src|href)="([^"#]+)"', page.text)) == set(OWN)
    # Styles and scripts in the page would not run under the policy.
    assert not re.search(r"<style| style=| on[a-z]+=|<script[^>]*>[^<]", page.text)


@pytest.mark.slow
def test_each_model_reads_pictures_by_the_scale_of_its_data() -> None:
    """A picture of 12 bits is what its upper 8 are to the model of such data alone; by every address that names one."""
    models = [ServedModel(exported_detector().file, name, SETTINGS) for name in ("bytes", "twelve")]
    session = models[1].current.detector.session
    session.metadata = replace(session.metadata, input={**session.metadata.input, "white_level": 255.0 * 16})
    bright = PICTURES[0]
    deep = io.BytesIO()
    Image.fromarray(bright[..., 0].astype(np.uint16) * 16).save(deep, "PNG")
    with TestClient(make_app(models, SETTINGS, Counters())) as client:

        def boxes(name: str, data: bytes) -> tuple[object, object]:
            found = client.post(
                f"/detect?model={name}&min_score=0.05", content=data, headers={"content-type": "image/png"}
            )
            asked = {"instances": [{"b64": base64.b64encode(data).decode()}]}
            predicted = client.post(f"/v1/models/{name}:predict", json=asked)
            return found.json()["detections"], predicted.json()["predictions"][0]["detection_scores"]

        expected = boxes("bytes", png(bright[..., 0]))
        assert expected[0]
        assert boxes("twelve", png(bright[..., 0])) == expected
        assert boxes("twelve", deep.getvalue()) == expected
        assert boxes("bytes", deep.getvalue()) != expected


def test_sample_pictures_are_offered_by_number(client: TestClient) -> None:
    assert client.get("/models").json()["samples"] == ["street.png", "<b>yard</b>.jpg"]
    answer = client.get("/samples/1")
    assert (answer.content, answer.headers["content-type"]) == (b"two", "image/jpeg")
    assert answer.headers["x-content-type-options"] == "nosniff"
    for wrong in ("2", "-1", "1.0", "street.png", "99999999999999999999", "..%2f..%2fetc%2fpasswd"):
        assert client.get(f"/samples/{wrong}").status_code == 404, wrong


def test_every_file_is_there_with_its_type(client: TestClient) -> None:
    types = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    names = [one.name for one in FOLDER.iterdir() if not one.name.endswith(".html")]
    assert len(names) >= 8
    for name in names:
        answer = client.get(f"/page/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == types[name[name.rfind(".") :]]
        assert answer.headers["x-content-type-options"] == "nosniff"
        for imported in re.findall(r'from "\./([^"]+)"', answer.text):
            assert imported in names
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text), "nothing comes from elsewhere"


@pytest.mark.parametrize("name", ["", "%2e%2e/app.py", "..%2fapp.py", "index.html", "x.js"])
def test_no_other_file_is_read(name: str, client: TestClient) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 404
    assert "no such address" in answer.json()["error"]


def test_what_the_page_asks(client: TestClient) -> None:
    content = client.get("/models").json()
    assert [one["name"] for one in content["models"]] == ["first", "second"]
    assert content["least_score"] == 0.5
    names = [one["name"] for one in content["models"][0]["classes"]]
    assert names == ["circle", "square", "triangle", "star"]
    assert content["models"][0]["version"] == 1


def test_each_model_answers_by_its_name(client: TestClient) -> None:
    def asked(query: str) -> str:
        return str(client.post(f"/detect{query}", content=png(PICTURES[0])).json()["model"])

    assert (asked(""), asked("?model=first"), asked("?model=second")) == ("first", "first", "second")
    answer = client.post("/detect?model=third", content=png(PICTURES[0]))
    assert (answer.status_code, answer.json()["error"]) == (404, "no model 'third'; see /models")
    for name in ("first", "second"):
        body = {"instances": [b64(PICTURES[0])]}
        assert client.post(f"/v1/models/{name}:predict", json=body).json()["predictions"][0]["num_detections"] > 0
        assert client.get(f"/v2/models/{name}").json()["name"] == name
    assert client.get("/v1/models/third").status_code == client.get("/v2/models/third").status_code == 404
    numbers = client.get("/metrics").text
    assert all(f'boxwright_model_version{{name="{name}"' in numbers for name in ("first", "second"))


def test_a_key_guards_the_models_and_not_the_page() -> None:
    for client in served("detector", api_key="secret"):
        assert [client.get(f"/{name}").status_code for name in ("", "healthz", *OWN)] == [200] * 5
        assert client.get("/models").status_code == client.post("/detect").status_code == 401
        assert client.get("/models", headers={"Authorization": "Bearer secret"}).status_code == 200
        assert client.get("/page").status_code == 401


def test_names_are_those_of_one_model_each() -> None:
    model = ServedModel(exported_detector().file, "one", SETTINGS)
    try:
        with pytest.raises(ConfigError, match="two of the served models have one name: one, one"):
            Models([model, model])
    finally:
        model.close()
