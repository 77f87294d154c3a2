"""The server's routes: TensorFlow Serving's REST protocol, the Open Inference Protocol, and `/detect` for images.

It also serves the page on which detectors are tried, and answers what that asks about the models.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, asynccontextmanager
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from numpy.typing import NDArray
from prometheus_client import generate_latest

from boxwright.base.errors import BoxwrightError, ConfigError
from boxwright.base.text import is_count, to_number
from boxwright.config.load import parse_message
from boxwright.data.image_io import encode_picture
from boxwright.evaluation.pictures import draw_detections
from boxwright.evaluation.results import keypoints_of_classes, large_values
from boxwright.inference.serving import open_inference_protocol as v2
from boxwright.inference.serving import tensorflow_protocol as tf
from boxwright.inference.serving.batcher import QueueFull, Row
from boxwright.inference.serving.decoders import DecodedRequest, DecodeRequest, Decoders
from boxwright.inference.serving.guard import (
    Browsers,
    BudgetedResponse,
    Counters,
    Guard,
    MemoryBudget,
    MemoryReservation,
    answer_bytes,
    error_response,
)
from boxwright.inference.serving.model import Models, ModelVersion, ServedModel
from boxwright.inference.serving.requests import BEGAN, BadRequest, read_body
from boxwright.inference.serving.settings import SamplePicture, ServerSettings
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.runtime.exported import to_detections
from boxwright.types.categories import ids
from boxwright.types.detections import Array, Detections

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_INDEX = "index.html"
# Only the page's own files run, and only this server is asked; pictures and video that the user chose are blobs.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A browser asks again after an upgrade; the files are small.
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI, models: Models, least_score: float, samples: Sequence[SamplePicture]) -> None:
    """Add the routes of the page.

    Args:
        least_score: Where the page's confidence threshold starts.
        samples: Pictures that it offers.
    """
    # Read once: a request never names a path.
    folder = files("boxwright.inference.serving").joinpath("page")
    add_files(app, {file.name: file.read_bytes() for file in folder.iterdir() if Path(file.name).suffix in _TYPES})

    @app.get("/models")
    async def served() -> Response:
        content = {
            "models": [_about(model) for model in models],
            "least_score": least_score,
            "samples": [sample.name for sample in samples],
        }
        return Response(orjson.dumps(content), media_type="application/json")

    @app.get("/samples/{number}")
    async def sample(number: str) -> Response:
        if not is_count(number) or int(number) >= len(samples):
            return error_response(404, "no such picture; see /models")
        return Response(samples[int(number)].jpeg, headers=_HEADERS, media_type="image/jpeg")


def add_files(app: FastAPI, pages: Mapping[str, bytes]) -> None:
    """Add the routes of a page's files: `index.html` as `/`, the others as `/page/NAME`.

    Args:
        pages: Contents by name; the endings are those of HTML, CSS, JavaScript and SVG.
    """

    def page(name: str) -> Response:
        return Response(pages[name], headers=_HEADERS, media_type=_TYPES[Path(name).suffix])

    @app.get("/")
    async def index() -> Response:
        return page(_INDEX)

    @app.get("/page/{name}")
    async def file(name: str) -> Response:
        return page(name) if name in pages and name != _INDEX else error_response(404, "no such address; see /")


def _about(model: ServedModel) -> dict[str, Any]:
    """Return a model's name, version, classes (none if unknown), and the pairs of keypoints to join by lines."""
    served = model.current
    classes = [
        {"id": category.id, "name": category.title, "keypoints": list(category.keypoints)}
        for category in served.detector.categories or ()
    ]
    edges = _edges(served.detector.metadata.config) if any(category["keypoints"] for category in classes) else []
    return {"name": model.name, "version": served.version, "classes": classes, "edges": edges}


@lru_cache(maxsize=16)
def _edges(config: str) -> list[tuple[int, int]]:
    """Return `eval_config.keypoint_edge` of a configuration; none if another version wrote it, with other fields."""
    try:
        parsed = parse_message(config, TrainEvalPipelineConfig)
    except ConfigError:
        return []
    return [(edge.start, edge.end) for edge in parsed.eval_config.keypoint_edge] if parsed.eval_config else []


