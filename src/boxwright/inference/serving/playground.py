"""The page of the server: its files, and what it asks about the models."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

import orjson
from fastapi import FastAPI, Response

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.inference.serving.guard import error_response
from boxwright.inference.serving.model import Models, ServedModel
from boxwright.pipeline.messages import TrainEvalPipelineConfig

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


def add_page(app: FastAPI, models: Models, least_score: float) -> None:
    """Add the routes of the page.

    Args:
        least_score: Where the page's threshold starts.
    """
    # Read once: a request never names a path.
    folder = files("boxwright.inference.serving").joinpath("page")
    pages = {one.name: one.read_bytes() for one in folder.iterdir() if _suffix(one.name) in _TYPES}

    def page(name: str) -> Response:
        return Response(pages[name], headers=_HEADERS, media_type=_TYPES[_suffix(name)])

    @app.get("/")
    async def index() -> Response:
        return page(_INDEX)

    @app.get("/page/{name}")
    async def file(name: str) -> Response:
        return page(name) if name in pages and name != _INDEX else error_response(404, "no such address; see /")

    @app.get("/models")
    async def served() -> Response:
        content = {"models": [_about(model) for model in models], "least_score": least_score}
        return Response(orjson.dumps(content), media_type="application/json")


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]


def _about(model: ServedModel) -> dict[str, Any]:
    """Return a model's name, version, classes (none if unknown), and the pairs of keypoints to join by lines."""
    served = model.current
    classes = [
        {"id": one.id, "name": one.title, "keypoints": list(one.keypoints)} for one in served.detector.categories or ()
    ]
    edges = _edges(served.detector.metadata.config) if any(one["keypoints"] for one in classes) else []
    return {"name": model.name, "version": served.version, "classes": classes, "edges": edges}


@lru_cache(maxsize=16)
def _edges(config: str) -> list[tuple[int, int]]:
    """Return `eval_config.keypoint_edge` of a configuration; none if another version wrote it, with other fields."""
    try:
        parsed = parse_message(config, TrainEvalPipelineConfig)
    except ConfigError:
        return []
    return [(edge.start, edge.end) for edge in parsed.eval_config.keypoint_edge] if parsed.eval_config else []
