"""The server's routes.

TensorFlow Serving's REST protocol, the Open Inference Protocol, and one plain route that takes an image file.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import numpy as np
import orjson
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from boxwright.data.image_io import encode_png
from boxwright.errors import BoxwrightError
from boxwright.evaluation.pictures import draw_detections
from boxwright.runtime.exported import found_objects
from boxwright.serving import open_inference_protocol as v2
from boxwright.serving import tensorflow_protocol as tf
from boxwright.serving.batcher import Full, Row
from boxwright.serving.model import Served, ServedModel
from boxwright.serving.requests import BadRequest, parsed_json, picture_of_upload, read_body
from boxwright.serving.settings import ServerSettings
from boxwright.types.categories import ids
from boxwright.types.found import FoundObjects

__all__ = ["Counters", "make_app"]

_LOG = logging.getLogger("boxwright.serving")
_OPEN_TO_ALL = ("/healthz", "/readyz", "/")
_MOST_DRAWN = 100
_WATCH_S = 2.0


class Counters:
    """What `/metrics` shows."""

    def __init__(self) -> None:
        """Make them, in a registry of their own."""
        self.registry = CollectorRegistry()
        self.begun = Counter("boxwright_requests_begun", "Requests read.", registry=self.registry)
        self.requests = Counter("boxwright_requests", "Requests answered.", ("route", "status"), registry=self.registry)
        self.seconds = Histogram(
            "boxwright_request_seconds", "Seconds of a request.", ("route",), registry=self.registry
        )
        self.images = Counter("boxwright_images", "Pictures detected in.", registry=self.registry)
        self.batch = Histogram(
            "boxwright_batch_size", "Pictures run together.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=self.registry
        )
        self.run = Histogram("boxwright_batch_seconds", "Seconds of a batch in the runtime.", registry=self.registry)
        self.waiting = Gauge("boxwright_queue", "Pictures that wait.", registry=self.registry)
        self.version = Gauge(
            "boxwright_model_version", "The model's version.", ("name", "sha256"), registry=self.registry
        )

    def observe(self, size: int, seconds: float) -> None:
        """Count a batch."""
        self.batch.observe(size)
        self.run.observe(seconds)
        self.images.inc(size)

    def summary(self) -> str:
        """Return what became of all requests, in a line."""
        return f"{_total(self.requests):.0f} of {_total(self.begun):.0f} requests were answered"


def _total(counter: Counter) -> float:
    samples = (sample for metric in counter.collect() for sample in metric.samples)
    return sum(sample.value for sample in samples if sample.name.endswith("_total"))


def make_app(
    model: ServedModel, settings: ServerSettings, counters: Counters, *, api_key: str = "", watch: bool = False
) -> FastAPI:
    """Return the server of a model.

    Args:
        model: The model.
        settings: The limits.
        counters: What `/metrics` shows.
        api_key: What clients send as `Authorization: Bearer …`; empty for no key.
        watch: Whether to take up the model's file anew when it changes.

    Returns:
        The application.
    """
    asking = _Asking(model, settings)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=_lifespan(model, watch))
    app.state.ready = True

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        began, route = time.monotonic(), _route(request.url.path)
        counters.begun.inc()
        if api_key and request.url.path not in _OPEN_TO_ALL and not _has_key(request, api_key):
            response = _error(401, "an API key is needed: Authorization: Bearer …")
        else:
            try:
                response = await call_next(request)
            except Exception:  # noqa: BLE001  # whatever it is, no traceback leaves the server
                _LOG.exception("a request failed")
                response = _error(500, "the server failed at this request; its log says why")
        counters.requests.labels(route, str(response.status_code)).inc()
        counters.seconds.labels(route).observe(time.monotonic() - began)
        if response.status_code == 503:
            response.headers["Retry-After"] = "1"
        return response

    @app.exception_handler(BadRequest)
    async def bad_request(_: Request, error: BadRequest) -> Response:
        return _error(error.status, error.reason)

    @app.exception_handler(404)
    async def unknown(_: Request, __: Exception) -> Response:
        return _error(404, "there is no such address; see /")

    @app.exception_handler(405)
    async def wrong_method(_: Request, __: Exception) -> Response:
        return _error(405, "this address takes another method")

    _add_plain(app, model, settings, counters, asking)
    _add_tensorflow(app, model, settings, asking)
    _add_open_inference(app, model, settings, asking)
    return app


class _Asking:
    """Lets a model look at pictures, within the time that a request has."""

    def __init__(self, model: ServedModel, settings: ServerSettings) -> None:
        self.model, self.settings = model, settings

    async def __call__(self, images: list[NDArray[np.uint8]]) -> tuple[list[Row], Served]:
        while True:
            served = self.model.current
            try:
                waiting = served.batcher.submit(images, self.settings.timeout_s)
                break
            except Full:
                # Where the model was taken up anew at this very moment, the new one is asked.
                if served is self.model.current:
                    raise BadRequest(503, "too many pictures wait; try again") from None
        try:
            rows = await asyncio.wait_for(
                asyncio.gather(*map(asyncio.wrap_future, waiting)), timeout=self.settings.timeout_s
            )
        except (TimeoutError, CancelledError, asyncio.CancelledError):
            for one in waiting:
                one.cancel()
            raise BadRequest(504, f"not answered within {self.settings.timeout_s:g} s") from None
        return list(rows), served


def _add_plain(app: FastAPI, model: ServedModel, settings: ServerSettings, counters: Counters, asking: _Asking) -> None:
    page = files("boxwright.serving").joinpath("page.html").read_text()

    @app.get("/")
    async def index() -> Response:
        return Response(page, media_type="text/html")

    @app.get("/healthz")
    async def alive() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get("/readyz")
    async def ready() -> Response:
        return Response("ready\n", media_type="text/plain") if app.state.ready else _error(503, "ending")

    @app.get("/metrics")
    async def metrics() -> Response:
        served = model.current
        counters.waiting.set(served.batcher.waiting)
        counters.version.clear()
        counters.version.labels(model.name, served.sha256[:12]).set(served.version)
        return Response(generate_latest(counters.registry), media_type="text/plain; version=0.0.4")

    @app.post("/detect")
    async def detect(request: Request) -> Response:
        least = _number(request, "min_score", 0.5)
        body = await read_body(request.stream(), settings)
        image = await run_in_threadpool(picture_of_upload, body, request.headers.get("content-type", ""), settings)
        (row,), served = await asking([image])
        size = (image.shape[0], image.shape[1])
        batch = {name: value[None] for name, value in row.items()}
        found = found_objects(batch, 0, size, served.detector.categories).above(least)
        if "image/png" in request.headers.get("accept", "") or request.query_params.get("draw") == "1":
            picture = await run_in_threadpool(draw_detections, image, found, least, _MOST_DRAWN)
            return Response(encode_png(picture), media_type="image/png")
        return _json({**_objects(found), "model": model.name, "version": served.version})


def _add_tensorflow(app: FastAPI, model: ServedModel, settings: ServerSettings, asking: _Asking) -> None:
    def known(name: str, version: str | None = None, label: str | None = None) -> Served:
        served = model.current
        if name != model.name or version not in (None, str(served.version)) or label not in (None, "stable"):
            which = f"Specific({name[:60]}, {version[:20]})" if version else f"Latest({name[:60]})"
            raise BadRequest(404, f"Servable not found for request: {which}")
        return served

    async def predict(request: Request, name: str, version: str | None = None, label: str | None = None) -> Response:
        known(name, version, label)
        body = await read_body(request.stream(), settings)
        asked = await run_in_threadpool(lambda: tf.question(parsed_json(body), settings))
        rows, _ = await asking(asked.images)
        return _json(await run_in_threadpool(tf.answer, asked, rows))

    app.post("/v1/models/{name}:predict")(predict)
    app.post("/v1/models/{name}/versions/{version}:predict")(predict)
    app.post("/v1/models/{name}/labels/{label}:predict")(predict)

    @app.get("/v1/models/{name}")
    @app.get("/v1/models/{name}/versions/{version}")
    async def status(name: str, version: str | None = None) -> Response:
        return _json(tf.status(known(name, version).version))

    @app.get("/v1/models/{name}/metadata")
    @app.get("/v1/models/{name}/versions/{version}/metadata")
    async def metadata(name: str, version: str | None = None) -> Response:
        served = known(name, version)
        return _json(tf.metadata(name, served.version, served.shapes))


def _add_open_inference(app: FastAPI, model: ServedModel, settings: ServerSettings, asking: _Asking) -> None:
    def known(name: str, version: str | None = None) -> Served:
        served = model.current
        if name != model.name or version not in (None, "", str(served.version)):
            raise BadRequest(404, f"there is no model {name[:60]!r} of that version")
        return served

    @app.get("/v2")
    async def server() -> Response:
        return _json({"name": "boxwright", "version": "2", "extensions": list(v2.EXTENSIONS)})

    @app.get("/v2/health/live")
    async def live() -> Response:
        return _json({"live": True})

    @app.get("/v2/health/ready")
    async def ready() -> Response:
        return _json({"ready": True}) if app.state.ready else _error(503, "ending")

    @app.get("/v2/models/{name}")
    @app.get("/v2/models/{name}/versions/{version}")
    async def metadata(name: str, version: str | None = None) -> Response:
        served = known(name, version)
        return _json(v2.metadata(name, served.version, served.shapes))

    @app.get("/v2/models/{name}/ready")
    @app.get("/v2/models/{name}/versions/{version}/ready")
    async def model_ready(name: str, version: str | None = None) -> Response:
        known(name, version)
        return _json({"name": name, "ready": True})

    @app.post("/v2/models/{name}/infer")
    @app.post("/v2/models/{name}/versions/{version}/infer")
    async def infer(request: Request, name: str, version: str | None = None) -> Response:
        known(name, version)
        body = await read_body(request.stream(), settings)
        length = request.headers.get(v2.LENGTH_HEADER)
        asked = await run_in_threadpool(v2.question, body, length, settings)
        rows, served = await asking(asked.images)
        content, json_length = await run_in_threadpool(v2.answer, asked, rows, name, served.version)
        headers = {} if json_length is None else {v2.LENGTH_HEADER: str(json_length)}
        kind = "application/json" if json_length is None else "application/octet-stream"
        return Response(content, media_type=kind, headers=headers)


def _lifespan(model: ServedModel, watch: bool) -> Any:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(_watch(model)) if watch else None
        yield
        app.state.ready = False
        if watching is not None:
            watching.cancel()
        await run_in_threadpool(model.close)

    return lifespan


async def _watch(model: ServedModel) -> None:
    stamp = model.stamp()
    while True:
        await asyncio.sleep(_WATCH_S)
        try:
            newest = model.stamp()
            if newest != stamp:
                stamp = newest
                if await run_in_threadpool(model.reload):
                    _LOG.info("version %d is served now", model.current.version)
        except (OSError, BoxwrightError) as error:
            _LOG.warning("the old version goes on: %s", error)


def _route(path: str) -> str:
    """Return a path's kind, of which there are few: clients choose paths."""
    for start in ("/detect", "/metrics", "/healthz", "/readyz", "/v1/models", "/v2"):
        if path.startswith(start):
            return start
    return "/" if path == "/" else "other"


def _has_key(request: Request, key: str) -> bool:
    given = request.headers.get("authorization", "")
    return hmac.compare_digest(given.encode("utf-8", "replace"), f"Bearer {key}".encode())


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise BadRequest(400, f"{name}: expected a number of 0 to 1")
    return value


def _objects(found: FoundObjects) -> dict[str, Any]:
    class_ids = ids(found.categories, found.labels.tolist())
    rows = [
        {
            "box": [round(float(side), 2) for side in box],
            "score": round(float(score), 6),
            "class_id": class_id,
            "class": name,
        }
        for box, score, class_id, name in zip(found.boxes, found.scores, class_ids, found.names(), strict=True)
    ]
    return {"detections": rows, "width": found.image_size[1], "height": found.image_size[0]}


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


def _error(status: int, reason: str) -> Response:
    return Response(json.dumps({"error": reason}), status, media_type="application/json")