_LOG = logging.getLogger("boxwright.inference.serving")
_MOST_DRAWN = 100
_LEAST_SCORE = 0.5
_WATCH_S = 2.0


def make_app(
    models: Sequence[ServedModel],
    settings: ServerSettings,
    counters: Counters,
    *,
    api_key: str = "",
    watch: bool = False,
    samples: Sequence[SamplePicture] = (),
) -> FastAPI:
    """Return the server application of one or more models, whose names differ.

    Args:
        models: `/detect` uses the first, unless a request names another.
        counters: The metrics that `/metrics` shows.
        api_key: What clients send as `Authorization: Bearer …`; empty for no key.
        watch: Whether to reload the models' files when they change.
        samples: Pictures that the page offers for a first try.
    """
    decoders = Decoders(settings, counters.count_replaced)
    runner, known = _Runner(settings, decoders), Models(models)
    # Without FastAPI's pages, which load scripts from a public CDN, and know nothing of bodies that are read by hand.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=_lifespan(known, decoders, watch=watch))
    app.state.ready, app.state.decoders = True, decoders
    app.add_middleware(Guard, counters=counters, browsers=Browsers(settings.host, settings.allow_host), api_key=api_key)

    @app.exception_handler(BadRequest)
    async def bad_request(_: Request, error: BadRequest) -> Response:
        return error_response(error.status, error.reason, close=error.status == 408)

    @app.exception_handler(404)
    async def unknown(_: Request, __: Exception) -> Response:
        return error_response(404, "no such address; see /")

    @app.exception_handler(405)
    async def wrong_method(_: Request, __: Exception) -> Response:
        return error_response(405, "this address does not support the method")

    # Thresholds of each class take the place of one for all.
    least_score = 0.0 if settings.thresholds else _LEAST_SCORE
    add_page(app, known, least_score, samples)
    _add_plain(app, known, counters, runner)
    _add_detect(app, known, runner, least_score)
    _add_tensorflow(app, known, runner, raw_outputs=settings.raw_outputs)
    _add_open_inference(app, known, runner)
    return app


class _Runner:
    """Reads requests and runs a model on their pictures, within each request's time limit."""

    def __init__(self, settings: ServerSettings, decoders: Decoders) -> None:
        self._settings, self._decoders = settings, decoders
        self.held = MemoryBudget(settings.max_held_mib)

    async def read(
        self, request: Request, model: ServedModel, kind: str, head: str | None, share: MemoryReservation
    ) -> DecodedRequest:
        """Return a request's content, its pictures of more than 8 bits read as the model's training data were."""
        white_level = self._settings.white_level or model.current.detector.metadata.white_level
        deadline = self._deadline(request)
        announced = request.headers.get("content-length", "")
        body = await read_body(request.stream(), announced, self._settings, deadline, share.add)
        return await self._decoders.read(DecodeRequest(kind, head, body, white_level, share.add), deadline)

    async def __call__(
        self, request: Request, model: ServedModel, images: list[NDArray[np.uint8]]
    ) -> tuple[list[Row], ModelVersion]:
        """Return the detections in pictures, and the version of the model that made them."""
        while True:
            served, left = model.current, self._deadline(request) - time.monotonic()
            try:
                waiting = served.batcher.submit(images, left)
                break
            except QueueFull:
                # If the model was reloaded at this very moment, the new one is tried.
                if served is model.current:
                    raise BadRequest(503, "too many pictures are queued; try again") from None
        try:
            rows = await asyncio.wait_for(asyncio.gather(*map(asyncio.wrap_future, waiting)), timeout=max(left, 0))
        except (TimeoutError, CancelledError, asyncio.CancelledError):
            for task in waiting:
                task.cancel()
            raise BadRequest(504, f"not answered within {self._settings.timeout_s:g} s") from None
        return list(rows), served

    def _deadline(self, request: Request) -> float:
        """Return when a request must be answered, counted from its first byte, whose time the connection recorded."""
        if not hasattr(request.state, BEGAN):
            setattr(request.state, BEGAN, time.monotonic())
        return float(getattr(request.state, BEGAN)) + self._settings.timeout_s


