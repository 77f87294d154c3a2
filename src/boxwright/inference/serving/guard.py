"""Middleware around every request: access checks, metrics, and an answer to any failure."""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections.abc import Mapping

from fastapi import Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boxwright.inference.serving.browsers import Browsers

_LOG = logging.getLogger("boxwright.inference.serving")
_OPEN_TO_ALL = ("/healthz", "/readyz", "/")
# Scripts and styles of the page, which asks for the key.
_PAGE_FILES = "/page/"
# nginx's status for a client that closed the connection; it is only counted, never sent.
_GONE = 499


class Counters:
    """The metrics that `/metrics` shows."""

    def __init__(self) -> None:
        """Create them, in a separate registry."""
        self.registry = CollectorRegistry()
        self.begun = Counter("boxwright_requests_begun", "Requests read.", registry=self.registry)
        self.requests = Counter("boxwright_requests", "Requests answered.", ("route", "status"), registry=self.registry)
        self.seconds = Histogram(
            "boxwright_request_seconds", "Seconds of a request.", ("route",), registry=self.registry
        )
        self.images = Counter("boxwright_images", "Pictures processed.", registry=self.registry)
        self.batch = Histogram(
            "boxwright_batch_size", "Pictures run together.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=self.registry
        )
        self.run = Histogram("boxwright_batch_seconds", "Seconds of a batch in the runtime.", registry=self.registry)
        self.waiting = Gauge("boxwright_queue", "Queued pictures.", registry=self.registry)
        self.held = Gauge("boxwright_held_bytes", "Bytes of bodies and pictures in memory.", registry=self.registry)
        self.replaced = Counter(
            "boxwright_decoders_replaced", "Decoding processes that were replaced.", ("why",),
            registry=self.registry,
        )  # fmt: skip
        self.version = Gauge(
            "boxwright_model_version", "The model's version.", ("name", "sha256"), registry=self.registry
        )

    def observe(self, size: int, seconds: float) -> None:
        """Count a batch."""
        self.batch.observe(size)
        self.run.observe(seconds)
        self.images.inc(size)

    def count_replaced(self, why: str) -> None:
        """Count a replaced decoding process."""
        self.replaced.labels(why).inc()

    def summary(self) -> str:
        """Return a line that counts received and answered requests."""
        return f"{_total(self.requests):.0f} of {_total(self.begun):.0f} requests were answered"


def _total(counter: Counter) -> float:
    samples = (sample for metric in counter.collect() for sample in metric.samples)
    return sum(sample.value for sample in samples if sample.name.endswith("_total"))


class Guard:
    """The application behind access checks, metrics and error handling."""

    def __init__(self, app: ASGIApp, counters: Counters, browsers: Browsers, api_key: str) -> None:
        """Wrap an application.

        Args:
            api_key: What clients send as `Authorization: Bearer …`; empty for no key.
        """
        self._app, self._counters, self._browsers, self._key = app, counters, browsers, api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, route, status = time.monotonic(), _route(scope["path"]), 0
        self._counters.begun.inc()

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status == 503:
                    message["headers"] = [*message.get("headers", ()), (b"retry-after", b"1")]
            await send(message)

        try:
            refused = self._refused(scope)
            if refused is None:
                await self._app(scope, receive, counted)
            else:
                await refused(scope, receive, counted)
        except ClientDisconnect:
            status = _GONE
        except Exception as error:  # no traceback leaves the server
            _LOG.error("a request failed: %s", _line(error))
            _LOG.debug("traceback:", exc_info=error)
            # The head of an answer is sent: uvicorn can only break the connection.
            if status:
                raise
            await error_response(500, "internal error; the server's log has the reason")(scope, receive, counted)
        finally:
            self._counters.requests.labels(route, str(status or _GONE)).inc()
            self._counters.seconds.labels(route).observe(time.monotonic() - began)

    def _refused(self, scope: Scope) -> Response | None:
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # Request smuggling: proxies and servers disagree on which header delimits the body.
            reason = "a request may not have both a Content-Length and a Transfer-Encoding"
            return error_response(400, reason, close=True)
        if (refusal := self._browsers.refusal(headers)) is not None:
            return error_response(*refusal)
        is_open = scope["path"] in _OPEN_TO_ALL or scope["path"].startswith(_PAGE_FILES)
        if self._key and not is_open:
            given = headers.get(b"authorization", b"")
            # In constant time: the duration must not tell how many characters were right.
            if not hmac.compare_digest(given, b"Bearer " + self._key):
                return error_response(401, "an API key is required: Authorization: Bearer …")
        return None


def _line(error: Exception) -> str:
    """Return an error's type and text in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"


def _route(path: str) -> str:
    """Return a path's metrics label, one of a few: clients choose paths."""
    for start in ("/detect", "/metrics", "/healthz", "/readyz", "/v1/models", "/v2", "/models", "/page/"):
        if path.startswith(start):
            return start
    return "/" if path == "/" else "other"


def error_response(status: int, reason: str, *, close: bool = False) -> Response:
    """Return a JSON response with the reason as `error`; `close` ends the connection after it."""
    headers = {"Connection": "close"} if close else None
    return Response(json.dumps({"error": reason}), status, headers, media_type="application/json")