def _add_plain(app: FastAPI, models: Models, counters: Counters, runner: _Runner) -> None:
    @app.get("/healthz")
    async def alive() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get("/readyz")
    async def ready() -> Response:
        return Response("ready\n", media_type="text/plain") if app.state.ready else error_response(503, "shutting down")

    @app.get("/metrics")
    async def metrics() -> Response:
        served = [(model.name, model.current) for model in models]
        counters.waiting.set(sum(loaded.batcher.waiting for _, loaded in served))
        counters.held.set(runner.held.bytes)
        # Or each replaced file would leave a series of its hash behind.
        counters.version.clear()
        for name, loaded in served:
            counters.version.labels(name, loaded.sha256[:12]).set(loaded.version)
        return Response(generate_latest(counters.registry), media_type="text/plain; version=0.0.4")


def _add_detect(app: FastAPI, models: Models, runner: _Runner, least_score: float) -> None:
    @app.post("/detect")
    async def detect(request: Request) -> Response:
        least = _number(request, "min_score", least_score)
        name = request.query_params.get("model")
        model = models.first if name is None else models.get(name)
        if model is None:
            raise BadRequest(404, f"no model {(name or '')[:60]!r}; see /models")
        with ExitStack() as held:
            share = held.enter_context(MemoryReservation(runner.held))
            asked = await runner.read(request, model, "upload", request.headers.get("content-type"), share)
            (row,), served = await runner(request, model, asked.images)
            (image,) = asked.images
            size = (image.shape[0], image.shape[1])
            batch = {name: value[None] for name, value in row.items()}
            detections = to_detections(batch, 0, size, served.detector.categories).above(least)
            if "image/png" in request.headers.get("accept", "") or request.query_params.get("draw") == "1":
                # In a thread, or all requests would wait while a picture is drawn and compressed.
                drawn = await run_in_threadpool(_drawn, image, detections, least)
                share.add(len(drawn))
                # From here on the response holds the memory, until the client has read it.
                return BudgetedResponse(drawn, held.pop_all(), "image/png")
        # In a thread too, as masks are encoded.
        objects = await run_in_threadpool(_objects, detections)
        return _json({**objects, "model": model.name, "version": served.version})


def _add_tensorflow(app: FastAPI, models: Models, runner: _Runner, *, raw_outputs: bool) -> None:
    def known(name: str, version: str | None = None, label: str | None = None) -> ServedModel:
        model = models.get(name)
        if model is None or version not in (None, str(model.current.version)) or label not in (None, "stable"):
            which = f"Specific({name[:60]}, {version[:20]})" if version else f"Latest({name[:60]})"
            raise BadRequest(404, f"Servable not found for request: {which}")
        return model

    async def predict(request: Request, name: str, version: str | None = None, label: str | None = None) -> Response:
        model = known(name, version, label)
        with ExitStack() as held:
            share = held.enter_context(MemoryReservation(runner.held))
            read = await runner.read(request, model, "tensorflow", None, share)
            rows, _ = await runner(request, model, read.images)
            wanted = tuple(read.fields["wanted"]) or (tuple(rows[0]) if raw_outputs else ())
            asked = tf.PredictRequest(read.images, read.fields["by_row"], wanted)
            share.add(answer_bytes(rows, asked.wanted))
            content = await run_in_threadpool(tf.answer, asked, rows)
            return BudgetedResponse(content, held.pop_all(), "application/json")

    app.post("/v1/models/{name}:predict")(predict)
    app.post("/v1/models/{name}/versions/{version}:predict")(predict)
    app.post("/v1/models/{name}/labels/{label}:predict")(predict)

    @app.get("/v1/models/{name}")
    @app.get("/v1/models/{name}/versions/{version}")
    async def status(name: str, version: str | None = None) -> Response:
        return _json(tf.status(known(name, version).current.version))

    @app.get("/v1/models/{name}/metadata")
    @app.get("/v1/models/{name}/versions/{version}/metadata")
    async def metadata(name: str, version: str | None = None) -> Response:
        served = known(name, version).current
        return _json(tf.metadata(name, served.version, served.shapes))


def _add_open_inference(app: FastAPI, models: Models, runner: _Runner) -> None:
    def known(name: str, version: str | None = None) -> ServedModel:
        model = models.get(name)
        if model is None or version not in (None, "", str(model.current.version)):
            raise BadRequest(404, f"no model {name[:60]!r} with that version")
        return model

    @app.get("/v2")
    async def server() -> Response:
        return _json({"name": "boxwright", "version": "2", "extensions": list(v2.EXTENSIONS)})

    @app.get("/v2/health/live")
    async def live() -> Response:
        return _json({"live": True})

    @app.get("/v2/health/ready")
    async def ready() -> Response:
        return _json({"ready": True}) if app.state.ready else error_response(503, "shutting down")

    @app.get("/v2/models/{name}")
    @app.get("/v2/models/{name}/versions/{version}")
    async def metadata(name: str, version: str | None = None) -> Response:
        served = known(name, version).current
        return _json(v2.metadata(name, served.version, served.shapes))

    @app.get("/v2/models/{name}/ready")
    @app.get("/v2/models/{name}/versions/{version}/ready")
    async def model_ready(name: str, version: str | None = None) -> Response:
        known(name, version)
        return _json({"name": name, "ready": True})

    @app.post("/v2/models/{name}/infer")
    @app.post("/v2/models/{name}/versions/{version}/infer")
    async def infer(request: Request, name: str, version: str | None = None) -> Response:
        model = known(name, version)
        with ExitStack() as held:
            share = held.enter_context(MemoryReservation(runner.held))
            read = await runner.read(request, model, "open_inference", request.headers.get(v2.LENGTH_HEADER), share)
            rows, served = await runner(request, model, read.images)
            asked = v2.InferRequest(read.images, **read.fields)
            share.add(answer_bytes(rows, asked.outputs))
            content, json_length = await run_in_threadpool(v2.answer, asked, rows, name, served.version)
            headers = {} if json_length is None else {v2.LENGTH_HEADER: str(json_length)}
            kind = "application/json" if json_length is None else "application/octet-stream"
            return BudgetedResponse(content, held.pop_all(), kind, headers)


def _lifespan(models: Models, decoders: Decoders, *, watch: bool) -> Any:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        decoders.start()
        watching = [asyncio.create_task(_watch(model)) for model in models] if watch else []
        yield
        app.state.ready = False
        for task in watching:
            task.cancel()
        await decoders.close()
        for model in models:
            await run_in_threadpool(model.close)

    return lifespan


async def _watch(model: ServedModel) -> None:
    stamp = model.stamp()
    while True:
        await asyncio.sleep(_WATCH_S)
        try:
            newest = model.stamp()
            if newest != stamp:
                # Before the reload, so that a file that cannot be served is reported once, not every two seconds.
                stamp = newest
                if await run_in_threadpool(model.reload):
                    _LOG.info("now serving version %d of %s", model.current.version, model.name)
        except (OSError, BoxwrightError) as error:
            _LOG.warning("still serving the old version of %s: %s", model.name, error)


def _drawn(image: NDArray[np.uint8], detections: Detections[Array], least: float) -> bytes:
    return encode_picture(draw_detections(image, detections, least, _MOST_DRAWN), ".png")


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    try:
        value = default if text is None else to_number(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise BadRequest(400, f"{name}: expected a number from 0 to 1")
    return value


def _objects(detections: Detections[Array]) -> dict[str, Any]:
    class_ids = ids(detections.categories, detections.labels.tolist())
    rows: list[dict[str, Any]] = [
        {
            "box": [round(float(side), 2) for side in box],
            "score": round(float(score), 6),
            "class_id": class_id,
            "class": name,
        }
        for box, score, class_id, name in zip(
            detections.boxes, detections.scores, class_ids, detections.names(), strict=True
        )
    ]
    if detections.keypoints is not None:
        for row, points in zip(rows, keypoints_of_classes(detections, detections.categories), strict=True):
            row["keypoints"] = points.tolist()
    if detections.temporal_offsets is not None:
        for row, offset in zip(rows, detections.temporal_offsets.astype(np.float64).round(4), strict=True):
            row["temporal_offset"] = offset.tolist()
    rows = [row | large for row, large in zip(rows, large_values(detections), strict=True)]
    return {"detections": rows, "width": detections.image_size[1], "height": detections.image_size[0]}


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")
